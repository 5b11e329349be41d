"""The embedded engine as a process, beside a gateway under test."""

import os
import subprocess
import sys
from pathlib import Path

from gateway_rig import ENGINE_KEY, wait_until

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.run import RunFolder


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
        announced = self.run.read_announced("engine")
        return announced is not None and announced["pid"] == self.process.pid

    @property
    def url(self) -> str:
        announced = self.run.read_announced("engine")
        assert announced is not None
        return str(announced["base_url"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
