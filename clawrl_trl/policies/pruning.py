"""Pruning: removal of the files of old policy versions, so that a long run does not fill the disk.

The row of a version stays, in the state `pruned`. The order is mark, delete, mark: the state first, so that nobody
asks for a version whose files are about to go; then its folder; then its path in the ledger is emptied. A crash in
between leaves a pruned row with a path, and the next call deletes what is left of its folder. So does a folder that
can't be removed.
"""

import logging

from sqlalchemy import select
from sqlalchemy.orm import Session

from clawrl_trl.errors import UserError
from clawrl_trl.ledger import IllegalTransition, Ledger, events, policies
from clawrl_trl.ledger.schema import Policy
from clawrl_trl.policies.versions import PolicyStore

logger = logging.getLogger(__name__)


def prune_versions(ledger: Ledger, store: PolicyStore, *, keep: int, current: int, max_staleness: int) -> list[int]:
    """Remove the files of all but the `keep` versions that are most likely to be needed again.

    Kept are first the serving version and those it was trained from, the nearest first; then the newest of the others.
    Versions that are pinned, wait to be served, or lie within `max_staleness` updates are kept in any case.

    Args:
        ledger: The run's ledger.
        store: The run's policy folders.
        keep: How many versions keep their weights.
        current: The version in training.
        max_staleness: How many updates the policy of a sample in training may be behind.

    Returns:
        The versions that were pruned, oldest first.
    """
    with ledger.transaction() as tx:
        excess = _choose_excess(tx, keep, current, max_staleness)
        for policy in excess:
            # A rejected version stays rejected: nobody can ask for it, and its reason is still of use.
            if policy.state == "retired":
                policy.state = "pruned"
            events.log(tx, "policy_pruned", str(policy.version))
        rejected = [policy.version for policy in excess if policy.state == "rejected"]
    _remove(ledger, store, rejected)
    remove_pruned(ledger, store)
    return sorted(policy.version for policy in excess)


def remove_pruned(ledger: Ledger, store: PolicyStore) -> None:
    """Remove the files of versions that are marked as pruned; to be called after a crash too."""
    with ledger.reader() as tx:
        left = select(Policy.version).where(Policy.state == "pruned", Policy.path.is_not(None))
        marked = list(tx.scalars(left.order_by(Policy.version)))
    _remove(ledger, store, marked)


def pin_version(ledger: Ledger, version: int, pinned: bool) -> None:
    """Keep a version from being pruned, or end that.

    Raises:
        UserError: If there is no such version, or it was pruned.
    """
    try:
        with ledger.transaction() as tx:
            policies.pin(tx, version, pinned)
    except KeyError:
        raise UserError(f"There is no policy version {version}: see 'clawrl policies'.") from None
    except IllegalTransition:
        raise UserError(f"Version {version} was pruned, its weights are gone: pin another version.") from None


def _choose_excess(tx: Session, keep: int, current: int, max_staleness: int) -> list[Policy]:
    """Choose the versions with files whose files may go."""
    policies.lock(tx)
    serving = policies.serving(tx).version
    ancestors = set(tx.scalars(policies.lineage(serving, keep)))
    fresh = {version for end in (serving, current) for version in tx.scalars(policies.lineage(end, max_staleness))}
    with_files = list(tx.scalars(select(Policy).where(Policy.path.is_not(None))))
    # Numbers fall along a line, so the nearest of the ancestors have the highest.
    with_files.sort(key=lambda policy: (policy.version in ancestors, policy.version), reverse=True)
    return [
        policy
        for policy in with_files[keep:]
        if policy.state in ("retired", "rejected") and not policy.pinned and policy.version not in fresh
    ]


def _remove(ledger: Ledger, store: PolicyStore, versions: list[int]) -> None:
    removed = []
    for version in versions:
        try:
            store.remove(version)
        except OSError as error:
            # No reason to end training: the path stays in the ledger, and the next call tries again.
            logger.warning("the files of policy version %d can't be removed: %s", version, error)
        else:
            removed.append(version)
    if not removed:
        return
    with ledger.transaction() as tx:
        for version in removed:
            policy = policies.get(tx, version)
            if policy is not None:
                policy.path = None
    logger.info("pruned the weights of %d policy versions, up to %d", len(removed), removed[-1])
