"""A run that published nothing says so, and says it with its exit code where every version was refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger, policies
from clawrl_trl.ledger.schema import Policy
from clawrl_trl.script.outcome import check_versions, read_last_version

FAR, ENGINE = "gate: too far from the base: 3.00 nats per token", "engine: Loading lora policy-v1 failed"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(tmp_path / "ledger.sqlite")
    yield opened
    opened.close()


def add(ledger: Ledger, reason: str | None = None, *, state: str = "serving") -> None:
    with ledger.transaction() as tx:
        version = policies.next_version(tx)
        policies.add(tx, Policy(version=version, parent=0, path=f"policies/{version}", sha256="0", kind="adapter"))
        if reason:
            policies.reject(tx, version, reason)
        elif state == "serving":
            policies.promote(tx, version)


def test_a_run_without_a_version_says_what_became_of_the_samples(ledger: Ledger) -> None:
    assert read_last_version(ledger) == 0
    line = check_versions(ledger, 0)
    assert line == "No version was trained: of 0 replies in the ledger 0 samples wait and 0 were dropped."
    add(ledger)
    assert read_last_version(ledger) == 1 and check_versions(ledger, 1) == line


@pytest.mark.parametrize(
    ("reasons", "text"),
    [
        ([ENGINE], "its one version was refused (engine: Loading"),
        ([FAR, FAR, ENGINE], "The run published nothing, all its 3 versions were refused (gate: too far"),
        (["superseded by 2", "superseded by 3", ENGINE], "(engine: Loading"),
        (["superseded by 2"], "(superseded by 2): see that the engine answers"),
    ],
)
def test_a_run_whose_versions_were_all_refused_fails_with_the_reason(
    ledger: Ledger, reasons: list[str], text: str
) -> None:
    add(ledger)  # of an earlier run
    for reason in reasons:
        add(ledger, reason)
    with pytest.raises(UserError) as error:
        check_versions(ledger, 1)
    assert text in str(error.value)


@pytest.mark.parametrize("state", ["serving", "candidate"])
def test_a_version_that_serves_or_waits_for_the_engine_is_enough(ledger: Ledger, state: str) -> None:
    add(ledger, FAR)
    add(ledger, state=state)
    assert check_versions(ledger, 0) is None
