"""When a measured run is over: its worker is through, and what it left is judged and trained."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_up import fill, make_samples
from sqlalchemy import select

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.envs.runs import measured_run
from clawrl_trl.envs.runs.persona_options import PersonaOptions
from clawrl_trl.envs.runs.persona_run import PersonaRun
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger
from clawrl_trl.ledger.schema import Sample, Turn

NEEDS = ("score",)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Three turns that wait for the judge, and one sample that waits for training."""
    opened = Ledger.open(tmp_path / "ledger.db")
    fill(opened, make_samples(3))
    with opened.transaction() as tx:
        for sample in tx.scalars(select(Sample).offset(1)):
            sample.state = "dropped"
    leave_judging(opened, 3)
    yield opened
    opened.close()


@pytest.fixture
def trained(ledger: Ledger) -> Ledger:
    """The same, and nothing waits for training."""
    with ledger.transaction() as tx:
        for sample in tx.scalars(select(Sample)):
            sample.state = "dropped"
    return ledger


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(measured_run.time, "monotonic", lambda: now[0])
    return now


def leave_judging(ledger: Ledger, count: int) -> None:
    with ledger.transaction() as tx:
        for number, turn in enumerate(tx.scalars(select(Turn).order_by(Turn.id))):
            turn.state = "judging" if number < count else "judged"


def run_whose_worker_ended(folder: Path, code: int = 0) -> PersonaRun:
    settings = ServeSettings(run=str(folder), model_name_or_path="tiny")
    run = PersonaRun(PersonaOptions(persona="student"), settings, "http://127.0.0.1:1/v1")
    run._process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
    run._process.wait(60)
    return run


def test_a_judge_is_waited_for_as_long_as_it_judges(trained: Ledger, clock: list[float], tmp_path: Path) -> None:
    run = run_whose_worker_ended(tmp_path)
    for left in (3, 2, 1):
        leave_judging(trained, left)
        assert not run.is_over(trained, NEEDS)
        clock[0] += measured_run.JUDGE_TIMEOUT - 1
        assert not run.is_over(trained, NEEDS)
    leave_judging(trained, 0)
    assert run.is_over(trained, NEEDS)


def test_a_judge_that_is_away_keeps_no_run_from_its_end(trained: Ledger, clock: list[float], tmp_path: Path) -> None:
    run = run_whose_worker_ended(tmp_path)
    assert not run.is_over(trained, NEEDS)
    clock[0] += measured_run.JUDGE_TIMEOUT + 1
    assert run.is_over(trained, NEEDS)


def test_what_waits_for_training_is_trained_first(ledger: Ledger, tmp_path: Path) -> None:
    leave_judging(ledger, 0)
    assert not run_whose_worker_ended(tmp_path).is_over(ledger, NEEDS)


def test_a_worker_that_failed_ends_the_run_with_its_words(trained: Ledger, tmp_path: Path) -> None:
    run = run_whose_worker_ended(tmp_path, code=2)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / run.log).write_text("error: the gateway is gone\n")
    with pytest.raises(UserError, match="the gateway is gone"):
        run.is_over(trained, NEEDS)


def test_a_worker_that_plays_on_is_waited_for(trained: Ledger, tmp_path: Path) -> None:
    leave_judging(trained, 0)
    run = run_whose_worker_ended(tmp_path)
    run._process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not run.is_over(trained, NEEDS)
    finally:
        run._process.communicate(b"\n", timeout=60)
    assert run.is_over(trained, NEEDS)
