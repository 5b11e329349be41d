"""Two processes at one ledger: whatever comes between two statements of a transaction, nothing is lost.

The second process comes before each statement of the first in turn. Where the first one holds what it needs, it gives
up and tries again after the first one's commit, as one that waits would.
"""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ledger_rows import session, turn
from sqlalchemy import event, func, make_url, select, text, update

from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger, episodes, history, policies, turns
from clawrl_trl.ledger.errors import LedgerWriteError
from clawrl_trl.ledger.schema import Piece, Policy, Turn
from clawrl_trl.policies import PolicyStore, pin_version, prune_versions, reject_damaged, rollback
from clawrl_trl.policies.gate import Candidate, GateReport
from clawrl_trl.policies.publish import Publisher

LONG: dict[str, Any] = {
    "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    "prompt_ids": list(range(300)),
}


@pytest.fixture
def rival(ledger: Ledger, url: str) -> Iterator[Ledger]:
    """The ledger as another process has it, which waits for no lock longer than a moment."""
    address = make_url(url)
    if ledger.path is None:
        address = address.update_query_dict({"options": "-c lock_timeout=20"})
    opened = Ledger.open(address.render_as_string(hide_password=False), busy_timeout_s=0.02)
    yield opened
    opened.close()


def interfere(ledger: Ledger, moment: int, act: Callable[[], object], meanwhile: Callable[[], object]) -> bool:
    """Act, with another process before the statement of that number; returns whether there were so many."""
    numbers = itertools.count()
    waits = False

    @event.listens_for(ledger.writer_engine, "before_cursor_execute")
    def come(*args: object) -> None:
        nonlocal waits
        if next(numbers) == moment:
            try:
                meanwhile()
            except LedgerWriteError:
                waits = True

    try:
        act()
    finally:
        event.remove(ledger.writer_engine, "before_cursor_execute", come)
    if waits:
        meanwhile()
    return next(numbers) > moment


def count_pieces(ledger: Ledger) -> int:
    with ledger.reader() as tx:
        return tx.scalar(select(func.count()).select_from(Piece)) or 0


def add_old(ledger: Ledger, home: str, **fields: Any) -> str:
    """A turn as a release without pieces wrote it."""
    with ledger.transaction() as tx:
        row = turn(home, **(LONG | fields))
        tx.add(row)
        tx.flush()
        return row.id


def delete(ledger: Ledger, turn_id: str) -> None:
    with ledger.transaction() as tx:
        turns.delete_turn(tx, turn_id)


@pytest.mark.parametrize("own", [False, True], ids=["another turn", "the turn itself"])
def test_conversion_beside_a_deletion_loses_nothing(ledger: Ledger, rival: Ledger, own: bool) -> None:
    messages = [*LONG["messages"], {"role": "user", "content": "c"}]
    for moment in itertools.count():
        with ledger.transaction() as tx:
            home = session(tx).id
            other = turns.add(tx, turn(home, **LONG)).id
        old = add_old(ledger, home, messages=messages)
        happened = interfere(
            ledger,
            moment,
            lambda: history.compact(ledger),
            lambda gone=old if own else other: delete(rival, gone),  # type: ignore[misc]
        )
        with ledger.reader() as tx:
            left = [row.messages for row in turns.of_session(tx, home)]
        both = [LONG["messages"], messages]
        assert left == ([both[0] if own else both[1]] if happened else both)
        # Three chunks of ids and the messages of the longest turn that is left.
        assert count_pieces(ledger) == 3 + len(left[-1])
        for one in (old, other):
            delete(ledger, one)
        assert count_pieces(ledger) == 0
        if not happened:
            break


def test_a_reply_beside_a_deletion_is_whole(ledger: Ledger, rival: Ledger) -> None:
    for moment in itertools.count():
        with ledger.transaction() as tx:
            home = session(tx, f"chat {moment}", now=9.0).id
            other = turns.add(tx, turn(home, **LONG)).id

        def reply(name: str = f"chat {moment}") -> None:
            with ledger.transaction() as tx:
                # An overlapping request that began earlier: the session's row is not written.
                turns.add(tx, turn(session(tx, name, now=5.0).id, **LONG))

        happened = interfere(ledger, moment, reply, lambda gone=other: delete(rival, gone))  # type: ignore[misc]
        with ledger.reader() as tx:
            assert [row.messages for row in turns.of_session(tx, home)] == [LONG["messages"]] * (2 - happened)
        if not happened:
            break


