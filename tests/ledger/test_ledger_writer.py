"""Group commits: one fsync for many, errors to whom they belong, nothing resolved before it is on the disk."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from ledger_rows import session, turn
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError
from test_ledger_open import held, limit

from clawrl_trl.ledger import Ledger, LedgerWriteError, LedgerWriter, turns
from clawrl_trl.ledger.schema import Session


@pytest.fixture
def writer(ledger: Ledger) -> Iterator[LedgerWriter]:
    opened = LedgerWriter(ledger)
    yield opened
    opened.close()


class Commits:
    """Counts the commits of a ledger, and can hold the writer's thread inside a function."""

    def __init__(self, ledger: Ledger) -> None:
        self.count = 0
        self.entered, self.go_on = threading.Event(), threading.Event()
        event.listen(ledger.writer_engine, "commit", self._count)

    def _count(self, connection: Any) -> None:
        self.count += 1

    def block(self, tx: Any) -> None:
        self.entered.set()
        assert self.go_on.wait(30)


async def blocked(writer: LedgerWriter, commits: Commits) -> "asyncio.Task[None]":
    task = asyncio.create_task(writer.run(commits.block))
    await asyncio.to_thread(commits.entered.wait, 30)
    return task


async def test_a_result_comes_back_after_its_commit(writer: LedgerWriter, ledger: Ledger) -> None:
    home = await writer.run(lambda tx: session(tx, "chat"))
    assert home.external_id == "chat"
    with ledger.reader() as tx:
        assert turns.find_session(tx, "chat") is not None


async def test_what_waits_together_is_committed_together(writer: LedgerWriter, ledger: Ledger) -> None:
    home = await writer.run(session)
    commits = Commits(ledger)
    first = await blocked(writer, commits)
    rows = [turn(home.id) for _ in range(100)]
    others = [asyncio.create_task(writer.run(lambda tx, row=row: turns.add(tx, row))) for row in rows]
    await asyncio.sleep(0)
    commits.go_on.set()
    added = await asyncio.gather(*others)
    await first
    assert commits.count == 2
    assert [row.seq for row in added] == sorted(row.seq for row in added)
    with ledger.reader() as tx:
        assert len(turns.of_session(tx, home.id)) == 100


async def test_a_function_that_raises_undoes_its_own_work_alone(writer: LedgerWriter, ledger: Ledger) -> None:
    commits = Commits(ledger)
    first = await blocked(writer, commits)

    def fails(tx: Any) -> None:
        session(tx, "undone")
        tx.flush()
        raise LookupError("mine")

    def breaks_a_rule(tx: Any) -> None:
        session(tx, "undone too")
        tx.flush()
        turns.add(tx, turn("session_unknown"))

    tasks = [asyncio.create_task(writer.run(one)) for one in (fails, session, breaks_a_rule, session)]
    await asyncio.sleep(0)
    commits.go_on.set()
    results = await asyncio.gather(first, *tasks, return_exceptions=True)
    assert [type(one) for one in results] == [type(None), LookupError, Session, IntegrityError, Session]
    with ledger.reader() as tx:
        assert {row["session_id"] for row in turns.sessions(tx)} == {results[2].id, results[4].id}  # type: ignore[union-attr]


async def test_when_the_commit_fails_everybody_hears_of_it(writer: LedgerWriter, ledger: Ledger) -> None:
    commits = Commits(ledger)
    first = await blocked(writer, commits)
    tasks = [asyncio.create_task(writer.run(session)) for _ in range(3)]
    await asyncio.sleep(0)
    refusal = LedgerWriteError("The disk said no.")

    def refuse(connection: Any) -> None:
        raise refusal

    event.listen(ledger.writer_engine, "commit", refuse)
    commits.go_on.set()
    results = await asyncio.gather(first, *tasks, return_exceptions=True)
    assert results == [refusal] * 4
    event.remove(ledger.writer_engine, "commit", refuse)
    await writer.run(session)
    with ledger.reader() as tx:
        assert len(turns.sessions(tx)) == 1


