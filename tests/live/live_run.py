"""A run as a user starts it, for tests: processes, their readiness, their deaths."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from openai import OpenAI

from clawrl_trl.run import RunFolder

START_TIMEOUT = 600.0


def wait_for(condition: Callable[[], Any], timeout: float, what: str) -> Any:
    """Poll until `condition()` is truthy and return it."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {timeout:.0f} s")


class LiveRun:
    """`clawrl serve` on a folder, in a process of its own."""

    def __init__(self, folder: Path, *flags: str, environment: dict[str, str] | None = None) -> None:
        self.folder = RunFolder(folder).make()
        self.flags = flags
        self.environment = environment or {}
        self.process: subprocess.Popen[bytes] | None = None
        self.base_url = ""

    def start(self) -> "LiveRun":
        with (self.folder.logs / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "clawrl_trl.cli.main", "serve", "--run", str(self.folder.path), *self.flags],
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(self._ready, START_TIMEOUT, f"serving ({self.folder.logs})")
        announced = self.folder.read_announced("gateway")
        assert announced is not None
        self.base_url = str(announced["base_url"])
        return self

    def _ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError((self.folder.logs / "serve.log").read_text()[-2000:])
        parts = ("engine", "gateway") if "off" in self.flags else ("engine", "gateway", "judge")
        return all(self.folder.read_announced(name) for name in parts)

    def client(self, **options: Any) -> OpenAI:
        return OpenAI(base_url=self.base_url, api_key="local", max_retries=0, timeout=60, **options)

    def kill(self, name: str) -> None:
        """`kill -9` one of the run's processes."""
        announced = self.folder.read_announced(name)
        if announced is not None:
            os.kill(announced["pid"], signal.SIGKILL)

    def stop(self) -> int:
        assert self.process is not None
        children = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(60)
        _, alive = psutil.wait_procs(children, timeout=20)
        assert not alive
        return code
