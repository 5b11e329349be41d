"""What the database ended for the sake of another process is repeated, and not for ever."""

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any
from unittest.mock import Mock

import pytest
from ledger_rows import session, turn
from sqlalchemy import event, select, text
from sqlalchemy.exc import OperationalError

from clawrl_trl.ledger import Ledger, LedgerWriter, history, turns
from clawrl_trl.ledger.schema import Session, Turn


@pytest.fixture
def home(ledger: Ledger) -> str:
    """A session with one turn of a release without pieces."""
    with ledger.transaction() as tx:
        name = session(tx).id
        tx.add(turn(name))
    return name


def test_conversion_goes_on_after_a_deadlock(ledger: Ledger, home: str) -> None:
    if ledger.path is not None:  # SQLite has one writer at a time: there is no circle to be in
        assert history.compact(ledger) == 1
        return
    waiters: list[Future[Any]] = []
    with ThreadPoolExecutor(1) as pool, ledger.transaction() as gateway:
        # The other one is to find the circle, and to be the one that is ended.
        gateway.execute(text("SET LOCAL deadlock_timeout = '1h'"))
        gateway.scalar(select(Turn.id).with_for_update())

        def hold_session() -> None:
            gateway.scalar(select(Session.id).where(Session.id == home).with_for_update())
            gateway.commit()

        @event.listens_for(ledger.writer_engine, "before_cursor_execute")
        def close_circle(connection: Any, cursor: Any, statement: str, *args: object) -> None:
            if statement.startswith("UPDATE turns") and not waiters:
                cursor.execute("SET LOCAL deadlock_timeout = '1ms'")
                waiters.append(pool.submit(hold_session))
                while not _somebody_waits(ledger):
                    pass

        converted = history.compact(ledger)
        waiters[0].result()
    assert converted == 1


def _somebody_waits(ledger: Ledger) -> bool:
    with ledger.reader() as tx:
        return bool(tx.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")))


@pytest.mark.parametrize(("code", "tries"), [("40P01", history.TRIES), ("40001", history.TRIES), ("23505", 1)])
def test_only_so_many_tries(ledger: Ledger, home: str, code: str, tries: int) -> None:
    fail = Mock(side_effect=_make_failure(code))
    event.listen(ledger.writer_engine, "before_cursor_execute", fail)
    with pytest.raises(OperationalError, match="no luck"):
        history.compact(ledger)
    assert fail.call_count == tries


def _make_failure(code: str) -> OperationalError:
    failure = Exception("no luck")
    failure.sqlstate = code  # type: ignore[attr-defined]
    return OperationalError("SELECT", {}, failure)


@pytest.mark.parametrize(("fails", "is_kept"), [(1, True), (2, False)])
async def test_a_sampled_turn_outlives_a_deadlock(ledger: Ledger, home: str, fails: int, is_kept: bool) -> None:
    writer, starts = LedgerWriter(ledger), count(1)
    sampled, beside = turn(home), turn(home)

    def add(tx: Any) -> Turn:
        added = turns.add(tx, sampled)
        if next(starts) <= fails:
            raise _make_failure("40P01")
        return added

    jobs = (writer.run(lambda tx: turns.add(tx, beside)), writer.run(add))
    results = await asyncio.gather(*jobs, return_exceptions=True)
    writer.close()
    assert results[0] is beside and (results[1] is sampled) == is_kept
    with ledger.reader() as tx:
        ids = {each.id for each in turns.of_session(tx, home)}
    assert beside.id in ids and (sampled.id in ids) == is_kept


async def test_the_victim_of_a_real_deadlock_is_written(ledger: Ledger, home: str) -> None:
    if ledger.path is not None:
        return
    writer, tries = LedgerWriter(ledger), count(1)
    waiters: list[Future[Any]] = []
    with ThreadPoolExecutor(1) as pool, ledger.transaction() as judge:
        judge.execute(text("SET LOCAL deadlock_timeout = '1h'"))
        judge.scalar(select(Turn.id).with_for_update())

        def hold_session() -> None:
            judge.scalar(select(Session.id).where(Session.id == home).with_for_update())
            judge.commit()

        def write(tx: Any) -> int:
            number = next(tries)
            tx.execute(text("SET LOCAL deadlock_timeout = '1ms'"))
            added = turns.add(tx, turn(home))
            tx.scalar(select(Session.id).where(Session.id == home).with_for_update())
            if not waiters:
                waiters.append(pool.submit(hold_session))
                while not _somebody_waits(ledger):
                    pass
            tx.scalars(select(Turn.id).where(Turn.id != added.id).with_for_update()).all()
            return number

        assert await writer.run(write) == 2
        waiters[0].result()
    writer.close()
    with ledger.reader() as tx:
        assert len(turns.of_session(tx, home)) == 2
