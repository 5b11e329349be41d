"""The bundled model's exam, by the real engine: it fails, and the run says so at once and at its next start."""

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.doctor.calibration import check_judge_exam
from clawrl_trl.doctor.target import Target
from clawrl_trl.judge.exam.record import ExamRecord

SETTINGS = ("--judge", "auto", "--port", "0", "--max_model_len", "4096", "--judge_max_tokens", "128")
LONGEST_S = 240.0


@contextlib.contextmanager
def serving_run(run: Path, log: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "clawrl_trl.cli.main", "serve", "--run", str(run), *SETTINGS]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
async def test_the_bundled_model_fails_and_the_run_says_so(tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "serve.log"
    with serving_run(run, log):
        wait_until(lambda: ExamRecord(run).find_newest() is not None and "Serving" in log.read_text())
    result = ExamRecord(run).find_newest()
    assert result is not None and result.failure and result.model == "the bundled model"
    line = r"judge auto: the bundled model .*: not used, the embedded judge alone decides"
    assert re.search(line, (run / "logs" / "judge.log").read_text())
    assert "judge auto: the bundled model sits its exam of 60 questions" in log.read_text()
    finding = await check_judge_exam(Target(ServeSettings.load(run)))
    assert finding.status == "warn" and "not used" in finding.detail

    stored = (run / "judge_exam.json").read_bytes()
    with serving_run(run, log):
        wait_until(lambda: "Serving" in log.read_text())
    assert re.search(line + r" \(exam of 20", log.read_text())
    assert (run / "judge_exam.json").read_bytes() == stored
