"""A batch that ends its trainer is not leased for ever: its samples are trained alone, the one at fault dropped."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_rows import judged
from sqlalchemy import event, select

from clawrl_trl.credit import LedgerSource, SampleBatch
from clawrl_trl.ledger import Ledger, batches, events, interruptions, policies, samples
from clawrl_trl.ledger.schema import Policy, Sample


def start(ledger: Ledger, **options: Any) -> LedgerSource:
    """The source of a trainer that was just started."""
    return LedgerSource(ledger, **{"batch_size": 3, "timeout_s": 0.0, **options})


def train(ledger: Ledger, batch: SampleBatch) -> None:
    assert batch.batch_id is not None
    with ledger.transaction() as tx:
        number = policies.next_version(tx)
        batches.commit(tx, [batch.batch_id], Policy(version=number, parent=number - 1, path=f"v{number}"))
        policies.promote(tx, number)


def take(source: LedgerSource) -> SampleBatch:
    batch = source.take(0.0)
    assert batch is not None
    return batch


def reasons(ledger: Ledger) -> dict[str, str | None]:
    with ledger.reader() as tx:
        return {row.state: row.reason for row in tx.scalars(select(Sample))}


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_the_sample_at_fault_is_given_up_and_the_others_are_trained(ledger: Ledger, culprit: int) -> None:
    with ledger.transaction() as tx:
        judged(tx, 3)
        ids = list(tx.scalars(select(Sample.id).order_by(Sample.created_at, Sample.id)))
    sizes, deaths = [], 0
    while deaths < 10:
        source = start(ledger, max_staleness=100)
        while (batch := source.take(0.0)) is not None:
            sizes.append(len(batch.samples))
            if ids[culprit] in {sample.sample_id for sample in batch.samples}:
                deaths += 1
                break
            train(ledger, batch)
        else:
            break
    assert deaths == 3 and sizes.count(3) == 2 and set(sizes) == {1, 3}
    with ledger.reader() as tx:
        assert samples.counts(tx) == {"ready": 0, "leased": 0, "trained": 2, "dropped": 1}
        dropped = tx.get(Sample, ids[culprit])
        assert dropped is not None and dropped.reason == "interrupted training 3 times"


def test_a_batch_that_comes_again_in_one_process_was_not_interrupted(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        judged(tx, 3)
    source = start(ledger)
    assert {take(source).batch_id for _ in range(6)} == {take(source).batch_id}
    with ledger.reader() as tx:
        assert not [row for row in events.recent(tx) if row.kind == interruptions.KIND]


def test_an_interruption_of_several_batches_counts_once_for_each(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        judged(tx, 4)
        held: list[str] = []
        for _ in range(2):
            batch = batches.lease(tx, size=2, needs=("score",), max_staleness=0, current_version=0, held_ids=held)
            assert batch is not None
            held.append(batch.id)
    source = start(ledger)
    for _ in range(3):
        assert take(source).batch_id == held[0]
    with ledger.reader() as tx:
        ids = list(tx.scalars(select(Sample.id)))
        assert interruptions.count(tx, ids) == dict.fromkeys(ids, 1)


def test_statements_do_not_grow_with_what_was_trained(ledger: Ledger) -> None:
    source = start(ledger, max_staleness=100)
    sizes: list[int] = []

    @event.listens_for(ledger.writer_engine, "before_cursor_execute")
    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *others: Any) -> None:
        if "FROM batches" in statement:
            sizes[-1] = max(sizes[-1], len(parameters))

    for _ in range(4):
        with ledger.transaction() as tx:
            judged(tx, 3)
        sizes.append(0)
        train(ledger, take(source))
    assert len(set(sizes)) == 1


def test_a_stop_on_purpose_counts_nothing(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        judged(tx, 3)
    for _ in range(6):
        source = start(ledger)
        batch = take(source)
        assert len(batch.samples) == 3
        source.excuse(batch)
    for size in (3, 3, 1):  # an excuse serves for one return: from here on each counts
        assert len(take(start(ledger)).samples) == size


def test_a_long_sample_is_dropped_when_it_is_leased(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        judged(tx, 3)
        rows = batches._content(tx, list(tx.scalars(select(Sample.id))))
        turn = rows[1][1]
        assert turn.prompt_ids is not None and turn.completion_ids is not None
        longest = len(turn.prompt_ids) + len(turn.completion_ids)
        turn.prompt_ids = [7, *turn.prompt_ids]
    source = start(ledger, max_sample_tokens=longest)
    assert source.take(0.0) is None
    batch = take(source)
    assert len(batch.samples) == 2 and batch.dropped == {"too long": 1}
    message = f"too long: {longest + 1} tokens, at most {longest} are trained (--max_sample_tokens)"
    assert reasons(ledger)["dropped"] == message
    assert take(start(ledger, max_sample_tokens=0)).dropped == {}


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deaths=st.lists(st.booleans(), min_size=1, max_size=40), size=st.integers(1, 4))
def test_training_ends_whatever_dies(tmp_path_factory: pytest.TempPathFactory, deaths: list[bool], size: int) -> None:
    """No sample is leased more than five times by trainers that die, and none is trained twice."""
    ledger = Ledger.open(tmp_path_factory.mktemp("run") / "ledger.db")
    with ledger.transaction() as tx:
        judged(tx, 5)
    leases: dict[str, int] = {}
    source = start(ledger, batch_size=size, max_staleness=100)
    for dies in [*deaths, *[True] * 60]:
        batch = source.take(0.0)
        if batch is None:
            break
        for sample in batch.samples:
            leases[sample.sample_id] = leases.get(sample.sample_id, 0) + dies
        if dies:
            source = start(ledger, batch_size=size, max_staleness=100)
        else:
            train(ledger, batch)
    with ledger.reader() as tx:
        counts = samples.counts(tx)
    ledger.close()
    assert counts["trained"] + counts["dropped"] == 5 and max(leases.values()) <= 3
