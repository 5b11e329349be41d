"""Migrations of the ledger's schema; only `ledger.store` uses them.

Alembic runs inside the process that opens a ledger; there is no `alembic.ini`. Processes that open the same
new ledger at once wait for one of them to make it. Imported only when there is something to migrate: Alembic
is slow to import and most openings need none of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.script.revision import ResolutionError
from alembic.util import CommandError
from filelock import FileLock, Timeout
from sqlalchemy import Connection, event, inspect, text

from clawrl_trl.errors import UserError
from clawrl_trl.ledger import schema
from clawrl_trl.run import PRIVATE_FILE, make_private

if TYPE_CHECKING:
    from clawrl_trl.ledger.store import Ledger

ADVISORY_LOCK = 0x636C6177
"""Key of the PostgreSQL advisory lock that migrations hold."""


def make_configuration() -> Config:
    """Make Alembic's configuration: where the scripts are, and nothing else."""
    config = Config()
    # Alembic's options are read with %-interpolation, and a folder's name may hold a %.
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


def upgrade(ledger: "Ledger") -> None:
    """Bring a ledger's schema to the newest version.

    Raises:
        UserError: If a newer version or another program wrote it, or another process keeps the lock.
        OSError: If its folder can't be written.
    """
    with _hold_lock(ledger):
        # Read again under the lock: another process may have set it up meanwhile.
        current = ledger.revision()
        if current == schema.REVISION:
            return
        _refuse_foreign(ledger, current)
        if ledger.path is not None:
            ledger.path.touch(mode=PRIVATE_FILE)  # SQLite gives its log the modes of the file
            _enable_write_ahead_log(ledger)
        with _suspend_foreign_keys(ledger), ledger.writer_engine.begin() as connection:
            if ledger.path is None:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
            _run(connection)
            if ledger.path is not None and connection.exec_driver_sql("PRAGMA foreign_key_check").first():
                raise UserError(f"The ledger {ledger.where} is damaged, rows of it name rows that are not there.")


@contextmanager
def _suspend_foreign_keys(ledger: "Ledger") -> Iterator[None]:
    """Let a table be replaced by a copy of itself on SQLite, which takes the old one for deleted rows.

    Only connections made inside the block are told; none made before may be used in it.
    """

    def suspend(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA foreign_keys=OFF")

    if ledger.path is None:
        yield
        return
    # By new connections, for the pragma has no effect inside a transaction.
    ledger.writer_engine.dispose()
    event.listen(ledger.writer_engine, "connect", suspend)
    try:
        yield
    finally:
        event.remove(ledger.writer_engine, "connect", suspend)
        ledger.writer_engine.dispose()


def _run(connection: Connection) -> None:
    config = make_configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _refuse_foreign(ledger: "Ledger", current: str | None) -> None:
    if current is None:
        if ledger.path is not None and ledger.path.exists() and _list_tables(ledger):
            raise UserError(
                f"{ledger.where} is another program's database: move it away, or choose another run folder."
            )
        return
    try:
        ScriptDirectory.from_config(make_configuration()).get_revision(current)
    except (ResolutionError, CommandError):
        raise UserError(
            f"The ledger {ledger.where} was written by a newer clawrl-trl (schema {current}, this one knows"
            f" {schema.REVISION}): upgrade clawrl-trl, or choose another run folder."
        ) from None


def _list_tables(ledger: "Ledger") -> list[str]:
    with ledger.reader_engine.connect() as connection:
        return inspect(connection).get_table_names()


def _enable_write_ahead_log(ledger: "Ledger") -> None:
    with ledger.writer_engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        # On the bare driver: the mode can't be changed inside a transaction, which SQLAlchemy would begin.
        driver.execute("PRAGMA journal_mode=WAL").fetchall()


@contextmanager
def _hold_lock(ledger: "Ledger") -> Iterator[None]:
    # On PostgreSQL the migration's own transaction takes an advisory lock.
    if ledger.path is None:
        yield
        return
    try:
        make_private(ledger.path.parent)
        with FileLock(f"{ledger.path}.lock", timeout=ledger.busy_timeout_s, mode=PRIVATE_FILE):
            yield
    except Timeout:
        raise UserError(
            f"The ledger {ledger.where} stays locked while another process sets it up: stop that one, try again."
        ) from None
