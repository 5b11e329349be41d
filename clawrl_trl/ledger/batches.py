"""Batches: samples leased to a trainer, each trained at most once.

A batch is written before it is trained, and `commit` marks its samples, the batch and the new policy version
in one transaction. A trainer that died comes back to the batch it had, with the same content: the digest
proves it. A sample is taken by an UPDATE that only a free sample matches, so no two batches hold it.
"""

import time
from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import ColumnElement, and_, not_, select
from sqlalchemy.orm import Session

from clawrl_trl.ledger import events, interruptions, policies, samples, states
from clawrl_trl.ledger.columns import new_id
from clawrl_trl.ledger.digests import hash_parts
from clawrl_trl.ledger.errors import AlreadyTrained, DigestMismatch
from clawrl_trl.ledger.samples import qualifies
from clawrl_trl.ledger.schema import Batch, Policy, Sample, Turn


def lease(
    tx: Session,
    *,
    size: int,
    needs: Sequence[str],
    max_staleness: int,
    current_version: int,
    min_size: int = 1,
    held_ids: Collection[str] = (),
    idempotency_key: str | None = None,
) -> Batch | None:
    """Lease the oldest free samples as one batch, or return the batch that was not finished.

    An unfinished batch with samples that have become stale since is released, so that the others are leased anew.
    A sample at which training was interrupted repeatedly is leased alone (see `interruptions`).
    Samples that have nothing of what is needed, and those of policies that are not among the last `max_staleness`
    updates that led to this version or to the serving one, are dropped on the way, with the reason.

    Args:
        tx (`Session`): The open transaction.
        size (`int`): Samples in a batch, at most.
        needs (`Sequence[str]`): `"score"`, `"teacher"` or both; a sample qualifies with any of them.
        max_staleness (`int`): How many updates a sample's policy may be behind.
        current_version (`int`): The version that is being trained.
        min_size (`int`, defaults to 1): Lease nothing when fewer are free.
        held_ids (`Collection[str]`): Ids of leased batches that the caller will commit; not returned again.
        idempotency_key (`str`, *optional*): The caller's name for this lease. Default: the batch's id.

    Returns:
        `Batch` or `None`: The batch, or `None` when too few samples are free.

    Raises:
        DigestMismatch: If the unfinished batch is not what it was.
    """
    unfinished = _find_unfinished(tx, held_ids, max_staleness, current_version)
    if unfinished is not None:
        return unfinished
    _drop_useless(tx, needs, max_staleness, current_version)
    free = list(
        tx.scalars(
            select(Sample)
            .where(leasable(needs, max_staleness, current_version))
            .order_by(Sample.created_at, Sample.id)
            .limit(size)
            .with_for_update(skip_locked=True)
        )
    )
    chosen = _set_suspects_apart(tx, free, min_size)
    return _write(tx, chosen, needs, idempotency_key) if chosen else None


def _set_suspects_apart(tx: Session, free: list[Sample], min_size: int) -> list[Sample]:
    """The samples to lease: the oldest alone if it ended a process before, else the sound ones if they suffice."""
    suspects = interruptions.find_suspects(tx, [sample.id for sample in free])
    if free and free[0].id in suspects:
        return free[:1]
    sound = [sample for sample in free if sample.id not in suspects]
    return sound if len(sound) >= min_size else []


def leasable(needs: Sequence[str], max_staleness: int, current_version: int) -> ColumnElement[bool]:
    """The condition that a sample may be leased: it is free, has something of what is needed, and is not stale."""
    fresh = Sample.policy_version.in_(policies.lineage(current_version, max_staleness))
    return and_(Sample.state == "ready", qualifies(needs), fresh)


def _write(tx: Session, samples: list[Sample], needs: Sequence[str], key: str | None) -> Batch:
    ids = [sample.id for sample in samples]
    batch_id = new_id("batch")
    batch = Batch(
        id=batch_id,
        idempotency_key=key or batch_id,
        digest=_compute_digest(_content(tx, ids)),
        sample_ids=ids,
        needs=list(needs),
    )
    tx.add(batch)
    tx.flush()
    # Not through the objects: the UPDATE matches free samples alone, so of two trainers one gets fewer rows.
    count = states.move(tx, Sample.state, states.SAMPLE, "leased", Sample.id.in_(ids), batch_id=batch_id)
    if count != len(ids):
        raise AlreadyTrained(f"{len(ids) - count} of {len(ids)} samples were taken by another batch")
    return batch


def _find_unfinished(tx: Session, held_ids: Collection[str], max_staleness: int, current_version: int) -> Batch | None:
    leased = (
        select(Batch).where(Batch.state == "leased", Batch.id.not_in(held_ids)).order_by(Batch.created_at, Batch.id)
    )
    for batch in tx.scalars(leased.with_for_update()).all():
        content = _content(tx, batch.sample_ids)
        # A session was deleted meanwhile: the batch can't be what its digest says, and the rest is leased anew.
        if len(content) < len(batch.sample_ids):
            release(tx, batch.id, "some of its samples were erased")
        elif _compute_digest(content) != batch.digest:
            raise DigestMismatch(f"batch {batch.id} no longer has the content it was leased with")
        elif not _are_fresh(tx, batch, max_staleness, current_version):
            release(tx, batch.id, f"some of its samples are stale for version {current_version}")
        else:
            return batch
    return None


