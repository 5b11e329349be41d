"""Training samples: how many there are, which may be leased, which are given up.

A sample is born with its turn's verdict (`turns.record_verdict`) and moves with its batch (`batches`).
"""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from clawrl_trl.ledger import events, states
from clawrl_trl.ledger.schema import Sample

NEEDS = ("score", "teacher")
"""What a trainer may need of a sample: a judge's score, a teacher's log-probs."""


def qualifies(needs: Sequence[str]) -> ColumnElement[bool]:
    """The condition that a sample has at least one of `needs`.

    Raises:
        ValueError: If `needs` is empty or names something else.
    """
    conditions = {"score": Sample.score.is_not(None), "teacher": Sample.teacher_logprobs.is_not(None)}
    if not needs or any(need not in conditions for need in needs):
        raise ValueError(f"needs must name some of {NEEDS}, got {tuple(needs)}")
    return or_(*(conditions[need] for need in needs))


def counts(tx: Session) -> dict[str, int]:
    """Number of samples in each state."""
    rows = tx.execute(select(Sample.state, func.count()).group_by(Sample.state))
    return dict.fromkeys(states.names(states.SAMPLE), 0) | dict(rows.tuples().all())


def ready(tx: Session, needs: Sequence[str]) -> int:
    """Number of free samples that have at least one of `needs` (`"score"`, `"teacher"`)."""
    return tx.scalar(select(func.count()).where(Sample.state == "ready", qualifies(needs))) or 0


def recent_scores(tx: Session, count: int) -> list[tuple[float, bool]]:
    """Score, and if there was a teacher, of the last `count` trained samples without a group, the newest first."""
    alone = (Sample.state == "trained", Sample.group.is_(None), Sample.score.is_not(None))
    newest = (
        select(Sample.score, Sample.teacher_logprobs.is_not(None))
        .where(*alone)
        .order_by(Sample.created_at.desc(), Sample.id.desc())
        .limit(count)
    )
    return [(score, taught) for score, taught in tx.execute(newest) if score is not None]


def of_turn(tx: Session, turn_id: str) -> Sample | None:
    """The sample of a turn, or `None`."""
    return tx.scalars(select(Sample).where(Sample.turn_id == turn_id)).one_or_none()


def drop(tx: Session, sample_id: str, reason: str) -> bool:
    """Give up a free or leased sample; `False` when it is gone, trained or dropped already."""
    dropped = states.move(
        tx, Sample.state, states.SAMPLE, "dropped", Sample.id == sample_id, reason=reason, batch_id=None
    )
    if dropped:
        events.log(tx, "sample_dropped", sample_id, reason=reason)
    return bool(dropped)
