"""Claims: which of the turns that are to be judged a judge holds, and until when.

A claim is a time in the turn's row. A judge that dies, or gives its turn back, leaves a turn that is due later.
"""

import time
from collections.abc import Mapping, Sequence

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.ledger import events, states
from clawrl_trl.ledger.schema import Event, Turn, Verdict

CLAIM_VOID = -1.0
"""`judge_after` of a turn that changed while a judge worked on it: the verdict under way is out of date."""


def claim_judging(tx: Transaction, limit: int, now: float, lease_s: float) -> list[str]:
    """Claim up to `limit` turns for one judge: those that were never put off first, oldest first.

    A claim lasts `lease_s` seconds unless it is renewed; the claims of a judge that died come back after that.

    Returns:
        `list[str]`: Their ids. Each is to be read by itself: one that is damaged must not keep the others back.
    """
    # Rows that another judge claims at this moment are skipped: neither waits for the other.
    due = (
        select(Turn.id)
        .where(Turn.state == "judging", Turn.judge_after <= now)
        .order_by(Turn.judge_after, Turn.seq)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    claimed = list(tx.scalars(due))
    values = {"judge_after": now + lease_s, "judge_attempts": Turn.judge_attempts + 1}
    tx.execute(update(Turn).where(Turn.id.in_(claimed)).values(values))
    return claimed


def renew_claims(tx: Transaction, attempts: Mapping[str, int], until: float) -> None:
    """Hold claims until that unix time; those that are void, over or taken by another judge stay so.

    Args:
        tx (`Session`): The open transaction.
        attempts (`Mapping[str, int]`): Turn ids, each with its `judge_attempts` when it was claimed.
        until (`float`): When the claims run out.
    """
    for turn_id, attempt in attempts.items():
        is_current = Turn.state == "judging", Turn.judge_attempts == attempt, Turn.judge_after > 0
        tx.execute(update(Turn).where(Turn.id == turn_id, *is_current).values(judge_after=until))


def retry_later(
    tx: Transaction, turn_id: str, delay: float, error: str, *, is_attempt: bool = True, now: float | None = None
) -> None:
    """Give a claimed turn back, to be claimed again in `delay` seconds.

    Args:
        tx (`Session`): The open transaction.
        turn_id (`str`): The turn; one that is gone, or is not being judged any more, stays as it is.
        delay (`float`): Seconds until it is due.
        error (`str`): The reason, for the ledger's events.
        is_attempt (`bool`, defaults to `True`): Count this in `judge_attempts`. False if the turn was not tried.
        now (`float`, *optional*): Unix time, seconds; by default the clock's.
    """
    turn = lock(tx, turn_id)
    if turn is None or turn.state != "judging":
        return
    # A void claim stays void: what made it so, such as new feedback, is to be judged at once.
    if turn.judge_after != CLAIM_VOID:
        turn.judge_after = (time.time() if now is None else now) + delay
    # Events are kept: one of a turn that waits says as much as hundreds.
    if is_attempt or not _has_retry(tx, turn_id):
        events.log(tx, "judge_retry", turn_id, attempt=turn.judge_attempts, delay_s=delay, error=error)
    if not is_attempt:
        turn.judge_attempts = max(0, turn.judge_attempts - 1)
    tx.flush()


def _has_retry(tx: Transaction, turn_id: str) -> bool:
    retries = select(Event.id).where(Event.subject == turn_id, Event.kind == "judge_retry")
    return tx.scalar(retries.limit(1)) is not None


def record_unread(tx: Transaction, verdict: Verdict) -> None:
    """Record an abstention on a claimed turn that can't be read, without reading it."""
    tx.execute(delete(Verdict).where(Verdict.turn_id == verdict.turn_id))
    states.move(tx, Turn.state, states.TURN, "judged", Turn.id == verdict.turn_id, judge_after=0.0)
    tx.add(verdict)
    tx.flush()


def read_locked(tx: Transaction, turn_ids: Sequence[str]) -> list[Turn]:
    """Read turns that this transaction has locked, by a statement before this one, in the order they were added.

    In one statement PostgreSQL would take a turn that it waited for as it is now, and the pieces of its conversation
    as they were before the wait.
    """
    return list(tx.scalars(select(Turn).where(Turn.id.in_(turn_ids)).order_by(Turn.seq)))


def lock(tx: Transaction, turn_id: str) -> Turn | None:
    """Lock a turn and read it; `None` if it is gone."""
    locked = tx.scalars(select(Turn.id).where(Turn.id == turn_id).with_for_update()).all()
    return next(iter(read_locked(tx, locked)), None)
