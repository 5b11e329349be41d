"""A measured run: its worker reads its options in the run folder, and ends with the run, whatever it is at."""

import signal
from pathlib import Path

import pytest
from gateway_rig import wait_until

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.envs.runs import measured_run
from clawrl_trl.envs.runs.measured_run import MeasuredRun
from clawrl_trl.envs.runs.persona_options import PersonaOptions
from clawrl_trl.messages import Json

STUBBORN = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[sys.argv.index("--run") + 1], "ready").touch()
while True:
    signal.pause()
"""


class StubbornRun(MeasuredRun[PersonaOptions, float]):
    """A run whose worker ignores SIGTERM."""

    module, log, record = "stubborn_teacher", "teacher.log", "rows.jsonl"

    def evaluate(self, name: str) -> float:
        return 0.0

    def to_json(self, report: float) -> Json:
        return {"rate": report}

    def from_json(self, content: Json) -> float:
        return float(content["rate"])

    def collect_metrics(self, before: float, after: float, rows: list[Json]) -> Json:
        return {}

    def describe_progress(self, rows: list[Json]) -> tuple[int, int, str]:
        return 0, 1, ""


def test_a_teacher_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_run, "STOP_TIMEOUT", 0.1)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "stubborn_teacher.py").write_text(STUBBORN)
    (tmp_path / "logs").mkdir()
    run = StubbornRun(PersonaOptions(), ServeSettings(run=str(tmp_path)), "http://127.0.0.1:9/v1")
    with run:
        wait_until((tmp_path / "ready").exists)
    assert run._process.returncode == -signal.SIGKILL
