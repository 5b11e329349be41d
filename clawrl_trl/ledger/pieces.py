"""Pieces: the elements of long sequences, stored once a session instead of once a turn.

Each turn of a conversation repeats what was said before it, as messages and as token ids. Such a sequence is a chain
of pieces: a piece holds one message (or one chunk of ids) and the key of the piece before it, and its key is a digest
of both, so that turns which begin alike share pieces without being compared. The column holds the key of the last
piece. Its whole value is put together by the database when the column is selected; a value written before there were
pieces is read as it is. Row and pieces are of one snapshot, but not in a statement that locks: PostgreSQL reads a row
that it waited for anew, and the pieces as they were before. So a row is locked first, and read by the next statement.
"""

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, LargeBinary
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from clawrl_trl.ledger.errors import LedgerError
from clawrl_trl.messages import Json

CHUNK = 128
"""Token ids in a piece."""
KEY_LENGTH = 24
MARK = b"@"
"""First byte of a reference: of 25 bytes with its key, which no array of ids has, and zlib begins with another."""


class ChainedList(list[Json]):
    """A list whose elements are stored as pieces up to `leaf`, the key of the last one."""

    leaf: str = ""


class ChainedIds(np.ndarray[tuple[int], np.dtype[np.int32]]):
    """Token ids that are stored as pieces up to `leaf`; what is cut out of them is not."""

    leaf: str = ""


def make_keys(session_id: str, contents: Iterable[bytes]) -> list[str]:
    """Make the keys of a chain's pieces, the first one's first; equal beginnings have equal keys within a session."""
    keys: list[str] = []
    for content in contents:
        parent = keys[-1] if keys else ""
        digest = hashlib.sha256(f"{session_id}\0{parent}\0".encode() + content)
        keys.append(digest.hexdigest()[:KEY_LENGTH])
    return keys


def make_reference(leaf: str) -> bytes:
    """The value of a column whose sequence ends with that piece."""
    return MARK + leaf.encode()


def read_reference(value: bytes | None) -> str | None:
    """The key of the last piece that a column's value names; `None` where the value is the sequence itself."""
    is_reference = value is not None and len(value) == KEY_LENGTH + 1 and value[:1] == MARK
    return value[1:].decode() if value is not None and is_reference else None


def split_ids(ids: NDArray[np.int32]) -> list[bytes]:
    """Cut token ids into the contents of pieces."""
    return [ids[start : start + CHUNK].tobytes() for start in range(0, len(ids), CHUNK)]


class WholeValue(FunctionElement[Any]):
    """The value of a column, put together from its pieces where it is a reference.

    As text where it was put together: for each piece its distance from the last, `!` for the first of the chain and
    `:` for the others, and its content in hexadecimal, with spaces between them. Else the bytes themselves, on
    PostgreSQL (where an expression has one type) in hexadecimal behind a `-`.
    """

    name = "whole_value"
    inherit_cache = True
    type = LargeBinary()


_QUERY = """CASE WHEN length({column}) = {length} AND {is_reference} THEN (
 WITH RECURSIVE line(parent, content, behind) AS (
 SELECT parent_id, content, 0 FROM pieces WHERE id = {leaf}
 UNION ALL
 SELECT pieces.parent_id, pieces.content, line.behind + 1 FROM line JOIN pieces ON pieces.id = line.parent)
 SELECT coalesce({together}, '') FROM line) ELSE {plain} END"""


@compiles(WholeValue, "sqlite")
def _compile_sqlite(element: WholeValue, compiler: SQLCompiler, **options: Any) -> str:
    column = compiler.process(_get_column(element), **options)
    return _QUERY.format(
        column=column,
        length=KEY_LENGTH + 1,
        is_reference=f"substr({column}, 1, 1) = X'{MARK.hex()}'",
        leaf=f"CAST(substr({column}, 2) AS TEXT)",
        together="group_concat(behind || CASE parent WHEN '' THEN '!' ELSE ':' END || hex(content), ' ')",
        plain=column,
    )


@compiles(WholeValue, "postgresql")
def _compile_postgresql(element: WholeValue, compiler: SQLCompiler, **options: Any) -> str:
    column = compiler.process(_get_column(element), **options)
    return _QUERY.format(
        column=column,
        length=KEY_LENGTH + 1,
        is_reference=f"substr({column}, 1, 1) = decode('{MARK.hex()}', 'hex')",
        leaf=f"encode(substr({column}, 2), 'escape')",
        together="string_agg(behind || CASE parent WHEN '' THEN '!' ELSE ':' END || encode(content, 'hex'), ' ')",
        plain=f"'-' || encode({column}, 'hex')",
    )


def _get_column(element: WholeValue) -> ColumnElement[Any]:
    column: ColumnElement[Any] = next(iter(element.clauses))
    return column


def read_whole(value: bytes | str) -> bytes | list[bytes]:
    """The result of a `WholeValue`: the bytes of the column, or the contents of its pieces in order.

    Raises:
        LedgerError: If a piece is missing or damaged.
    """
    if not isinstance(value, str):
        return bytes(value)
    if value.startswith("-"):
        return bytes.fromhex(value[1:])
    pieces = sorted((_read_piece(text) for text in value.split(" ") if text), reverse=True)
    if not pieces or not pieces[0][1]:
        raise LedgerError("A stored conversation is damaged, a part of it is missing: restore a backup of the ledger.")
    try:
        return [zlib.decompress(content) for _, _, content in pieces]
    except zlib.error:
        raise LedgerError("A stored conversation is damaged: restore a backup of the ledger.") from None


def _read_piece(text: str) -> tuple[int, bool, bytes]:
    """Distance from the last piece, whether it is the chain's first, and its stored content."""
    behind, mark, content = text.partition("!") if "!" in text else text.partition(":")
    return int(behind), mark == "!", bytes.fromhex(content)


def pack_contents(contents: Sequence[bytes]) -> list[bytes]:
    """Compress contents as they are stored."""
    return [zlib.compress(content) for content in contents]
