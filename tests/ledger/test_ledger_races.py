"""Two processes at one ledger: whatever comes between two statements of a transaction, nothing is lost.

The second process comes before each statement of the first in turn. Where the first one holds what it needs, it gives
up and tries again after the first one's commit, as one that waits would.
"""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ledger_rows import session, turn
from sqlalchemy import event, func, make_url, select, text, update

from clawrl_trl.ledger import Ledger, episodes, history, turns
from clawrl_trl.ledger.errors import LedgerWriteError
from clawrl_trl.ledger.schema import Piece, Turn

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
    if ledger.path is not None:
        pytest.skip("who waits on SQLite has read nothing yet")
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
    with ledger.reader() as tx:
        return bool(tx.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")))


def test_no_statement_locks_a_row_and_puts_its_conversation_together(ledger: Ledger) -> None:
    statements: list[str] = []
    with ledger.transaction() as tx:
        row = turns.add(tx, turn(session(tx).id, **LONG))
        answer(tx, row.id)
    event.listen(ledger.writer_engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with ledger.transaction() as tx:
        claimed = turns.claim_judging(tx, 4, 9.0, 60.0)
        assert [one.id for one in claimed] == [row.id] and claimed[0].messages == LONG["messages"]
    assert not [one for one in statements if "FOR UPDATE" in one and "FROM pieces" in one]
