"""Errors of a ledger, in words a user can act on.

The database speaks in error codes; `explain` turns the ones that come from the machine (a full disk, a lock
that never opens, a damaged file) into one line with the remedy. Codes that only a programmer can cause are
left alone and propagate as they are.
"""

import sqlite3
from collections.abc import Sequence

from sqlalchemy.exc import DBAPIError

from clawrl_trl.errors import UserError


class LedgerError(UserError):
    """The ledger can't be opened or read; the text is one line with the remedy."""


class LedgerWriteError(LedgerError):
    """A transaction was not committed for a reason outside the program; nothing of it was kept."""


class SharedName(UserError):
    """A name that several owners gave a session of theirs.

    Args:
        name (`str`): The name.
        ids (`Sequence[str]`): The ids of those sessions in the ledger.
    """

    def __init__(self, name: str, ids: Sequence[str]) -> None:
        super().__init__(f"{len(ids)} clients have a session {name!r}: name one by its id, {', '.join(ids)}.")


class AmbiguousName(UserError):
    """A prefix that several sessions share.

    Args:
        name (`str`): The prefix.
        candidates (`Sequence[str]`): The sessions that begin so.
    """

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        shown = ", ".join(candidates[:4]) + (", …" if len(candidates) > 4 else "")
        super().__init__(f"{len(candidates)} sessions begin with {name!r} ({shown}): give some more of it.")


class AlreadyTrained(Exception):
    """A batch was committed before into another policy version, or is not leased any more."""


class DigestMismatch(Exception):
    """A leased batch no longer has the content it was leased with."""


_LOCKED = "stays locked by another process: stop the one that holds it (fuser {where}), then try again"

_SQLITE = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_FULL: "can't grow, its disk is full: free some space, then try again",
    sqlite3.SQLITE_IOERR: "meets a failing or full disk: free some space, or check the disk",
    sqlite3.SQLITE_CORRUPT: "is damaged: restore a backup, or move it away to start an empty ledger",
    sqlite3.SQLITE_NOTADB: "is not a ledger (no SQLite database): move it away, or choose another run folder",
    sqlite3.SQLITE_CANTOPEN: "can't be opened: check that its folder exists and may be written",
    sqlite3.SQLITE_READONLY: "may not be written: check the permissions of the file and of its folder",
    sqlite3.SQLITE_PERM: "may not be opened: check the permissions of the file and of its folder",
}

_POSTGRESQL = {
    "53100": "can't grow, the server's disk is full: free some space, then try again",
    "53300": "has no connection left: raise max_connections or stop other clients",
    "25P03": "gave up a transaction that stood still for too long: try again",
    "55P03": "stays locked by another client: stop the client that holds it, then try again",
    "57P03": "is not ready: wait until the database server has started",
    "42501": "may not be written by this user: grant it the rights on the database",
}

_REPEATABLE = frozenset({"40001", "40P01"})
"""PostgreSQL ended a transaction for the sake of another one: the same again may succeed."""


def is_repeatable(error: BaseException) -> bool:
    """Return whether a transaction that raised this may succeed when it is repeated at once, as after a deadlock."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in _REPEATABLE


def explain(error: BaseException, where: str) -> str | None:
    """One line with the remedy when the machine, not the program, is at fault; else `None`.

    An error that came up while another was being handled is explained by that one: SQLite undoes a transaction
    by itself on some full disks, and then complains that there is nothing left to undo.

    Args:
        error (`BaseException`): What the database raised, wrapped by SQLAlchemy or not.
        where (`str`): The ledger's file or URL (without a password), named in the line.
    """
    cause: BaseException | None = error
    while cause is not None:
        line = _explain_one(cause, where)
        if line is not None:
            return line
        cause = cause.__cause__ or cause.__context__
    return None


def explain_rollback(where: str) -> str:
    """The line for a transaction that the database undid by itself."""
    return f"The ledger {where} gave up a transaction: check the disk and its free space, then try again."


def _explain_one(error: BaseException, where: str) -> str | None:
    origin = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(origin, "sqlite_errorcode", None)
    if code is not None:
        # The low byte is the primary code; the rest tells variants of it apart, such as SQLITE_IOERR_FSYNC.
        remedy = _SQLITE.get(code & 0xFF)
        return f"The ledger {where} {remedy.format(where=where)}." if remedy else None
    state = getattr(origin, "sqlstate", None)
    if state in _POSTGRESQL:
        return f"The ledger {where} {_POSTGRESQL[state]}."
    if isinstance(error, DBAPIError) and (error.connection_invalidated or _unreachable(origin)):
        return f"The ledger {where} can't be reached: check that the database server runs and the URL is right."
    return None


def _unreachable(origin: BaseException | None) -> bool:
    # Compared by name: psycopg is an optional dependency, and may not be installed.
    kinds = [kind.__name__ for kind in type(origin).__mro__ if kind.__module__.startswith("psycopg")]
    if "OperationalError" not in kinds:
        return False
    # A server that gave a code has been reached, unless the code says that it ends or lost the connection.
    state = getattr(origin, "sqlstate", None)
    return kinds[0] == "OperationalError" or state is None or state.startswith(("08", "57P0"))
