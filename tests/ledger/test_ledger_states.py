"""The transition tables, as the design words them, are what assignments and bulk moves obey."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_rows import judged, turn

from clawrl_trl.ledger import IllegalTransition, Ledger, samples, states
from clawrl_trl.ledger.schema import Batch, Policy, Sample, Turn

ALLOWED = {
    Turn: {
        ("captured", "awaiting_next_state"),
        ("awaiting_next_state", "judging"),
        ("awaiting_next_state", "expired"),
        ("expired", "judging"),
        ("judging", "judged"),
        ("judged", "judging"),
    },
    Sample: {
        ("ready", "leased"),
        ("ready", "dropped"),
        ("leased", "trained"),
        ("leased", "ready"),
        ("leased", "dropped"),
    },
    Batch: {("leased", "trained"), ("leased", "released")},
    Policy: {
        ("candidate", "serving"),
        ("candidate", "rejected"),
        ("serving", "retired"),
        ("retired", "serving"),
        ("retired", "rejected"),
        ("retired", "pruned"),
    },
}
"""What the design says, spelled out once more."""

MADE = {
    Turn: lambda **fields: turn("session_1", **fields),
    Sample: lambda **fields: Sample(turn_id="turn_1", policy_version=0, **fields),
    Batch: lambda **fields: Batch(idempotency_key="key", digest="", sample_ids=[], **fields),
    Policy: lambda **fields: Policy(version=1, **fields),
}
PAIRS = [
    (kind, old, new)
    for kind in ALLOWED
    for old in states.names(kind.transitions)
    for new in states.names(kind.transitions)
]


def _in_state(kind: type, state: str) -> object:
    """A row that went to `state` by allowed steps."""
    row = MADE[kind]()
    paths = {row.state: [row.state]}
    while state not in paths:
        paths |= {b: [*paths[a], b] for a, b in ALLOWED[kind] if a in paths and b not in paths}
    for step in paths[state][1:]:
        row.state = step
    return row


@pytest.mark.parametrize(("kind", "old", "new"), PAIRS)
def test_assignments_obey_the_table(kind: type, old: str, new: str) -> None:
    row = _in_state(kind, old)
    if old == new or (old, new) in ALLOWED[kind]:
        row.state = new
        assert row.state == new
    else:
        with pytest.raises(IllegalTransition):
            row.state = new
        assert row.state == old


@pytest.mark.parametrize("kind", list(ALLOWED))
def test_rows_are_born_in_the_first_state(kind: type) -> None:
    first, *later = states.names(kind.transitions)
    assert MADE[kind]().state == MADE[kind](state=first).state == first
    for state in [*later, "unknown"]:
        with pytest.raises(IllegalTransition):
            MADE[kind](state=state)


@given(st.sampled_from([kind.transitions for kind in ALLOWED]), st.data())
def test_sources_are_the_table_read_backwards(table: states.Table, data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(states.names(table)))
    assert set(states.sources(table, target)) == {old for old in states.names(table) if target in table[old]}


def test_bulk_moves_leave_rows_that_may_not_move(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        judged(tx, 3)
        first, second, third = (row.id for row in tx.query(Sample).order_by(Sample.id))
        assert samples.drop(tx, first, "unwanted")
        assert not samples.drop(tx, first, "again")
        assert states.move(tx, Sample.state, states.SAMPLE, "trained") == 0
        assert states.move(tx, Sample.state, states.SAMPLE, "dropped", reason="all") == 2
        assert samples.counts(tx) == {"ready": 0, "leased": 0, "trained": 0, "dropped": 3}
        assert [tx.get(Sample, one).reason for one in (first, second, third)] == ["unwanted", "all", "all"]
