"""Opening a ledger, and its transactions.

A ledger is a database that several processes share and any of them may leave by `kill -9`. A `Ledger` holds
the connections of one process. A writing transaction takes the write lock at its first statement, so what it
reads is what it changes; a reader sees one snapshot and blocks nobody. What is particular to SQLite (WAL mode,
pragmas, locks) is here and in the migrations, so that the rest runs on PostgreSQL as it is.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.orm import Session, sessionmaker

from clawrl_trl.errors import UserError
from clawrl_trl.ledger import schema
from clawrl_trl.ledger.database_url import strip_password
from clawrl_trl.ledger.errors import LedgerError, LedgerWriteError, explain, explain_rollback
from clawrl_trl.run import take_from_others

BUSY_TIMEOUT_S = 10.0
"""How long a transaction waits for another process to give up the write lock, seconds."""

IDLE_TIMEOUT_S = 60.0
"""How long a writing transaction may stand still before PostgreSQL ends it, with the locks it holds, seconds."""

_CONNECTION_BOUNDS = {
    **{
        "connect_timeout": 10,
        "keepalives": 1,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
    },
    "tcp_user_timeout": 30_000,
}
"""Bounds of libpq on a PostgreSQL server that does not answer: to connect, idle and, in milliseconds, under way."""

CHECKPOINT_TRIES = 10
CHECKPOINT_WAIT_S = 0.2
"""How long a try to clear the log waits for other processes, and holds them up, seconds."""


class Ledger:
    """One process's way to the ledger. Made by `Ledger.open`; threads may share it.

    ```python
    ledger = Ledger.open("runs/live/ledger.db")
    with ledger.transaction() as tx:
        turns.add(tx, turn)
    with ledger.reader() as tx:
        print(samples.counts(tx))
    ledger.close()
    ```
    """

    def __init__(self, url: URL, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self.url = url
        self.busy_timeout_s = busy_timeout_s
        self.writer_engine = _create_engine(url, busy_timeout_s, write=True)
        self.reader_engine = _create_engine(url, busy_timeout_s, write=False)
        self._file: tuple[int, int] | None = None
        self._write = sessionmaker(self.writer_engine, expire_on_commit=False)
        self._read = sessionmaker(self.reader_engine, expire_on_commit=False)

    @classmethod
    def open(
        cls, url_or_path: str | Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S, untouched: bool = False
    ) -> "Ledger":
        """Open a ledger, creating it or bringing its schema up to date when needed.

        Opening one that is up to date takes no lock. Several processes may open a new one at once.

        Args:
            url_or_path (`str` or `Path`): A SQLite file, or a database URL such as `sqlite:////data/ledger.db`
                or `postgresql+psycopg://user@host/name`.
            busy_timeout_s (`float`, defaults to 10): How long to wait for another process's lock, seconds.
            untouched (`bool`, defaults to `False`): Open it as it is, and refuse one that is absent or not up to date.

        Raises:
            UserError: If the ledger is damaged, no ledger, locked for too long, written by a newer version,
                or its folder or disk can't take it; one line with the remedy.
        """
        url = _parse_url(url_or_path)
        ledger = cls(url, busy_timeout_s=busy_timeout_s)
        try:
            ledger._bring_up_to_date(untouched)
            ledger._remember_file()
        except BaseException:
            ledger.close()
            raise
        return ledger

    @property
    def where(self) -> str:
        """The ledger's file, or its URL without the password."""
        if self.url.get_backend_name() == "sqlite":
            return str(self.url.database)
        return str(strip_password(self.url.render_as_string(hide_password=False)))

    @property
    def path(self) -> Path | None:
        """The ledger's file, or `None` when it is on a server."""
        return Path(str(self.url.database)) if self.url.get_backend_name() == "sqlite" else None

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A writing transaction: committed at the end of the block, rolled back if it raises.

        Objects stay usable after it.

        Raises:
            LedgerWriteError: If the disk is full, the ledger stays locked or is damaged; nothing was kept.
        """
        with self.writing(), self._write.begin() as tx:
            yield tx

    @contextmanager
    def reader(self) -> Iterator[Session]:
        """A read-only transaction on one snapshot; objects stay usable after it.

        Raises:
            LedgerError: If the ledger can't be read.
        """
        self._check_file(LedgerError)
        try:
            with self._read() as tx:
                yield tx
        except DBAPIError as error:
            self._check_file(LedgerError)
            self._raise_explained(error, LedgerError)
            raise

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn what the machine does to a write inside the block into `LedgerWriteError`."""
        self._check_file(LedgerWriteError)
        try:
            yield
        except DBAPIError as error:
            self._check_file(LedgerWriteError)
            self._raise_explained(error, LedgerWriteError)
            raise

    def _remember_file(self) -> None:
        """Remember which file this is, and close it and its log to other users."""
        if self.path is None:
            return
        status = self.path.stat()
        self._file = status.st_dev, status.st_ino
        for end in ("", "-wal", "-shm"):
            take_from_others(Path(f"{self.path}{end}"))
        # Opened now, while there are files left to open: the first write may come when a server has run out of them.
        connection = self.writer_engine.raw_connection()
        connection.cursor().execute("SELECT count(*) FROM sqlite_master")
        connection.close()
        # At the commit too: a file moved during a transaction would take it along.
        event.listen(self.writer_engine, "commit", lambda connection: self._check_file(LedgerWriteError))

    def _check_file(self, kind: type[LedgerError]) -> None:
        """Refuse to go on in a file that has lost its name: what is written there would be found by nobody.

        Raises:
            LedgerError: Of the given kind, if the file was moved or deleted, or another one is in its place.
        """
        if self.path is None or self._file is None:
            return
        try:
            status = self.path.stat()
        except OSError:
            raise kind(f"The ledger {self.where} was moved or deleted: put it back, or stop the run.") from None
        if (status.st_dev, status.st_ino) != self._file:
            raise kind(
                f"The ledger {self.where} was replaced by another file: put the first one back, or stop the run and "
                "start it again."
            )

    def checkpoint(self) -> bool:
        """Move the write-ahead log into the SQLite file, so that what was deleted is gone from the disk.

        That takes a moment in which nobody reads an older state. It is waited for in short tries, between which
        others may write.

        Returns:
            `bool`: `False` when there was no such moment, and the log still holds what was deleted.
        """
        if self.path is None:
            return True
        for _ in range(CHECKPOINT_TRIES - 1):
            if self._clear_log():
                return True
            time.sleep(CHECKPOINT_WAIT_S)
        return self._clear_log()

    def _clear_log(self) -> bool:
        with self.writing(), self.writer_engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            # While it waits for readers nobody can write, so it waits shortly, and more often.
            driver.execute(f"PRAGMA busy_timeout={int(min(CHECKPOINT_WAIT_S, self.busy_timeout_s) * 1000)}")
            try:
                busy, _, _ = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                driver.execute(f"PRAGMA busy_timeout={int(self.busy_timeout_s * 1000)}")
        return not busy

    def close(self) -> None:
        """Close this process's connections; the ledger may be opened again."""
        self.writer_engine.dispose()
        self.reader_engine.dispose()

    def _raise_explained(self, error: DBAPIError, kind: type[LedgerError]) -> None:
        """Raise the error of that kind in a user's words, if there are any for it."""
        line = explain(error, self.where)
        if line is not None:
            raise kind(line) from error

    def _bring_up_to_date(self, untouched: bool) -> None:
        try:
            if self.revision() != schema.REVISION:
                if untouched:
                    raise UserError(
                        f"{self.where} is no ledger, or an old one: serve its run, or see it with 'clawrl sessions'."
                    )
                # Alembic is slow to import, and most openings need none of it.
                from clawrl_trl.ledger.migrations import upgrade

                upgrade(self)
        except DBAPIError as error:
            self._raise_explained(error, LedgerError)
            raise
        except OSError as error:
            raise UserError(
                f"The ledger {self.where} can't be written ({error.strerror}): check its folder and its disk."
            ) from error

    def revision(self) -> str | None:
        """The schema version the database is at; `None` when it is empty or absent."""
        if self.path is not None and not self.path.exists():
            return None
        with self.reader_engine.connect() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return None
            revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
            return revision


