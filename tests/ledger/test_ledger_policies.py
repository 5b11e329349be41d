"""Versions come and go; exactly one serves."""

import pytest

from clawrl_trl.ledger import IllegalTransition, Ledger, events, policies
from clawrl_trl.ledger.schema import Policy


def states(tx: object) -> dict[int, str]:
    return {row.version: row.state for row in policies.all(tx)}  # type: ignore[arg-type]


def candidate(tx: object, number: int) -> Policy:
    return policies.add(tx, Policy(version=number, parent=number - 1, path=f"v{number}"))  # type: ignore[arg-type]


def test_promoting_retires_the_one_before(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        for number in (1, 2):
            candidate(tx, number)
            policies.promote(tx, number)
        assert states(tx) == {0: "retired", 1: "retired", 2: "serving"}
    with ledger.transaction() as tx:
        policies.promote(tx, 1)
        assert states(tx) == {0: "retired", 1: "serving", 2: "retired"}
        assert (policies.serving(tx).version, policies.latest(tx).version) == (1, 2)
        assert policies.next_version(tx) == 3
        assert [event.data["before"] for event in events.of(tx, "1")] == [0, 2]


def test_promoting_the_serving_version_changes_nothing(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        assert policies.promote(tx, 0).state == "serving"
        assert events.recent(tx) == []


def test_a_rejected_version_is_out_for_good(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        candidate(tx, 1)
        assert policies.reject(tx, 1, "not finite").reason == "not finite"
        with pytest.raises(IllegalTransition):
            policies.promote(tx, 1)
        assert states(tx) == {0: "serving", 1: "rejected"}
        assert policies.latest(tx).version == 0
        assert policies.next_version(tx) == 2


@pytest.mark.parametrize("number", [0, 1])
def test_what_serves_and_the_base_model_are_not_rejected(ledger: Ledger, number: int) -> None:
    with ledger.transaction() as tx:
        candidate(tx, 1)
        policies.promote(tx, 1)
        with pytest.raises(IllegalTransition):
            policies.reject(tx, number, "no")


def test_a_version_that_has_served_is_rejected_when_it_is_damaged(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        candidate(tx, 1)
        policies.promote(tx, 1)
        policies.promote(tx, 0)
        policies.reject(tx, 1, "damaged")
        with pytest.raises(IllegalTransition):
            policies.promote(tx, 1)
        assert states(tx) == {0: "serving", 1: "rejected"}


def test_unknown_versions_are_named(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        assert policies.get(tx, 7) is None
        for act in (lambda: policies.promote(tx, 7), lambda: policies.reject(tx, 7, "no")):
            with pytest.raises(KeyError, match="no policy version 7"):
                act()


def test_a_version_is_immutable(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        first = candidate(tx, 1)
        assert candidate(tx, 1) is first
        with pytest.raises(ValueError, match="other content"):
            policies.add(tx, Policy(version=1, parent=0, path="elsewhere"))
