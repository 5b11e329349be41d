"""Digests of rows: sha256 over parts whose ends can't be mistaken, so that nothing can move between them unseen."""

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike


def encode_array(array: ArrayLike | None, dtype: str) -> bytes:
    """The bytes of an array, or of its absence, which differ from those of an empty one."""
    return b"-" if array is None else b"+" + np.asarray(array, dtype=dtype).tobytes()


def hash_parts(parts: Iterable[bytes]) -> str:
    """sha256 over parts in their order, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        # Each with its length, so that moving a byte from one part to the next changes the digest.
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