def in_transaction(connection: Connection) -> bool:
    """Return whether the database still holds the open transaction; SQLite gives it up on some full disks."""
    return bool(getattr(connection.connection.driver_connection, "in_transaction", True))


def _parse_url(url_or_path: str | Path) -> URL:
    if isinstance(url_or_path, Path) or "://" not in url_or_path:
        return URL.create("sqlite", database=str(Path(url_or_path).expanduser().absolute()))
    try:
        url = make_url(url_or_path)
        url.get_dialect()
    except (ArgumentError, NoSuchModuleError, ImportError, ValueError) as error:
        reason = "it can't be read" if isinstance(error, ValueError) or type(error) is ArgumentError else str(error)
        raise UserError(
            f"The ledger's URL is not usable ({reason}): use a file, sqlite:///FILE or postgresql+psycopg://..."
        ) from None
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise UserError("A ledger in memory is lost with its process: name a file, sqlite:///FILE.")
        url = URL.create("sqlite", database=str(Path(url.database).expanduser().absolute()))
    return url


def _create_engine(url: URL, busy_timeout_s: float, *, write: bool) -> Engine:
    if url.get_backend_name() == "sqlite":
        return _create_sqlite_engine(url, busy_timeout_s, write=write)
    return _create_server_engine(url, busy_timeout_s, write=write)


