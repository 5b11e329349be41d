"""Versions of the policy: which one serves, which came before, which were refused.

Exactly one version serves at any time; the unique index on the state makes a second one impossible.
"""

from pathlib import PurePath

from sqlalchemy import Select, func, literal, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from clawrl_trl.ledger import events, states
from clawrl_trl.ledger.schema import Policy


def lock(tx: Session) -> None:
    """Let nobody else change the state of a version, or pin one, until the transaction ends.

    To be called before the rows are read that a decision rests on.
    """
    # One row that is always there stands for all of them, so that nobody waits for another in a circle.
    tx.scalar(select(Policy.version).where(Policy.version == 0).with_for_update())


def serving(tx: Session) -> Policy:
    """The version that answers new requests."""
    return tx.scalars(select(Policy).where(Policy.state == "serving")).one()


def latest(tx: Session) -> Policy:
    """The highest version that was neither rejected nor pruned: what training goes on from."""
    usable = select(Policy).where(Policy.state.not_in(("rejected", "pruned")))
    return tx.scalars(usable.order_by(Policy.version.desc()).limit(1)).one()


def current(tx: Session) -> Policy:
    """The version to train on: the latest while it waits to be served, else the one that serves."""
    newest = latest(tx)
    return newest if newest.state == "candidate" else serving(tx)


def get(tx: Session, version: int) -> Policy | None:
    """One version, or `None` when there is none."""
    return tx.get(Policy, version)


def all(tx: Session) -> list[Policy]:
    """Every version, oldest first."""
    return list(tx.scalars(select(Policy).order_by(Policy.version)))


def next_version(tx: Session) -> int:
    """The number the next version takes; rejected ones keep theirs."""
    # Rejected ones are counted: a name that an engine loads twice could meet the prefix cache of its predecessor.
    return (tx.scalar(select(func.max(Policy.version))) or 0) + 1


def lineage(version: int, steps: int) -> Select[int]:
    """A query for a version and the versions it was trained from, going back at most so many updates.

    Numbers tell nothing of that: an update of version 1 that follows a rollback from 20 is version 21.
    """
    first = select(Policy.version, Policy.parent, literal(0).label("behind")).where(Policy.version == version)
    # Nested, for a condition may hold two lines: of the version in training and of the one that serves.
    line = first.cte("line", recursive=True, nesting=True)
    before = select(Policy.version, Policy.parent, line.c.behind + 1)
    line = line.union_all(before.where(Policy.version == line.c.parent, line.c.behind < steps))
    return select(line.c.version)


def add(tx: Session, policy: Policy) -> Policy:
    """Add a candidate; adding the same version with the same content again changes nothing.

    Raises:
        ValueError: If the version exists with another path, sha256 or parent.
    """
    earlier = tx.get(Policy, policy.version)
    if earlier is not None:
        if (_name(earlier), earlier.sha256, earlier.parent) != (_name(policy), policy.sha256, policy.parent):
            raise ValueError(f"policy version {policy.version} exists with other content")
        return earlier
    try:
        # A savepoint: PostgreSQL would refuse every further statement of a transaction that had an error.
        with tx.begin_nested():
            tx.add(policy)
    except IntegrityError as error:
        raise ValueError(f"policy version {policy.version} was taken meanwhile, or its parent is unknown") from error
    return policy


def promote(tx: Session, version: int) -> Policy:
    """Let a candidate or a retired version serve; the one that served before is retired.

    Promoting the serving version changes nothing.

    Raises:
        KeyError: If there is no such version.
        IllegalTransition: If the version was rejected.
    """
    policy = _lock(tx, version)
    before = _lock(tx, serving(tx).version)
    if policy is before:
        return policy
    states.check(states.POLICY, policy.state, "serving")
    # Written before the other, for the unique index allows no two that serve, not even for a moment.
    before.state = "retired"
    tx.flush()
    policy.state = "serving"
    events.log(tx, "policy_serving", str(version), before=before.version)
    tx.flush()
    return policy


def reject(tx: Session, version: int, reason: str) -> Policy:
    """Refuse a candidate, or a retired version that is damaged, for good.

    Raises:
        KeyError: If there is no such version.
        IllegalTransition: If it serves, or is the base model.
    """
    policy = _lock(tx, version)
    if version == 0:
        raise states.IllegalTransition("the base model can't be rejected: every way back ends at it")
    policy.state = "rejected"
    policy.reason = reason
    events.log(tx, "policy_rejected", str(version), reason=reason)
    tx.flush()
    return policy


def pin(tx: Session, version: int, pinned: bool) -> Policy:
    """Keep a version's files from being pruned, or give them free again.

    Raises:
        KeyError: If there is no such version.
        IllegalTransition: If it was pruned already.
    """
    policy = _lock(tx, version)
    if pinned and policy.state == "pruned":
        raise states.IllegalTransition(f"policy version {version} was pruned")
    policy.pinned = pinned
    events.log(tx, "policy_pinned" if pinned else "policy_unpinned", str(version))
    tx.flush()
    return policy


def _name(policy: Policy) -> str | None:
    """The name of a version's folder; the run folder around it may have been moved."""
    return policy.path and PurePath(policy.path).name


def _lock(tx: Session, version: int) -> Policy:
    lock(tx)
    # The caller may have read the row before somebody else changed it.
    policy = tx.get(Policy, version, populate_existing=True)
    if policy is None:
        raise KeyError(f"there is no policy version {version}")
    return policy
