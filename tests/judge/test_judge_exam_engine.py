"""The default judge with the bundled model, by the real engine: no exam, and the run says so at each start."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.doctor.calibration import check_judge_exam
from clawrl_trl.doctor.target import Target
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.judge.exam.record import ExamRecord
from clawrl_trl.run import RunFolder

SETTINGS = ("--port", "0", "--max_model_len", "4096")
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
async def test_the_bundled_model_sits_no_exam_and_the_run_says_so(tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "serve.log"
    line = "judge auto: the bundled model sits no exam, which it is known to fail: not used"
    for _ in range(2):
        with serving_run(run, log):
            wait_until(lambda: "Serving" in log.read_text())
            settings = ServeSettings.load(run)
            async with EngineClient.of_run(RunFolder(run), settings, LONGEST_S) as client:
                finding = await check_judge_exam(Target(settings, client))
        assert line in log.read_text() and line in (run / "logs" / "judge.log").read_text()
        assert finding.status == "ok" and "not used" in finding.detail
    assert ServeSettings.load(run).judge == "auto"
    (result,) = ExamRecord(run).read()
    assert result.failure and result.model == "the bundled model"