def _create_server_engine(url: URL, busy_timeout_s: float, *, write: bool) -> Engine:
    # A reader sees one snapshot: PostgreSQL's default would see every commit in between.
    options: dict[str, Any] = {} if write else {"isolation_level": "REPEATABLE READ"}
    # libpq's words, and not those of other drivers; of what the URL says itself, nothing is overruled.
    has_libpq = url.get_driver_name().startswith("psycopg")
    bounds = {name: value for name, value in _CONNECTION_BOUNDS.items() if has_libpq and name not in url.query}
    try:
        engine = create_engine(url, pool_pre_ping=True, connect_args=bounds, **options)
    except ImportError as error:
        raise UserError(
            f"The driver {url.drivername} is not installed ({error}): pip install 'clawrl-trl[postgresql]'."
        ) from None
    # 0 would mean to wait for ever.
    timeouts = {"lock_timeout": max(1, int(busy_timeout_s * 1000))}
    if write:  # a reader may stand still, for it holds up nobody: files are read and digested beside it
        timeouts["idle_in_transaction_session_timeout"] = int(IDLE_TIMEOUT_S * 1000)

    @event.listens_for(engine, "connect")
    def configure(connection: Any, record: Any) -> None:
        with connection.cursor() as cursor:
            for name, milliseconds in timeouts.items():
                cursor.execute(f"SET {name} = {milliseconds}")
        connection.commit()

    return engine if write else engine.execution_options(postgresql_readonly=True)


def _create_sqlite_engine(url: URL, busy_timeout_s: float, *, write: bool) -> Engine:
    def connect() -> sqlite3.Connection:
        # SQLite would make an empty ledger where one was moved away. Sessions may change threads, one at a time.
        address = Path(str(url.database)).as_uri() + "?mode=rw"
        return sqlite3.connect(address, uri=True, check_same_thread=False)

    # Unbounded, for a full pool raises a time-out that has nothing to do with the database.
    engine = create_engine(url, creator=connect, max_overflow=-1)
    pragmas = (
        f"busy_timeout={int(busy_timeout_s * 1000)}",
        # SQLite checks no foreign key, and cascades no deletion, unless each connection asks for it.
        "foreign_keys=ON",
        # In WAL mode NORMAL, the usual choice, may lose the last commits when the power fails.
        "synchronous=FULL",
        # Else the text of an erased chat stays in free pages of the file.
        "secure_delete=ON",
        "journal_size_limit=67108864",
        "temp_store=MEMORY",
        f"query_only={'OFF' if write else 'ON'}",
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, record: Any) -> None:
        # The driver would begin transactions by itself, and only at the first write: too late to take the lock.
        connection.isolation_level = None
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    @event.listens_for(engine, "commit")
    def commit(connection: Connection) -> None:
        # On a full disk SQLite may have rolled back by itself; a COMMIT would then succeed with nothing in it.
        if not in_transaction(connection):
            raise LedgerWriteError(explain_rollback(str(url.database)))

    return engine
