"""Start of a run's parts under its supervisor: engine, gateway and judge, each when the one before is ready."""

import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import httpx
from rich.console import Console
from rich.markup import escape

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.launch import JUDGE_KEY, engine_command, free_port
from clawrl_trl.process import StopRequest
from clawrl_trl.run import RunFolder
from clawrl_trl.serving.connection import describe_judge
from clawrl_trl.serving.supervisor import Child, Supervisor, read_last_lines

FETCHING_TIMEOUT = 1800.0
"""Longest wait for an engine, or the judge: it may have a model to fetch."""
START_TIMEOUT = 120.0
PROBE_TIMEOUT = 20.0
"""Longest wait for a part to say that it is well; a busy machine is slow, not stuck."""
PARTS = ("gateway", "judge", "engine", "judge_engine")
JUDGE_NICE = 5
"""Added to the judge's priority number: the chat comes first."""


@dataclass(frozen=True)
class Startup:
    """Start of a run's parts.

    Args:
        supervisor (`Supervisor`): Runs them from then on.
        folder (`RunFolder`): The run, in which each part announces its address.
        console (`Console`): Shows the newest line of the log of a part that is not ready yet.
        stop (`StopRequest`): Once it is made, nothing more is started or waited for.
    """

    supervisor: Supervisor
    folder: RunFolder
    console: Console
    stop: StopRequest

    def start_all(self, settings: ServeSettings) -> ServeSettings:
        """Start engine, gateway and judge, each when the one before is ready; returns the resolved settings."""
        for name in PARTS:
            (self.folder.path / f"{name}.json").unlink(missing_ok=True)
        settings.save()  # before any part starts: each reads them there
        run = ["--run", str(self.folder.path)]
        self.start_engine(settings)
        settings = self._start_judge_engine(settings)
        probe = _make_probe(self.folder, "gateway", "/healthz")
        command = [sys.executable, "-m", "clawrl_trl.gateway", *run]
        self._start(Child("gateway", command, probe=probe, hang_timeout=settings.hang_timeout), START_TIMEOUT)
        announced = self.folder.read_announced("gateway")
        if settings.port == 0 and announced is not None:
            # A gateway that is started again takes the same port: clients have its address.
            settings = replace(settings, port=int(announced["base_url"].split(":")[-1].split("/")[0]))
            settings.save()
        if settings.judge != "off":
            judge = Child("judge", [sys.executable, "-m", "clawrl_trl.judge", *run], nice=JUDGE_NICE)
            self._start(judge, FETCHING_TIMEOUT)
            for line in describe_judge(self.folder):
                self.console.print(line, highlight=False, markup=False, soft_wrap=True)
        return settings

    def start_engine(self, settings: ServeSettings) -> None:
        """Start the run's engine, or announce the one that the settings give the address of."""
        if settings.is_remote:
            self.folder.announce("engine", settings.engine.rstrip("/"), key=os.environ.get("CLAWRL_ENGINE_KEY"))
            return
        # Engine, gateway and judge inherit it: a command line is open to other users.
        os.environ.setdefault("CLAWRL_ENGINE_KEY", secrets.token_urlsafe(24))
        probe = _make_probe(self.folder, "engine", "/health")
        engine = Child("engine", engine_command(settings), probe=probe, hang_timeout=settings.hang_timeout)
        self._start(engine, FETCHING_TIMEOUT)

    def _start_judge_engine(self, settings: ServeSettings) -> ServeSettings:
        """Start the judge's own server where it has devices of its own; the settings then name it."""
        if not settings.prm_gpus or settings.judge not in ("llm", "auto") or settings.judge_url:
            return settings
        settings = replace(settings, judge_url=f"http://127.0.0.1:{free_port()}")
        settings.save()
        os.environ.setdefault(JUDGE_KEY, secrets.token_urlsafe(24))
        self._start(Child("judge_engine", engine_command(settings, judge=True)), FETCHING_TIMEOUT)
        return settings

    def _start(self, child: Child, timeout: float) -> None:
        if self.stop.is_set():
            return
        log = self.supervisor.logs / f"{child.name}.log"
        size_before = log.stat().st_size if log.exists() else 0
        self.supervisor.start(child)
        with self.console.status(f"Starting the {child.name} (log: {log})") as status:

            def is_ready() -> bool:
                last_line = f": {read_last_lines(log)}" if log.stat().st_size > size_before else ""
                status.update(escape(f"Starting the {child.name}{last_line} (log: {log})"))
                return self.stop.is_set() or self.folder.read_announced(child.name) is not None

            self.supervisor.wait_until(is_ready, child, timeout)


def _make_probe(folder: RunFolder, name: str, path: str) -> Callable[[], bool]:
    """Return a probe of a part's own address: true if it answers, and not with a fault."""

    def answers() -> bool:
        announced = folder.read_announced(name)
        if announced is None:
            return False
        url = announced["base_url"].removesuffix("/v1") + path
        try:
            return httpx.get(url, timeout=PROBE_TIMEOUT, trust_env=False).status_code < 500
        except (httpx.HTTPError, OSError):  # an OSError where no file is left for the request
            return False

    return answers
