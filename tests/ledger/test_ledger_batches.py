"""Samples are leased and trained at most once, and a batch is what it was when it was written."""

from typing import Any

import pytest
from ledger_rows import follow, judge, judged, session, turn
from sqlalchemy import select, update

from clawrl_trl.ledger import AlreadyTrained, DigestMismatch, Ledger, batches, events, policies, samples, turns
from clawrl_trl.ledger.schema import Batch, Policy, Sample, Turn

LEASE: dict[str, Any] = {"size": 4, "needs": ("score", "teacher"), "max_staleness": 2, "current_version": 0}
TEACHER: dict[str, Any] = {"teacher_logprobs": [-1.0, -2.0], "plain_logprobs": [-1.5, -2.5]}


def version(number: int, **fields: Any) -> Policy:
    return Policy(version=number, parent=number - 1, path=f"policies/policy-v{number}", sha256="ab", **fields)


def scored(tx: Any, **sample: Any) -> Turn:
    one = turns.add(tx, turn(session(tx).id))
    follow(tx, one.id)
    judge(tx, one.id, sample.pop("score", 1.0), **sample)
    return one


def test_the_oldest_samples_are_leased_in_order(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        made = judged(tx, 6)
    with ledger.transaction() as tx:
        batch = batches.lease(tx, **LEASE)
        assert batch is not None and batch.state == "leased" and batch.idempotency_key == batch.id
        assert [one.id for _, one in batches.samples_of(tx, batch)] == [one.id for one in made[:4]]
        assert samples.counts(tx) == {"ready": 2, "leased": 4, "trained": 0, "dropped": 0}


def test_an_unfinished_batch_is_leased_again_unchanged(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        judged(tx, 6, **TEACHER)
        first = batches.lease(tx, **LEASE)
    assert first is not None
    with ledger.transaction() as tx:
        again = batches.lease(tx, **LEASE)
        assert again is not None and (again.id, again.digest) == (first.id, first.digest)
        other = batches.lease(tx, **LEASE, held_ids=[first.id])
        assert other is not None and not set(other.sample_ids) & set(first.sample_ids)


def test_an_unfinished_batch_of_a_line_that_was_left_is_released(ledger: Ledger) -> None:
    """The trainer died, and before it came back the operator rolled back."""
    with ledger.transaction() as tx:
        for number in (1, 2):
            policies.add(tx, version(number))
            policies.promote(tx, number)
        old, new = (scored(tx, policy_version=number) for number in (1, 2))
        first = batches.lease(tx, **LEASE | {"current_version": 2})
    assert first is not None and len(first.sample_ids) == 2
    with ledger.transaction() as tx:
        policies.promote(tx, 1)
        again = batches.lease(tx, **LEASE | {"current_version": 1})
        assert again is not None and again.id != first.id
        assert [one.id for _, one in batches.samples_of(tx, again)] == [old.id]
        left = tx.scalars(select(Sample).where(Sample.turn_id == new.id)).one()
        assert left.state == "dropped" and "stale" in str(left.reason)


@pytest.mark.parametrize(
    "change",
    [
        update(Sample).values(score=-1.0),
        update(Sample).values(teacher_logprobs=[-1.0, -2.25]),
        update(Turn).values(completion_ids=[5, 4]),
        update(Turn).values(response={"role": "assistant", "content": "13"}),
    ],
)
def test_a_leased_batch_that_was_tampered_with_is_noticed(ledger: Ledger, change: Any) -> None:
    with ledger.transaction() as tx:
        judged(tx, 2, **TEACHER)
        batches.lease(tx, **LEASE)
    with ledger.transaction() as tx:
        tx.execute(change)
    with pytest.raises(DigestMismatch), ledger.transaction() as tx:
        batches.lease(tx, **LEASE)


def test_too_few_samples_wait(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        assert batches.lease(tx, **LEASE) is None
        judged(tx, 2)
        assert batches.lease(tx, **LEASE, min_size=3) is None
        assert samples.counts(tx)["ready"] == 2
        assert batches.lease(tx, **LEASE, min_size=2) is not None


@pytest.mark.parametrize(
    ("needs", "leased", "reason"),
    [
        (("score",), {"score", "both"}, "no score"),
        (("teacher",), {"teacher", "both"}, "no teacher"),
        (("score", "teacher"), {"score", "teacher", "both"}, None),
    ],
)
def test_samples_that_teach_nothing_are_dropped_with_the_reason(
    ledger: Ledger, needs: tuple[str, ...], leased: set[str], reason: str | None
) -> None:
    with ledger.transaction() as tx:
        made = {
            "score": scored(tx).id,
            "teacher": scored(tx, score=None, **TEACHER).id,
            "both": scored(tx, **TEACHER).id,
        }
        assert samples.ready(tx, needs) == len(leased)
        batch = batches.lease(tx, **(LEASE | {"needs": needs}))
        assert batch is not None
        assert {one.id for _, one in batches.samples_of(tx, batch)} == {made[name] for name in leased}
        dropped = tx.scalars(select(Sample).where(Sample.state == "dropped")).all()
        assert [row.reason for row in dropped] == ([reason] if reason else [])


def test_stale_samples_are_dropped_with_the_reason(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        for number in (1, 2, 3):
            policies.add(tx, version(number))
            policies.promote(tx, number)
        old, fresh = scored(tx, policy_version=0), scored(tx, policy_version=1)
        batch = batches.lease(tx, **(LEASE | {"current_version": 3}))
        assert batch is not None and [one for _, one in batches.samples_of(tx, batch)] == [fresh]
        dropped = samples.of_turn(tx, old.id)
        assert dropped is not None and dropped.state == "dropped"
        assert dropped.reason == "stale: not within 2 updates before version 3"
        [event] = events.of(tx, "stale")
        assert event.data["count"] == 1


def test_staleness_is_counted_in_updates_along_the_line(ledger: Ledger) -> None:
    """After a rollback from 20 to 1 the next update is version 21; what version 1 samples is one update behind."""
    with ledger.transaction() as tx:
        for number in range(1, 21):
            policies.add(tx, version(number))
        policies.add(tx, Policy(version=21, parent=1, path="policies/policy-v21", sha256="ab"))
        policies.promote(tx, 21)
        made = {number: scored(tx, policy_version=number).id for number in (20, 21, 1, 0, 2)}
        batch = batches.lease(tx, **(LEASE | {"current_version": 21}))
        assert batch is not None
        assert [one.id for _, one in batches.samples_of(tx, batch)] == [made[21], made[1], made[0]]
        dropped = tx.scalars(select(Sample.policy_version).where(Sample.state == "dropped")).all()
        assert sorted(dropped) == [2, 20], "the branch that was left is no ancestor, however near its numbers are"


def test_what_the_serving_version_samples_waits_for_a_trainer_that_has_not_followed(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        for number in range(1, 6):
            policies.add(tx, version(number))
            policies.promote(tx, number)
        policies.promote(tx, 1)
        made = scored(tx, policy_version=1)
        assert batches.lease(tx, **(LEASE | {"current_version": 5})) is None
        assert samples.of_turn(tx, made.id).state == "ready"  # type: ignore[union-attr]
        batch = batches.lease(tx, **(LEASE | {"current_version": 1}))
        assert batch is not None and [one for _, one in batches.samples_of(tx, batch)] == [made]


def test_a_version_s_line_ends_at_the_base_model(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        for number in (1, 2):
            policies.add(tx, version(number))
        found = {(at, steps): sorted(tx.scalars(policies.lineage(at, steps))) for at in (0, 2) for steps in (0, 1, 9)}
    assert found == {(0, 0): [0], (0, 1): [0], (0, 9): [0], (2, 0): [2], (2, 1): [1, 2], (2, 9): [0, 1, 2]}


@pytest.mark.parametrize("needs", [(), ("advantage",), ("score", "hint")])
def test_unknown_needs_are_refused(ledger: Ledger, needs: tuple[str, ...]) -> None:
    with ledger.transaction() as tx, pytest.raises(ValueError, match="needs must name"):
        batches.lease(tx, **(LEASE | {"needs": needs}))


def test_commit_marks_everything_and_may_be_repeated(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        judged(tx, 6)
        one = batches.lease(tx, **LEASE)
        assert one is not None
        two = batches.lease(tx, **LEASE, held_ids=[one.id])
        assert two is not None
    for _ in range(3):
        with ledger.transaction() as tx:
            made = batches.commit(tx, [one.id, two.id], version(1), now=7.0)
            assert (made.version, made.state) == (1, "candidate")
    with ledger.reader() as tx:
        assert samples.counts(tx) == {"ready": 0, "leased": 0, "trained": 6, "dropped": 0}
        rows = tx.scalars(select(Batch)).all()
        assert [(row.state, row.trained_into, row.trained_at) for row in rows] == [("trained", 1, 7.0)] * 2
        assert [row.version for row in policies.all(tx)] == [0, 1]


def test_a_batch_is_not_trained_into_two_versions(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        judged(tx, 2)
        batch = batches.lease(tx, **LEASE)
        assert batch is not None
        batches.commit(tx, [batch.id], version(1))
    with pytest.raises(AlreadyTrained), ledger.transaction() as tx:
        batches.commit(tx, [batch.id], version(2))
    with ledger.transaction() as tx:
        assert policies.next_version(tx) == 2
        assert batches.lease(tx, **LEASE) is None


def test_two_batches_are_not_trained_into_one_version_one_by_one(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        judged(tx, 6)
        one = batches.lease(tx, **LEASE)
        assert one is not None
        batches.commit(tx, [one.id], version(1))
        two = batches.lease(tx, **LEASE)
    assert two is not None
    with pytest.raises(ValueError, match="take the next version"), ledger.transaction() as tx:
        batches.commit(tx, [two.id], version(1))
    with pytest.raises(AlreadyTrained), ledger.transaction() as tx:
        batches.commit(tx, [one.id, two.id], version(2))
    with pytest.raises(KeyError), ledger.transaction() as tx:
        batches.commit(tx, ["batch_unknown"], version(2))


def test_released_samples_are_leased_in_another_batch(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        judged(tx, 3)
        first = batches.lease(tx, **LEASE)
        assert first is not None
        for _ in range(2):
            batches.release(tx, first.id, "trainer changed its mind")
        assert samples.counts(tx)["ready"] == 3
        second = batches.lease(tx, **LEASE)
        assert second is not None and second.id != first.id and second.digest == first.digest
        with pytest.raises(AlreadyTrained):
            batches.commit(tx, [first.id], version(1))
        batches.commit(tx, [second.id], version(1))
        with pytest.raises(AlreadyTrained):
            batches.release(tx, second.id, "too late")


def test_samples_erased_while_leased_release_their_batch(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        gone, kept = judged(tx)[0], judged(tx)[0]
        first = batches.lease(tx, **LEASE)
        assert first is not None
    with ledger.transaction() as tx:
        turns.delete_session(tx, gone.session_id)
    with ledger.transaction() as tx:
        second = batches.lease(tx, **LEASE)
        assert second is not None and [one.id for _, one in batches.samples_of(tx, second)] == [kept.id]
        assert tx.get(Batch, first.id).state == "released"  # type: ignore[union-attr]


def test_samples_erased_during_training_do_not_hinder_the_commit(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        gone, _ = judged(tx)[0], judged(tx)[0]
        batch = batches.lease(tx, **LEASE)
        assert batch is not None
    with ledger.transaction() as tx:
        turns.delete_session(tx, gone.session_id)
    with ledger.transaction() as tx:
        batches.commit(tx, [batch.id], version(1))
    with ledger.reader() as tx:
        found = tx.get(Batch, batch.id)
        assert found is not None and (found.state, len(found.sample_ids)) == ("trained", 2)
        assert samples.counts(tx)["trained"] == 1


def test_erasing_trained_samples_keeps_the_proof(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        one = judged(tx)[0]
        batch = batches.lease(tx, **LEASE)
        assert batch is not None
        batches.commit(tx, [batch.id], version(1))
    with ledger.transaction() as tx:
        turns.delete_session(tx, one.session_id)
    with ledger.reader() as tx:
        found = tx.get(Batch, batch.id)
        assert found is not None and (found.state, found.digest) == ("trained", batch.digest)
        assert samples.counts(tx) == {"ready": 0, "leased": 0, "trained": 0, "dropped": 0}


def test_dropping_a_leased_sample_takes_it_out(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        judged(tx, 2)
        batch = batches.lease(tx, **LEASE)
        assert batch is not None
        assert samples.drop(tx, batch.sample_ids[0], "broken")
        batches.commit(tx, [batch.id], version(1))
        assert samples.counts(tx) == {"ready": 0, "leased": 0, "trained": 1, "dropped": 1}
        assert not samples.drop(tx, batch.sample_ids[1], "too late")


def test_a_lease_may_be_named(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        judged(tx, 1)
        batch = batches.lease(tx, **LEASE, idempotency_key="run-1:step-7")
        assert batch is not None and batch.idempotency_key == "run-1:step-7"
