"""A source leases full batches, and smaller ones when the oldest sample it could lease has waited long enough."""

import time
from typing import Any

import pytest
from ledger_rows import judged
from sqlalchemy import select, update

from clawrl_trl.credit import LedgerSource
from clawrl_trl.ledger import Ledger, policies
from clawrl_trl.ledger.schema import Policy, Sample

TEACHER: dict[str, Any] = {"teacher_logprobs": [-1.0, -2.0], "plain_logprobs": [-1.5, -2.5]}
TIMEOUT_S = 3600.0


def source(ledger: Ledger, **options: Any) -> LedgerSource:
    return LedgerSource(ledger, batch_size=2, max_staleness=0, timeout_s=TIMEOUT_S, **options)


def put(ledger: Ledger, age_s: float, **sample: Any) -> str:
    """A ready sample that has waited so long."""
    with ledger.transaction() as tx:
        (turn,) = judged(tx, **sample)
        tx.execute(update(Sample).where(Sample.turn_id == turn.id).values(created_at=time.time() - age_s))
        return turn.id


def states(ledger: Ledger) -> dict[str, str]:
    with ledger.reader() as tx:
        return {row.turn_id: row.state for row in tx.scalars(select(Sample))}


def test_the_oldest_sample_s_wait_makes_a_small_batch(ledger: Ledger) -> None:
    leasing = source(ledger)
    leasing.batch_size = 3
    put(ledger, 0.0)
    assert leasing.take(0.0) is None
    put(ledger, TIMEOUT_S)
    taken = leasing.take(0.0)
    assert taken is not None and len(taken.samples) == 2


@pytest.mark.parametrize("useless", ["no teacher", "stale"])
def test_a_sample_that_can_not_be_leased_makes_no_small_batch(ledger: Ledger, useless: str) -> None:
    with ledger.transaction() as tx:
        policies.add(tx, Policy(version=1, parent=0, path="v1"))
        policies.promote(tx, 1)
    fresh = put(ledger, 0.0, policy_version=1, **TEACHER)
    old = put(ledger, TIMEOUT_S, **({"policy_version": 1} if useless == "no teacher" else TEACHER))
    leasing = source(ledger, needs=("teacher",))
    leasing.version = 1
    assert leasing.take(0.0) is None
    assert states(ledger) == {fresh: "ready", old: "dropped"}
    again = put(ledger, 0.0, policy_version=1, **TEACHER)
    taken = leasing.take(0.0)
    assert taken is not None and len(taken.samples) == 2
    assert states(ledger) == {fresh: "leased", old: "dropped", again: "leased"}
