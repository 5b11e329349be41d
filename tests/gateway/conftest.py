"""Fixtures of the gateway's tests: a gateway over a scripted engine, and one over the real embedded engine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from gateway_rig import ENGINE_KEY, Rig, running, wait_until

from clawrl_trl.run import RunFolder
from clawrl_trl.settings import ServeSettings

sys.path.append(str(Path(__file__).parents[1] / "engines"))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(tmp_path / "run") as rig:
        yield rig


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the engine tests' small model and its policies; made once for all test processes."""
    from engine_models import build_all

    given = os.environ.get("CLAWRL_TEST_ENGINE_MODELS")
    folder = Path(given) if given else tmp_path_factory.getbasetemp().parent / "engine-models"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            build_all(folder)
    return folder


class RealEngine:
    """The embedded engine in a process of its own, for the time of a `with` block."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.run = RunFolder(folder).make()
        ServeSettings(run=str(folder), model_name_or_path=str(model), max_model_len=512).save()

    def __enter__(self) -> "RealEngine":
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        with (self.run.logs / "engine.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "clawrl_trl.engines.embedded", "--run", str(self.run.path)],
                env={**os.environ, "CLAWRL_ENGINE_KEY": ENGINE_KEY, "OMP_NUM_THREADS": "1"},
                stderr=log,
            )
        wait_until(self._up, patience_s=240)

    def _up(self) -> bool:
        assert self.process.poll() is None, (self.run.logs / "engine.log").read_text()
        announced = self.run.announced("engine")
        return announced is not None and announced["pid"] == self.process.pid

    @property
    def url(self) -> str:
        announced = self.run.announced("engine")
        assert announced is not None
        return str(announced["base_url"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def real_engine(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    with RealEngine(tmp_path_factory.mktemp("real-engine"), models / "base") as engine:
        yield engine


@pytest.fixture
def live(real_engine: RealEngine, models: Path, tmp_path: Path) -> Iterator[Rig]:
    """A gateway over the real engine."""
    with running(tmp_path / "run", engine_url=real_engine.url, max_model_len=512) as rig:
        yield rig