def test_a_turn_whose_conversation_is_damaged_can_be_deleted(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        gone = turns.add(tx, turn(session(tx).id, **LONG)).id
    with ledger.writer_engine.begin() as connection:
        connection.execute(text("DELETE FROM pieces WHERE parent_id = ''"))
    delete(ledger, gone)
    assert count_pieces(ledger) == 0
    with ledger.reader() as tx:
        assert tx.scalars(select(Turn.id)).all() == []


def convert(tx: Any, turn_id: str) -> None:
    row = turns.get(tx, turn_id)
    assert row is not None
    values = history.share(tx, row)
    tx.execute(update(Turn.__table__).where(Turn.__table__.c.id == turn_id).values(values))  # type: ignore[arg-type]


def settle(tx: Any, turn_id: str) -> object:
    return episodes.settle(tx, "g", [episodes.EpisodeOutcome(session="rollout", outcome=1.0)])


def answer(tx: Any, turn_id: str) -> object:
    return turns.set_next_state(tx, turn_id, [{"role": "user", "content": "thanks"}], ["owner"], None, 2.0)


@pytest.mark.parametrize("act", [answer, settle])
def test_a_turn_is_read_whole_after_a_wait_for_its_conversion(
    ledger: Ledger, act: Callable[[Any, str], object]
) -> None:
    with ledger.transaction() as tx:
        home = session(tx, "rollout")
        home.group = "g"
        tx.flush()
        home_id = home.id
    old = add_old(ledger, home_id, state="captured")
    with ledger.transaction() as tx:
        tx.execute(update(Turn).where(Turn.id == old).values(state="awaiting_next_state"))

    def run() -> None:
        with ledger.transaction() as tx:
            act(tx, old)

    with ThreadPoolExecutor(1) as pool:
        with ledger.transaction() as tx:
            convert(tx, old)
            waiter = pool.submit(run)
            while not waiter.done() and not _somebody_waits(ledger):
                pass
        waiter.result()


def _somebody_waits(ledger: Ledger) -> bool:
    if ledger.path is not None:  # who waits on SQLite has read nothing yet, so it is all one when
        return True
    with ledger.reader() as tx:
        return bool(tx.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")))


def test_no_statement_locks_a_row_and_puts_its_conversation_together(ledger: Ledger) -> None:
    statements: list[str] = []
    with ledger.transaction() as tx:
        row = turns.add(tx, turn(session(tx).id, **LONG))
        answer(tx, row.id)
    event.listen(ledger.writer_engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with ledger.transaction() as tx:
        (claimed,) = turns.read_locked(tx, turns.claim_judging(tx, 4, 9.0, 60.0))
        assert claimed.id == row.id and claimed.messages == LONG["messages"]
    assert not [one for one in statements if "FOR UPDATE" in one and "FROM pieces" in one]


# ---- Versions of the policy ----


@pytest.fixture
def store(tmp_path: Path) -> PolicyStore:
    return PolicyStore(tmp_path / "policies")


def add_version(ledger: Ledger, store: PolicyStore, version: int, parent: int) -> Path:
    (store.begin(version) / "adapter_model.safetensors").write_bytes(bytes(64))
    folder = store.finish(version)
    with ledger.transaction() as tx:
        path = f"{store.root.name}/{folder.name}"
        policies.add(tx, Policy(version=version, parent=parent, path=path, sha256=store.sha256(version)))
    return folder


def extend(ledger: Ledger, store: PolicyStore, count: int) -> int:
    """Let so many further versions serve, one after the other; returns the last."""
    with ledger.reader() as tx:
        parent = policies.serving(tx).version
        first = policies.next_version(tx)
    for version in range(first, first + count):
        add_version(ledger, store, version, parent)
        with ledger.transaction() as tx:
            policies.promote(tx, version)
        parent = version
    return parent


def check_serving(ledger: Ledger, store: PolicyStore) -> Policy:
    with ledger.reader() as tx:
        serving = policies.serving(tx)
    assert serving.path is not None and store.folder(serving.version).is_dir()
    return serving


def back(ledger: Ledger, store: PolicyStore, to: int) -> None:
    """Roll back, unless the version was pruned before."""
    try:
        rollback(ledger, to, store=store)
    except UserError as error:
        if isinstance(error, LedgerWriteError):
            raise
        assert "was pruned" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["prune", "rollback"])
def test_pruning_beside_a_rollback_keeps_what_serves(
    ledger: Ledger, rival: Ledger, store: PolicyStore, first: str
) -> None:
    for moment in itertools.count():
        newest = extend(ledger, store, 4)

        def prune(at: Ledger, current: int = newest) -> None:
            prune_versions(at, store, keep=2, current=current, max_staleness=0)

        acts = [prune, lambda at, to=newest - 2: back(at, store, to)]
        one, other = acts if first == "prune" else reversed(acts)
        happened = interfere(ledger, moment, lambda: one(ledger), lambda: other(rival))  # noqa: B023
        check_serving(ledger, store)
        if not happened:
            break


@pytest.mark.slow
def test_a_version_pinned_beside_a_pruning_keeps_its_files(ledger: Ledger, rival: Ledger, store: PolicyStore) -> None:
    for moment in itertools.count():
        newest = extend(ledger, store, 4)
        pinned: list[int] = []

        def pin(version: int = newest - 2, pinned: list[int] = pinned) -> None:
            try:
                pin_version(rival, version, True)
            except UserError as error:
                if isinstance(error, LedgerWriteError):
                    raise
            else:
                pinned.append(version)

        happened = interfere(
            ledger,
            moment,
            lambda current=newest: prune_versions(ledger, store, keep=2, current=current, max_staleness=0),  # type: ignore[misc]
            pin,
        )
        assert all(store.folder(version).is_dir() for version in pinned)
        if not happened:
            break


class Open:
    def check(self, candidate: Candidate) -> GateReport:
        return GateReport(True, metrics={"kl_to_base": 0.0})


@pytest.mark.slow
def test_publishing_beside_a_rollback_does_not_undo_it(ledger: Ledger, rival: Ledger, store: PolicyStore) -> None:
    publisher = Publisher(ledger, store, gate=Open())
    extend(ledger, store, 2)
    for moment in itertools.count():
        newest = extend(ledger, store, 1)
        folder = add_version(ledger, store, newest + 1, newest)
        happened = interfere(
            ledger,
            moment,
            lambda version=newest + 1, at=folder: publisher.publish(Candidate(version, at)),  # type: ignore[misc]
            lambda: rollback(rival, 1, store=store),
        )
        assert check_serving(ledger, store).version == (1 if happened else newest + 1)
        if not happened:
            break


@pytest.mark.parametrize("rivalry", ["rollback", "prune", "publish"])
def test_a_rejection_beside_another_change_of_versions(
    ledger: Ledger, rival: Ledger, store: PolicyStore, rivalry: str
) -> None:
    for moment in itertools.count():
        damaged = extend(ledger, store, 2 if rivalry == "publish" else 3)
        if rivalry == "publish":
            damaged += 1
            add_version(ledger, store, damaged, damaged - 1)
        candidate = Candidate(damaged, store.folder(damaged))
        acts: dict[str, Callable[[], object]] = {
            "rollback": lambda to=damaged - 2: rollback(rival, to, store=store),  # type: ignore[misc]
            "prune": lambda now=damaged: prune_versions(rival, store, keep=1, current=now, max_staleness=0),  # type: ignore[misc]
            "publish": lambda waiting=candidate: Publisher(rival, store, gate=Open()).publish(waiting),  # type: ignore[misc]
        }
        reject = lambda version=damaged: reject_damaged(ledger, store, version, "changed")  # noqa: E731
        happened = interfere(ledger, moment, reject, acts[rivalry])
        with ledger.reader() as tx:
            row, serving = policies.get(tx, damaged), policies.serving(tx)
        assert row is not None and row.state == "rejected"
        assert serving.version == 0 or store.folder(serving.version).is_dir()
        assert serving.version == damaged - 2 or not (happened and rivalry == "rollback")
        if not happened:
            break
