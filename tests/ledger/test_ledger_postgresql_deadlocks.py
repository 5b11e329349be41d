"""Real deadlocks: whoever PostgreSQL ends for the sake of the other does its work again."""

from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from ledger_rows import turn
from sqlalchemy import event, select, text
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.ledger import Ledger, LedgerWriter, history, turns
from clawrl_trl.ledger.schema import Session, Turn

# Only collected where there is a server, see conftest.py: SQLite has one writer at a time, and no circle to be in.
pytestmark = pytest.mark.parametrize("url", ["postgresql"], indirect=True)


def test_conversion_goes_on_after_a_deadlock(ledger: Ledger, home: str) -> None:
    waiters: list[Future[None]] = []
    with ThreadPoolExecutor(1) as pool, ledger.transaction() as gateway:
        # The other one is to find the circle, and to be the one that is ended.
        gateway.execute(text("SET LOCAL deadlock_timeout = '1h'"))
        gateway.scalar(select(Turn.id).with_for_update())

        @event.listens_for(ledger.writer_engine, "before_cursor_execute")
        def close_circle(connection: Any, cursor: Any, statement: str, *args: object) -> None:
            if statement.startswith("UPDATE turns") and not waiters:
                cursor.execute("SET LOCAL deadlock_timeout = '1ms'")
                waiters.append(_wait_for_session(ledger, pool, gateway, home))

        converted = history.compact(ledger)
        waiters[0].result()
    assert converted == 1


def _wait_for_session(ledger: Ledger, pool: ThreadPoolExecutor, tx: Transaction, home: str) -> Future[None]:
    """Let a transaction ask for a session that another has, in a thread; returns when it waits."""

    def ask() -> None:
        tx.scalar(select(Session.id).where(Session.id == home).with_for_update())
        tx.commit()

    asked = pool.submit(ask)
    waiting = 0
    while not waiting:
        with ledger.reader() as reader:
            waiting = reader.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted"))
    return asked


async def test_the_victim_of_a_real_deadlock_is_written(ledger: Ledger, home: str) -> None:
    writer, tries = LedgerWriter(ledger), count(1)
    waiters: list[Future[None]] = []
    with ThreadPoolExecutor(1) as pool, ledger.transaction() as judge:
        judge.execute(text("SET LOCAL deadlock_timeout = '1h'"))
        judge.scalar(select(Turn.id).with_for_update())

        def write(tx: Any) -> int:
            number = next(tries)
            tx.execute(text("SET LOCAL deadlock_timeout = '1ms'"))
            added = turns.add(tx, turn(home))
            tx.scalar(select(Session.id).where(Session.id == home).with_for_update())
            if not waiters:
                waiters.append(_wait_for_session(ledger, pool, judge, home))
            tx.scalars(select(Turn.id).where(Turn.id != added.id).with_for_update()).all()
            return number

        assert await writer.run(write) == 2
        waiters[0].result()
    writer.close()
    with ledger.reader() as tx:
        assert len(turns.of_session(tx, home)) == 2
