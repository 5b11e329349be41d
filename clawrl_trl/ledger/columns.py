"""Column types of the ledger: ids, arrays, long JSON, and text that any database takes.

Token ids and log-probabilities are kept as raw little-endian blobs (4 bytes a token), long JSON compressed,
so that a turn of 30,000 tokens costs what it weighs. Text is made storable: half characters and NULs, which
JSON may carry and databases refuse, are replaced rather than a record lost.
"""

import json
import secrets
import time
import zlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import JSON, BigInteger, ColumnElement, Dialect, Integer, LargeBinary, Text, type_coerce
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from clawrl_trl.ledger import pieces

Ids = NDArray[np.int32]
"""Token ids, shape `(tokens,)`."""
Floats = NDArray[np.float32]
"""One number per token, shape `(tokens,)`."""
Scalar = TypeVar("Scalar", np.int32, np.float32)

# SQLite counts up a primary key only if its type is INTEGER itself.
SERIAL = BigInteger().with_variant(Integer, "sqlite")
PLAIN_JSON = JSON(none_as_null=True)


class _Array(TypeDecorator[NDArray[Scalar]], Generic[Scalar]):
    """A one-dimensional array as a little-endian blob; any sequence of numbers may be assigned."""

    impl = LargeBinary
    cache_ok = True
    stored: str

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        if value is None:
            return None
        array = np.asarray(value, dtype=self.stored)
        if array.ndim != 1:
            raise ValueError(f"expected one dimension, got shape {array.shape}")
        return array.tobytes()

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> NDArray[Scalar] | None:
        if value is None:
            return None
        # A copy: an array over the bytes of a row can't be written to.
        return np.frombuffer(value, dtype=self.stored).astype(self.stored[1:])

    def compare_values(self, x: Any, y: Any) -> bool:
        # SQLAlchemy compares old and new with ==, which of arrays is an array.
        if x is None or y is None:
            return x is y
        return bool(np.array_equal(x, y))


class IdArray(_Array[np.int32]):
    """Token ids, int32, shape `(tokens,)`."""

    cache_ok = True
    stored = "<i4"


class FloatArray(_Array[np.float32]):
    """One float32 per token, shape `(tokens,)`."""

    cache_ok = True
    stored = "<f4"


class LongJSON(TypeDecorator[Any]):
    """JSON of any length, compressed; `None` is NULL."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        if value is None:
            return None
        return zlib.compress(json.dumps(value, separators=(",", ":")).encode("ascii"), 1)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(zlib.decompress(value))


class SharedIds(IdArray):
    """Token ids that may be stored as pieces of their session."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        leaf = value.leaf if isinstance(value, pieces.ChainedIds) else ""
        return pieces.make_reference(leaf) if leaf else super().process_bind_param(value, dialect)

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return type_coerce(pieces.WholeValue(column), self)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        return lambda value: self.process_result_value(_join(value), dialect)


class SharedJSON(LongJSON):
    """A list of JSON whose elements may be stored as pieces of their session."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        leaf = value.leaf if isinstance(value, pieces.ChainedList) else ""
        return pieces.make_reference(leaf) if leaf else super().process_bind_param(value, dialect)

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return type_coerce(pieces.WholeValue(column), self)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        def read(value: bytes | str | None) -> Any:
            whole = None if value is None else pieces.read_whole(value)
            if isinstance(whole, list):
                return json.loads(b"[" + b",".join(whole) + b"]")
            return self.process_result_value(whole, dialect)

        return read


def _join(value: bytes | str | None) -> bytes | None:
    whole = None if value is None else pieces.read_whole(value)
    return b"".join(whole) if isinstance(whole, list) else whole


class StorableText(TypeDecorator[str]):
    """Text from outside; half surrogates and NULs become U+FFFD so that every database takes it."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or (value.isascii() and "\0" not in value):
            return value
        # Through UTF-16 two halves of one character come together again; a half alone is replaced.
        whole = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return whole.replace("\0", "\ufffd")


def new_id(kind: str) -> str:
    """A fresh id such as `turn_18b0...`, unique everywhere and sorting by the time it was made."""
    return f"{kind}_{time.time_ns():016x}{secrets.token_hex(6)}"


def make_id_column(kind: str) -> Mapped[str]:
    """A primary key column whose default is `new_id(kind)`."""
    return mapped_column(StorableText, primary_key=True, default_factory=lambda: new_id(kind))
