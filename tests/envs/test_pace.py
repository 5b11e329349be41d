"""Pace of practice: a trainer at work is waited for however slow it is, a dead or idle one for a bounded time."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_up import fill, make_samples

from clawrl_trl.credit import LedgerSource
from clawrl_trl.envs.runs import pace as pace_module
from clawrl_trl.envs.runs.pace import Pace, count_waiting
from clawrl_trl.envs.runs.wave import LEAD, Wave
from clawrl_trl.heartbeat import TRAINING, WAITING, Heartbeat
from clawrl_trl.ledger import Ledger
from clawrl_trl.run import RunFolder


class SimulatedTrainer:
    """A trainer on a clock of its own: a step of 4 samples takes so many passes, each so long.

    Args:
        heartbeat: Its sign of life.
        waiting: Samples that wait at the start.
        passes: Passes of a step.
        pass_s: Seconds of a pass.
        dies_at: The time from which it does nothing.
    """

    def __init__(
        self, heartbeat: Path, waiting: int, passes: int = 1, pass_s: float = 1.0, dies_at: float = float("inf")
    ) -> None:
        self.path, self.heartbeat = heartbeat, Heartbeat(heartbeat)
        self.waiting, self.passes, self.pass_s, self.dies_at = waiting, passes, pass_s, dies_at
        self.now, self._beats, self._next_pass = 0.0, 0, 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        while self.now < self.dies_at and self._next_pass <= self.now and self.waiting >= 4:
            self._next_pass += self.pass_s
            self._beats += 1
            self.heartbeat.begin_pass()
            os.utime(self.path, ns=(self._beats, self._beats))  # the file system's clock may be coarse
            if self._beats % self.passes == 0:
                self.waiting -= 4


@pytest.fixture
def make_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SimulatedTrainer]]:
    def make(*arguments: float, **options: float) -> SimulatedTrainer:
        trainer = SimulatedTrainer(RunFolder(tmp_path).heartbeat, *arguments, **options)  # type: ignore[arg-type]
        clock = SimpleNamespace(monotonic=lambda: trainer.now, sleep=lambda seconds: trainer.sleep(seconds))
        monkeypatch.setattr(pace_module, "time", clock)
        return trainer

    yield make


def make_pace(run: Path, trainer: SimulatedTrainer) -> Pace:
    return Pace(run, lambda: trainer.waiting, room=8, idle_s=20.0, pass_s=300.0)


def test_a_slow_trainer_is_waited_for(tmp_path: Path, make_trainer: Callable[..., SimulatedTrainer]) -> None:
    trainer = make_trainer(16, passes=8, pass_s=60.0)
    make_pace(tmp_path, trainer).wait()
    assert trainer.waiting == 4 and trainer.now > 23 * 60, "24 passes of a minute for three steps"


def test_a_dead_trainer_is_noticed(
    tmp_path: Path, make_trainer: Callable[..., SimulatedTrainer], caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(16, passes=8, pass_s=60.0, dies_at=100.0)
    make_pace(tmp_path, trainer).wait()
    assert trainer.waiting == 16 and 300 < trainer.now < 100 + 300 + 1
    assert "taken no samples for 300 s" in caplog.text


def test_a_rollout_that_is_stopped_waits_no_longer(
    tmp_path: Path, make_trainer: Callable[..., SimulatedTrainer]
) -> None:
    trainer = make_trainer(16, dies_at=0.0)
    make_pace(tmp_path, trainer).wait(lambda: trainer.now > 3)
    assert 3 < trainer.now < 4


@pytest.mark.parametrize("has_waited", [True, False])
def test_a_trainer_that_waits_itself_is_waited_for_briefly(
    has_waited: bool, tmp_path: Path, make_trainer: Callable[..., SimulatedTrainer]
) -> None:
    trainer = make_trainer(16, dies_at=0.0)
    if has_waited:
        trainer.heartbeat.begin_waiting()
    make_pace(tmp_path, trainer).wait()
    assert 20 < trainer.now < 21


def test_what_is_dropped_is_waited_for_no_longer(
    tmp_path: Path, make_trainer: Callable[..., SimulatedTrainer]
) -> None:
    trainer = make_trainer(7)
    pace = make_pace(tmp_path, trainer)
    pace.wait()
    assert trainer.now == 0.0, "there is room"
    trainer.waiting = 64
    trainer.sleep = lambda seconds: setattr(trainer, "waiting", 0)  # type: ignore[method-assign]
    pace.wait()
    assert trainer.waiting == 0 and trainer.now == 0.0


def test_a_heartbeat_says_what_the_trainer_does(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    heartbeat = Heartbeat(path)
    heartbeat.begin_pass()
    assert path.read_text() == TRAINING
    heartbeat.begin_waiting()
    assert path.read_text() == WAITING
    path.unlink()
    heartbeat.begin_waiting()
    assert not path.exists(), "nothing new"
    heartbeat.begin_pass()
    assert path.read_text() == TRAINING
    Heartbeat(tmp_path / "no" / "folder").begin_pass()


def test_what_waits_is_what_is_free_or_in_training(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    assert count_waiting(ledger, ()) == 0
    fill(ledger, [*make_samples(5), *make_samples(2, seed=1, teacher_logprobs=None, plain_logprobs=None)])
    assert count_waiting(ledger, ()) == 7 and count_waiting(ledger, ("teacher",)) == 5
    source = LedgerSource(ledger, batch_size=3, needs=("score",), timeout_s=0.0)
    batch = source.take(0.0)
    assert batch is not None and count_waiting(ledger, ()) == 7
    source.drop(batch, "a test's")
    assert count_waiting(ledger, ()) == 4
    ledger.close()


def test_the_lead_leaves_a_wave_its_versions() -> None:
    wave = Wave(8, 10, 8)
    assert wave.find_lead(80, 4) == LEAD, "one version takes the wave, four may pass before"
    assert wave.find_lead(20, 4) == 1, "four versions take it, one may pass before"
    assert wave.find_lead(16, 4) == 1 and wave.find_lead(2, 4) == LEAD
