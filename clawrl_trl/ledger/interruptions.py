"""Interruptions: batches whose training ended without a word, by a crash or by the kernel.

A leased batch comes again unchanged, so one that ends the process would end it at every start. Each time it comes
back an event is written for each of its samples, unless all its passes had ended. After `ALONE_AFTER` of them the
samples are leased alone, so that the sound ones are trained and the one at fault is found; that one is given up with
its next interruption.
"""

from collections.abc import Sequence

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from clawrl_trl.ledger import events
from clawrl_trl.ledger.schema import Batch, Event

KIND = "training_interrupted"
EXCUSED = "interruption_excused"

ALONE_AFTER = 2
"""Interruptions after which a sample is leased in a batch of its own."""


def record(tx: Session, batch: Batch) -> int:
    """Count an interruption for each sample of a batch that came back, unless it has an excuse.

    Returns:
        The largest number of interruptions of its samples.
    """
    if not _take_excuse(tx, batch.id):
        for sample_id in batch.sample_ids:
            events.log(tx, KIND, sample_id, batch=batch.id)
        tx.flush()
    return max(count(tx, batch.sample_ids).values(), default=0)


def excuse(tx: Session, batch_id: str) -> None:
    """Let a batch's next return count nothing: a person stopped it, its passes had ended, or the like."""
    events.log(tx, EXCUSED, batch_id)


def forget_excuses(tx: Session, batch_ids: Sequence[str]) -> None:
    """Delete the excuses of batches that do not come back."""
    tx.execute(delete(Event).where(Event.kind == EXCUSED, Event.subject.in_(batch_ids)))


def count(tx: Session, sample_ids: Sequence[str]) -> dict[str, int]:
    """Interruptions of these samples, of those that have any."""
    rows = select(Event.subject, func.count()).where(Event.kind == KIND, Event.subject.in_(sample_ids))
    return dict(tx.execute(rows.group_by(Event.subject)).tuples().all())


def find_suspects(tx: Session, sample_ids: Sequence[str]) -> set[str]:
    """Those of these samples that may be leased only alone."""
    return {sample_id for sample_id, number in count(tx, sample_ids).items() if number >= ALONE_AFTER}


def _take_excuse(tx: Session, batch_id: str) -> bool:
    """Return whether the batch has an excuse, which serves for one return."""
    excused = tx.scalar(select(Event.id).where(Event.kind == EXCUSED, Event.subject == batch_id).limit(1))
    forget_excuses(tx, [batch_id])
    return excused is not None
