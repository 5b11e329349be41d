"""The way back from a damaged policy version to the last good one."""

import logging

from sqlalchemy.orm import Session

from clawrl_trl.ledger import Ledger, events, policies
from clawrl_trl.ledger.schema import Policy
from clawrl_trl.policies.checksums import find_damage
from clawrl_trl.policies.versions import PolicyStore

logger = logging.getLogger(__name__)


def reject_damaged(ledger: Ledger, store: PolicyStore, version: int, damage: str) -> None:
    """Reject a damaged version; if it serves, the nearest whole one that it was trained from serves in its place.

    Args:
        ledger: The run's ledger.
        store: The run's policy folders.
        version: The damaged one.
        damage: What `find_damage` says.

    Raises:
        LedgerWriteError: If the ledger takes no writes.
    """
    # The digests of whole models take a while: they are known from here on, before the write lock.
    with ledger.reader() as tx:
        _nearest_whole(_read_rows(tx), store, version)
    with ledger.transaction() as tx:
        # Asked again: the version may have been promoted meanwhile, and the one to serve in its place pruned.
        policies.lock(tx)
        rows = _read_rows(tx)
        policy = rows[version]
        if policy.state in ("rejected", "pruned"):
            return
        if policy.state == "serving":
            target = _nearest_whole(rows, store, version)
            events.log(tx, "rollback", str(target), before=version, damage=damage)
            policies.promote(tx, target)
            logger.warning("policy version %d is damaged (%s): version %d serves again", version, damage, target)
        else:
            logger.warning("policy version %d is damaged (%s) and not used any more", version, damage)
        policies.reject(tx, version, f"damaged: {damage}")


def _read_rows(tx: Session) -> dict[int, Policy]:
    return {policy.version: policy for policy in policies.all(tx)}


def _nearest_whole(rows: dict[int, Policy], store: PolicyStore, version: int) -> int:
    parent = rows[version].parent
    while parent:
        row = rows[parent]
        # Only what has served: a rejected version must not come back this way.
        if row.state == "retired" and row.path and find_damage(store.locate(row.path), row.sha256) is None:
            return parent
        parent = row.parent
    return 0