async def test_a_full_disk_fails_the_group_and_the_writer_goes_on(sqlite_ledger: Ledger) -> None:
    writer = LedgerWriter(sqlite_ledger)
    home = await writer.run(session)
    limit(sqlite_ledger, 20)

    starts = count()

    def add_large(tx: Any) -> Any:
        first = next(starts)  # ids that were there before would take no room
        return turns.add(tx, turn(home.id, prompt_ids=list(range(first, first + 5000))))

    results = await asyncio.gather(*(writer.run(add_large) for _ in range(60)), return_exceptions=True)
    refused = [one for one in results if isinstance(one, BaseException)]
    assert refused and all(isinstance(one, LedgerWriteError) and "disk is full" in str(one) for one in refused)
    limit(sqlite_ledger, 1_000_000)
    await writer.run(add_large)
    writer.close()
    with sqlite_ledger.reader() as tx:
        assert len(turns.of_session(tx, home.id)) == len(results) - len(refused) + 1


async def test_a_transaction_that_sqlite_gave_up_is_not_taken_for_committed(sqlite_ledger: Ledger) -> None:
    """On some full disks SQLite rolls back by itself; what follows must not be written on its own."""
    writer = LedgerWriter(sqlite_ledger)
    commits = Commits(sqlite_ledger)
    first = await blocked(writer, commits)

    def give_up(tx: Any) -> None:
        driver: sqlite3.Connection = tx.connection().connection.driver_connection
        driver.execute("ROLLBACK")
        tx.execute(text("SELECT 1"))
        raise LookupError("after the fact")

    tasks = [asyncio.create_task(writer.run(one)) for one in (session, give_up, session)]
    await asyncio.sleep(0)
    commits.go_on.set()
    await first
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in results] == [LedgerWriteError] * 3
    await writer.run(lambda tx: session(tx, "after"))
    writer.close()
    with sqlite_ledger.reader() as tx:
        assert [row["session_id"] for row in turns.sessions(tx)] == ["after"]


async def test_a_locked_ledger_is_told(sqlite_ledger: Ledger, path: Path) -> None:
    writer = LedgerWriter(Ledger.open(path, busy_timeout_s=0.05))
    with held(path), pytest.raises(LedgerWriteError, match="stays locked"):
        await writer.run(session)
    await writer.run(session)
    writer.close()


async def test_a_cancelled_caller_does_not_stop_the_others(writer: LedgerWriter, ledger: Ledger) -> None:
    commits = Commits(ledger)
    first = await blocked(writer, commits)
    gone = asyncio.create_task(writer.run(lambda tx: session(tx, "gone")))
    stays = asyncio.create_task(writer.run(lambda tx: session(tx, "stays")))
    await asyncio.sleep(0)
    gone.cancel()
    commits.go_on.set()
    assert (await stays).external_id == "stays"
    await first
    assert gone.cancelled()
    with ledger.reader() as tx:
        assert {row["session_id"] for row in turns.sessions(tx)} == {"gone", "stays"}


async def test_callers_wait_for_room(ledger: Ledger) -> None:
    writer = LedgerWriter(ledger, max_queue=3)
    commits = Commits(ledger)
    first = await blocked(writer, commits)
    tasks = [asyncio.create_task(writer.run(session)) for _ in range(10)]
    await asyncio.sleep(0)
    assert writer.waiting == 2
    commits.go_on.set()
    await asyncio.gather(first, *tasks)
    assert writer.waiting == 0
    writer.close()


async def test_close_finishes_what_is_waiting(ledger: Ledger) -> None:
    writer = LedgerWriter(ledger)
    tasks = [asyncio.create_task(writer.run(session)) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.to_thread(writer.close)
    assert len(await asyncio.gather(*tasks)) == 50
    with pytest.raises(LedgerWriteError, match="shutting down"):
        await writer.run(session)
    writer.close()


def test_a_loop_that_is_gone_does_not_stop_the_writer(ledger: Ledger) -> None:
    writer = LedgerWriter(ledger)
    commits = Commits(ledger)

    async def leave() -> None:
        await blocked(writer, commits)

    asyncio.run(leave())
    commits.go_on.set()
    writer.close()
