"""Selection of the turns from which the index is rebuilt, so that a start takes no longer the longer a run goes on.

What a turn costs is the history it is read with: a conversation with screenshots may hold a thousand times what
another one does.
"""

import logging
from collections import Counter

from sqlalchemy import LargeBinary, func, select, type_coerce
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.ledger.schema import Piece, Session, Turn

logger = logging.getLogger(__name__)


def select_turns(tx: Transaction, newest: int, budget: int) -> list[int]:
    """Choose among the newest turns of sessions that are not done; first the newest of each, then those before.

    Args:
        tx (`Session`): The open transaction.
        newest (`int`): How many turns at most.
        budget (`int`): Bytes of stored history after which no more are chosen. A turn counts with all that its session
            stores, the most that its own history can be.

    Returns:
        `list[int]`: Their numbers.
    """
    own_size = func.coalesce(func.length(type_coerce(Turn.messages, LargeBinary)), 0)
    turns = select(Turn.seq, Turn.session_id, own_size).join(Session, Session.id == Turn.session_id)
    rows = tx.execute(turns.where(Session.done.is_(False)).order_by(Turn.seq.desc()).limit(newest)).tuples().all()
    shared = select(Piece.session_id, func.sum(func.length(Piece.content))).group_by(Piece.session_id)
    sizes: dict[str, int] = dict(
        tx.execute(shared.where(Piece.session_id.in_({row[1] for row in rows}))).tuples().all()
    )
    seen: Counter[str] = Counter()
    ranked = []
    for number, session_id, size in rows:
        ranked.append((seen[session_id], number, int(size) + int(sizes.get(session_id, 0))))
        seen[session_id] += 1
    chosen: list[int] = []
    for _, number, size in sorted(ranked, key=lambda row: row[0]):
        if budget <= 0:
            logger.warning(
                "%d of the newest %d turns are too much to read at a start: a request that goes on from one of them "
                "opens a session of its own, unless it names one",
                len(rows) - len(chosen),
                len(rows),
            )
            break
        chosen.append(number)
        budget -= size
    return chosen
