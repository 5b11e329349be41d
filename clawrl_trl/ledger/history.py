"""History of sessions, kept once: what turns repeat of one another is written, swept and converted as pieces.

The columns `messages`, `tools` and `prompt_ids` of a turn are read like any other; `clawrl_trl.ledger.pieces` has the
form in which they are stored.
"""

import json
from collections.abc import Iterator, Sequence

import numpy as np
from sqlalchemy import LargeBinary, delete, func, select, type_coerce, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session as Transaction
from tenacity import Retrying, retry_if_exception, stop_after_attempt

from clawrl_trl.ledger.errors import is_repeatable
from clawrl_trl.ledger.pieces import (
    CHUNK,
    ChainedIds,
    ChainedList,
    make_keys,
    pack_contents,
    read_reference,
    split_ids,
)
from clawrl_trl.ledger.schema import Piece, Session, Turn
from clawrl_trl.ledger.store import Ledger
from clawrl_trl.messages import Json

PORTION = 16
"""Turns converted in one transaction."""
TRIES = 5
"""Tries to convert them, while another process's transactions come in between."""
MOST_KEYS = 5_000
"""Keys in one statement; databases bound them."""
SHARED = (Turn.messages, Turn.tools, Turn.prompt_ids)


def share(tx: Transaction, turn: Turn) -> dict[str, ChainedList | ChainedIds]:
    """Write what a turn repeats of its session as pieces, those of them that are not there yet.

    Returns:
        `dict`: The values to set in the turn, by the names of their columns; short ones are left out, as they are
            stored best in the row itself.
    """
    # Nobody may sweep meanwhile what is found here.
    tx.scalar(select(Session.id).where(Session.id == turn.session_id).with_for_update())
    values: dict[str, ChainedList | ChainedIds] = {}
    rows: dict[str, dict[str, object]] = {}
    for name, elements in (("messages", turn.messages), ("tools", turn.tools)):
        if elements:
            values[name] = ChainedList(elements)
            values[name].leaf = _chain(turn.session_id, _encode(elements), rows)
    if turn.prompt_ids is not None and len(turn.prompt_ids) > CHUNK:
        ids = np.array(turn.prompt_ids, dtype=np.int32).view(ChainedIds)
        ids.leaf = _chain(turn.session_id, split_ids(np.asarray(ids)), rows)
        values["prompt_ids"] = ids
    _write(tx, rows)
    return values


def _encode(elements: Sequence[Json]) -> list[bytes]:
    return [json.dumps(element, separators=(",", ":")).encode("ascii") for element in elements]


def _chain(session_id: str, contents: list[bytes], rows: dict[str, dict[str, object]]) -> str:
    """Add a sequence's pieces to the rows by their keys; returns the key of the last."""
    keys = make_keys(session_id, contents)
    for key, parent, content in zip(keys, ["", *keys], contents, strict=False):
        rows[key] = {"id": key, "parent_id": parent, "session_id": session_id, "content": content}
    return keys[-1]


def _write(tx: Transaction, rows: dict[str, dict[str, object]]) -> None:
    for keys in _cut(list(rows)):
        for key in tx.scalars(select(Piece.id).where(Piece.id.in_(keys))):
            del rows[key]
    if not rows:
        return
    fresh = list(rows.values())
    for row, content in zip(fresh, pack_contents([bytes(row["content"]) for row in fresh]), strict=True):  # type: ignore[call-overload]
        row["content"] = content
    # Another process may write the same reply at this moment; equal keys are equal pieces.
    insert = postgresql.insert if tx.get_bind().dialect.name == "postgresql" else sqlite.insert
    tx.execute(insert(Piece.__table__).on_conflict_do_nothing(), fresh)  # type: ignore[arg-type]


def _cut(keys: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(keys), MOST_KEYS):
        yield keys[start : start + MOST_KEYS]


def sweep(tx: Transaction, session_id: str) -> int:
    """Delete the pieces of a session that no turn of it holds any more; returns how many."""
    parents = dict(tx.execute(select(Piece.id, Piece.parent_id).where(Piece.session_id == session_id)).tuples().all())
    stored = (type_coerce(column, LargeBinary) for column in SHARED)
    for row in tx.execute(select(*stored).where(Turn.session_id == session_id)):
        for value in row:
            key = read_reference(value)
            # Up to a piece that another turn holds as well: it and those before it are out already.
            while key in parents:
                key = parents.pop(key)
    unused = list(parents)
    for keys in _cut(unused):
        tx.execute(delete(Piece).where(Piece.id.in_(keys)))
    return len(unused)


def compact(ledger: Ledger) -> int:
    """Convert the turns of an older release, a few in each transaction; returns how many there were.

    May be interrupted and repeated, and the run may be served meanwhile. SQLite fills the room that it frees before
    its file grows again.
    """
    # A run that is served takes its locks in its own order, so that PostgreSQL may end this transaction for it.
    retrying = Retrying(stop=stop_after_attempt(TRIES), retry=retry_if_exception(is_repeatable), reraise=True)
    count, last = 0, 0
    while True:
        converted, end = retrying(_convert_portion, ledger, last)
        if end is None:
            return count
        count, last = count + converted, end


def _convert_portion(ledger: Ledger, last: int) -> tuple[int, int | None]:
    """Convert a few turns after that one: how many, and the last that was looked at; `None` when none is left."""
    whole = func.length(type_coerce(Turn.messages, LargeBinary)) != 25
    with ledger.transaction() as tx:
        found = select(Turn.seq, Turn.session_id).where(Turn.seq > last, whole).order_by(Turn.seq).limit(PORTION)
        homes = dict(tx.execute(found).tuples().all())
        # Always in one order, and before the turns are read: until then they may be deleted.
        locked = select(Session.id).where(Session.id.in_(set(homes.values()))).order_by(Session.id)
        tx.scalars(locked.with_for_update()).all()
        portion = list(tx.scalars(select(Turn).where(Turn.seq.in_(homes), whole).order_by(Turn.seq)))
        for turn in portion:
            # By a statement: the row's own attributes would be equal before and after, and not written.
            if values := share(tx, turn):
                tx.execute(update(Turn.__table__).where(Turn.__table__.c.seq == turn.seq).values(values))  # type: ignore[arg-type]
    return len(portion), max(homes, default=None)
