"""Events: publications, drops, failures and retries, kept for later questions; never the text of a message."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from clawrl_trl.ledger.schema import Event


def log(tx: Session, kind: str, subject: str, **data: object) -> Event:
    """Record that `kind` happened to `subject` (an id), with facts that fit in JSON."""
    event = Event(kind=kind, subject=subject, data=data)
    tx.add(event)
    return event


def of(tx: Session, subject: str) -> list[Event]:
    """The events of one subject, oldest first."""
    return list(tx.scalars(select(Event).where(Event.subject == subject).order_by(Event.id)))


def recent(tx: Session, limit: int = 100) -> list[Event]:
    """The newest `limit` events, oldest first."""
    newest = tx.scalars(select(Event).order_by(Event.id.desc()).limit(limit)).all()
    return list(reversed(newest))