def _are_fresh(tx: Session, batch: Batch, max_staleness: int, current_version: int) -> bool:
    """Whether all samples of a batch may be trained now; a rollback since its lease leaves behind what was sampled."""
    stale = Sample.policy_version.not_in(policies.lineage(current_version, max_staleness))
    return tx.scalar(select(Sample.id).where(Sample.id.in_(batch.sample_ids), stale).limit(1)) is None


def _drop_useless(tx: Session, needs: Sequence[str], max_staleness: int, current_version: int) -> None:
    # A trainer that has not followed a rollback yet must not drop what the serving version samples.
    ends = (current_version, policies.serving(tx).version)
    stale = and_(*(Sample.policy_version.not_in(policies.lineage(end, max_staleness)) for end in ends))
    drops = {
        f"stale: not within {max_staleness} updates before version {current_version}": stale,
        f"no {' or '.join(needs)}": not_(qualifies(needs)),
    }
    for reason, condition in drops.items():
        free = Sample.state == "ready"
        count = states.move(tx, Sample.state, states.SAMPLE, "dropped", free, condition, reason=reason)
        if count:
            events.log(tx, "samples_dropped", reason.partition(":")[0], count=count, reason=reason)


def samples_of(tx: Session, batch: Batch) -> list[tuple[Sample, Turn]]:
    """A batch's samples with their turns, in the batch's order; erased ones are missing."""
    return _content(tx, batch.sample_ids)


def _content(tx: Session, ids: Sequence[str]) -> list[tuple[Sample, Turn]]:
    rows = tx.execute(select(Sample, Turn).join(Turn, Turn.id == Sample.turn_id).where(Sample.id.in_(ids)))
    # The database returns rows in any order, and the digest is taken over the batch's own.
    pairs = {sample.id: (sample, turn) for sample, turn in rows}
    return [pairs[sample_id] for sample_id in ids if sample_id in pairs]


def _compute_digest(content: Iterable[tuple[Sample, Turn]]) -> str:
    """sha256 over the content of a batch's samples, in their order."""
    return hash_parts(sample.content(turn) for sample, turn in content)


def commit(tx: Session, batch_ids: Sequence[str], policy: Policy, *, now: float | None = None) -> Policy:
    """Mark batches and their samples trained into a new candidate policy, in one transaction.

    Committing the same batches into the same version again changes nothing.

    Returns:
        `Policy`: The candidate (the one added before, when this is a repetition).

    Raises:
        AlreadyTrained: If a batch was released, or trained into another version.
        KeyError: If there is no such batch.
        ValueError: If the version exists already; take the next one and commit again.
    """
    trained = [_lock(tx, batch_id) for batch_id in batch_ids]
    # A trainer that died after the commit, and before it knew of it, commits once more.
    if trained and all(batch.trained_into == policy.version for batch in trained):
        return policies.add(tx, policy)
    for batch in trained:
        if batch.state != "leased":
            raise AlreadyTrained(f"batch {batch.id} is {batch.state}, not leased (into {batch.trained_into})")
    # `policies.add` takes the same version again for a repetition, and here it is not one: another trainer has it.
    if trained and policies.get(tx, policy.version) is not None:
        raise ValueError(f"policy version {policy.version} exists: take the next version")
    candidate = policies.add(tx, policy)
    for batch in trained:
        states.move(tx, Sample.state, states.SAMPLE, "trained", Sample.batch_id == batch.id)
        batch.trained_into = candidate.version
        batch.trained_at = time.time() if now is None else now
        batch.state = "trained"
    interruptions.forget_excuses(tx, batch_ids)
    tx.flush()
    return candidate


def release(tx: Session, batch_id: str, reason: str) -> None:
    """Give a leased batch's samples back; releasing it again changes nothing.

    Raises:
        KeyError: If there is no such batch.
        AlreadyTrained: If it was trained.
    """
    batch = _lock(tx, batch_id)
    if batch.state == "released":
        return
    if batch.state != "leased":
        raise AlreadyTrained(f"batch {batch_id} is {batch.state}")
    states.move(tx, Sample.state, states.SAMPLE, "ready", Sample.batch_id == batch_id, batch_id=None)
    batch.state = "released"
    interruptions.forget_excuses(tx, [batch_id])
    events.log(tx, "batch_released", batch_id, reason=reason)
    tx.flush()


def settle_interrupted(tx: Session, known_ids: Collection[str]) -> set[str]:
    """Count an interruption of each leased batch that its trainer left behind, and divide or give up what repeats it.

    Args:
        tx: The open transaction.
        known_ids: Ids of the batches that the caller leased itself, or has settled before.

    Returns:
        Ids of all batches that were leased: those that the caller knows from now on.
    """
    leased = tx.scalars(select(Batch).where(Batch.state == "leased")).all()
    for batch in leased:
        if batch.id in known_ids:
            continue
        times = interruptions.record(tx, batch)
        if len(batch.sample_ids) > 1 and times >= interruptions.ALONE_AFTER:
            release(tx, batch.id, f"interrupted {times} times: its samples are trained one by one")
        elif len(batch.sample_ids) == 1 and times > interruptions.ALONE_AFTER:
            release(tx, batch.id, f"interrupted {times} times")
            samples.drop(tx, batch.sample_ids[0], f"interrupted training {times} times")
    return {batch.id for batch in leased}


def _lock(tx: Session, batch_id: str) -> Batch:
    batch = tx.get(Batch, batch_id, with_for_update=True)
    if batch is None:
        raise KeyError(f"there is no batch {batch_id}")
    return batch
