"""Real deadlocks: whoever PostgreSQL ends for the sake of the other does its work again."""

from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from ledger_rows import turn
from sqlalchemy import event, select, text

from clawrl_trl.ledger import Ledger, LedgerWriter, history, turns
from clawrl_trl.ledger.schema import Session, Turn

# Only collected where there is a server, see conftest.py: SQLite has one writer at a time, and no circle to be in.
pytestmark = pytest.mark.parametrize("url", ["postgresql"], indirect=True)


def test_conversion_goes_on_after_a_deadlock(ledger: Ledger, home: str) -> None:
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


async def test_the_victim_of_a_real_deadlock_is_written(ledger: Ledger, home: str) -> None:
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
