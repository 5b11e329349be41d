"""Group commit: writes of an asyncio program, many to one fsync.

Requests that end at the same time would each wait for the disk in turn. The writer's one thread takes
everything that is waiting, runs each function in a savepoint of one transaction, and commits once; a caller
resumes only after that commit, so what it tells its client is on the disk. A function that raises undoes its
own work and nothing else; one that PostgreSQL ended for the sake of another process runs once more.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from clawrl_trl.ledger.errors import LedgerWriteError, explain, explain_rollback, is_repeatable
from clawrl_trl.ledger.store import Ledger, in_transaction

T = TypeVar("T")


@dataclass
class _Job(Generic[T]):
    function: Callable[[Session], T]
    future: "asyncio.Future[T]"
    loop: asyncio.AbstractEventLoop
    slots: asyncio.Semaphore

    def resolve(self, value: T | None, error: BaseException | None) -> None:
        """Wake the caller in its own loop; one that was cancelled or whose loop is gone is left alone."""

        def wake() -> None:
            self.slots.release()
            if self.future.done():
                return
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(value)  # type: ignore[arg-type]

        # A loop that is closed raises; its callers are gone.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(wake)


class LedgerWriter:
    """The writing thread of one event loop.

    Args:
        ledger (`Ledger`): Where to write.
        max_queue (`int`, defaults to 10000): Writes that may be waiting; further callers wait until there are fewer.
        max_group (`int`, defaults to 256): Writes that share one commit, at most.

    ```python
    writer = LedgerWriter(ledger)
    turn = await writer.run(lambda tx: turns.add(tx, turn))   # on the disk from here on
    writer.close()
    ```
    """

    def __init__(self, ledger: Ledger, max_queue: int = 10_000, max_group: int = 256) -> None:
        self._ledger = ledger
        self._slots = asyncio.Semaphore(max_queue)
        self._max_group = max_group
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="ledger-writer", daemon=True)
        self._thread.start()

    async def run(self, function: Callable[[Session], T]) -> T:
        """Run `function` in a transaction, and return its result once that is committed.

        It runs twice after a deadlock, so it changes nothing but the ledger. A caller that is cancelled meanwhile
        does not undo the write.

        Raises:
            LedgerWriteError: If the transaction was not committed (full disk, lock, damage), or the writer is
                closed.
            Exception: What `function` raised; its work was undone.
        """
        # Awaited and not a queue with a bound, whose put would block the event loop.
        await self._slots.acquire()
        # Asked after the wait: the writer may have been closed while this caller waited for its turn.
        if self._closed:
            self._slots.release()
            raise LedgerWriteError("The ledger is closed: the program is shutting down.")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(function, future, loop, self._slots))
        return await future

    @property
    def waiting(self) -> int:
        """Number of writes that are queued and not begun."""
        return self._jobs.qsize()

    def close(self) -> None:
        """Finish what is waiting, then stop. Blocks until it is on the disk."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        is_open = True
        while is_open:
            group: list[_Job[Any]] = []
            waiting = self._jobs.get()
            while waiting is not None:
                group.append(waiting)
                # Nobody is waited for: a group is what came while the last one was written.
                if len(group) == self._max_group or self._jobs.empty():
                    break
                waiting = self._jobs.get()
            is_open = waiting is not None
            if group:
                self._commit(group)

    def _commit(self, group: list[_Job[Any]]) -> None:
        outcomes = self._attempt(group)
        # Once more, without the locks of the others: those were part of a deadlock, and are given up by now.
        ended = [place for place, (_, error) in enumerate(outcomes) if error is not None and is_repeatable(error)]
        if ended:
            for place, outcome in zip(ended, self._attempt([group[place] for place in ended]), strict=True):
                outcomes[place] = outcome
        for job, (value, failure) in zip(group, outcomes, strict=True):
            job.resolve(value, failure)

    def _attempt(self, group: list[_Job[Any]]) -> list[tuple[Any, BaseException | None]]:
        """Run a group in one transaction; the result or the error of each."""
        try:
            with self._ledger.writing(), self._ledger.writer_engine.begin() as connection:
                return [self._run(connection, job) for job in group]
        except Exception as error:  # noqa: BLE001 - whatever it is, every caller must hear of it
            return [(None, error)] * len(group)

    def _run(self, connection: Connection, job: _Job[Any]) -> tuple[Any, BaseException | None]:
        """Run one function in a savepoint; an error of the machine, not of the function, fails the group."""
        try:
            with (
                Session(connection, join_transaction_mode="create_savepoint", expire_on_commit=False) as tx,
                tx.begin(),
            ):
                return job.function(tx), None
        except Exception as error:
            # SQLite has undone the whole group: no other function's work may be called committed.
            if not in_transaction(connection):
                where = self._ledger.where
                raise LedgerWriteError(explain(error, where) or explain_rollback(where)) from error
            if explain(error, self._ledger.where):
                raise
            return None, error
