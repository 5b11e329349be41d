"""A source leases full batches, and smaller ones when the oldest sample it could lease has waited long enough."""

import time
from typing import Any

import pytest
from ledger_rows import judged
from sqlalchemy import select, update

from clawrl_trl.credit import LedgerSource, binary
from clawrl_trl.ledger import Ledger, batches, policies
from clawrl_trl.ledger.schema import Policy, Sample

TEACHER: dict[str, Any] = {"teacher_logprobs": [-1.0, -2.0], "plain_logprobs": [-1.5, -2.5]}
TIMEOUT_S = 3600.0


def source(ledger: Ledger, *, batch_size: int = 2, **options: Any) -> LedgerSource:
    return LedgerSource(ledger, batch_size=batch_size, max_staleness=0, timeout_s=TIMEOUT_S, **options)


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
    leasing = source(ledger, batch_size=3)
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
    leasing.follow(1)
    assert leasing.take(0.0) is None
    assert states(ledger) == {fresh: "ready", old: "dropped"}
    again = put(ledger, 0.0, policy_version=1, **TEACHER)
    taken = leasing.take(0.0)
    assert taken is not None and len(taken.samples) == 2
    assert states(ledger) == {fresh: "leased", old: "dropped", again: "leased"}


def trained(ledger: Ledger, scores: list[float], **sample: Any) -> None:
    """Samples with these scores that have been trained, in this order."""
    with ledger.transaction() as tx:
        for age, score in zip(range(len(scores), 0, -1), scores, strict=True):
            (turn,) = judged(tx, score=score, **sample)
            created = time.time() - TIMEOUT_S - age
            tx.execute(update(Sample).where(Sample.turn_id == turn.id).values(created_at=created))
            batch = batches.lease(tx, size=1, needs=("score",), max_staleness=0, current_version=0)
            assert batch is not None
            version = max(policy.version for policy in policies.all(tx)) + 1
            batches.commit(tx, [batch.id], Policy(version=version, parent=0, path=f"v{version}"))


@pytest.mark.parametrize(("window", "baseline"), [(2, 0.0), (4, 0.5), (16, 1 / 16)])
def test_scores_are_compared_with_those_before(ledger: Ledger, window: int, baseline: float) -> None:
    trained(ledger, [-1.0, 1.0, 1.0, 1.0, -1.0], **TEACHER)
    trained(ledger, [1.0, 1.0], group="another's")
    put(ledger, TIMEOUT_S, score=1.0)
    taken = source(ledger, baseline_window=window).take(0.0)
    assert taken is not None and [one.measure for one in taken.samples] == [(baseline, 1.0)]


@pytest.mark.parametrize("earlier", [[-1.0] * 4, [-0.5, -1.0], [1.0, -1.0, -1.0]])
@pytest.mark.parametrize("score", [-1.0, -0.25])
def test_among_objections_one_more_is_worth_as_much(ledger: Ledger, earlier: list[float], score: float) -> None:
    trained(ledger, earlier, **TEACHER)
    put(ledger, TIMEOUT_S, score=score)
    taken = source(ledger, baseline_window=4).take(0.0)
    assert taken is not None
    advantages, _ = binary([score], measures=[taken.samples[0].measure])
    assert advantages[0] == pytest.approx(score, abs=1e-5)


def test_scores_of_somebody_who_never_says_what_was_wrong_count_whole(ledger: Ledger) -> None:
    trained(ledger, [1.0] * 4)
    put(ledger, TIMEOUT_S, score=1.0)
    alone = source(ledger, baseline_window=3).take(0.0)
    assert alone is not None and alone.samples[0].measure is None
    with ledger.transaction() as tx:
        batches.commit(tx, [alone.batch_id], Policy(version=9, parent=0, path="v9"))
    trained(ledger, [1.0], **TEACHER)
    put(ledger, TIMEOUT_S, score=1.0)
    beside = source(ledger, baseline_window=3).take(0.0)
    assert beside is not None and beside.samples[0].measure == (1.0, 1.0)


def test_a_group_keeps_its_own_measure(ledger: Ledger) -> None:
    trained(ledger, [1.0, 1.0], **TEACHER)
    put(ledger, TIMEOUT_S, score=1.0, group="rollouts", baseline=0.5, scale=0.5)
    put(ledger, TIMEOUT_S, score=1.0, group="batch")
    taken = source(ledger, baseline_window=2).take(0.0)
    assert taken is not None and {one.measure for one in taken.samples} == {(0.5, 0.5), None}


def test_an_unfinished_batch_is_compared_with_the_same(ledger: Ledger) -> None:
    trained(ledger, [1.0], **TEACHER)
    put(ledger, TIMEOUT_S, score=-1.0)
    before, after = (source(ledger, baseline_window=2).take(0.0) for _ in range(2))
    assert before is not None and after is not None
    assert before.batch_id == after.batch_id and before.samples[0].measure == after.samples[0].measure == (0.5, 1.0)
