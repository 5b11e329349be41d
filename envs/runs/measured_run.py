"""A live run that is taught by a process of its own, and measured before and after.

The teacher, a simulated user or a rollout of episodes, plays through the gateway as any client would while the caller
trains. What was measured is kept in the run folder, so a run that was interrupted goes on where it stopped and
reports the same figures.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx
from rich.console import Console
from rich.table import Table

from clawrl_trl.config.serving import ServeSettings, client_key
from clawrl_trl.envs.runs.progress import bar
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger, policies, samples, turns
from clawrl_trl.process import end_with_parent
from clawrl_trl.run import open_private, write_private
from clawrl_trl.serving.supervisor import last_lines

SWITCH_TIMEOUT = 30.0
JUDGE_TIMEOUT = 60.0
STOP_TIMEOUT = 60.0
"""Longest wait for a teacher that was told to end, in seconds: a step, or a grading, may take many minutes."""

R = TypeVar("R")


class TaughtRun(ABC, Generic[R]):
    """A run that is being taught; `R` is the report of an evaluation.

    Entering it evaluates and starts the teacher; leaving it ends the teacher.

    Args:
        settings (`ServeSettings`): The run.
        base_url (`str`): Its gateway's URL, ending in `/v1`.
    """

    module: str
    """The module that teaches, run with `python -m`."""
    log: str
    """Its log, in the run's folder of logs."""
    record: str
    """The file of its rows, in the run folder."""

    def __init__(self, settings: ServeSettings, base_url: str) -> None:
        self.folder = Path(settings.run)
        self.model = settings.model_names[0]
        self.base_url = base_url
        self._over_at: float | None = None

    @abstractmethod
    def flags(self) -> dict[str, Any]:
        """The teacher's flags; those that are `None` are left out."""

    @abstractmethod
    def evaluate(self, name: str) -> R:
        """Measure the model as it is served now."""

    @abstractmethod
    def to_json(self, report: R) -> dict[str, Any]:
        """A report as it is kept."""

    @abstractmethod
    def from_json(self, content: dict[str, Any]) -> R:
        """The report that was kept."""

    @abstractmethod
    def metrics(self, before: R, after: R, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the metrics of both evaluations and of the rows between."""

    @abstractmethod
    def shown(self, rows: list[dict[str, Any]]) -> tuple[int, int, str]:
        """Return the progress: done, of how many, and a remark."""

    @property
    def title(self) -> str:
        """Title of the progress bar."""
        return self.log.removesuffix(".log")

    def __enter__(self) -> Self:
        self.before = self._measured("before")
        self._process = self._start()
        self._watch = _Watch(self)
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.stop()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def over(self, ledger: Ledger, needs: Sequence[str]) -> bool:
        """Return whether the teacher is through and nothing of it is left to judge or to train.

        Raises:
            UserError: If the teacher ended early.
        """
        code = self._process.poll()
        if code:
            raise UserError(last_lines(self.folder / "logs" / self.log).removeprefix("error: "))
        if code is None:
            return False
        self._over_at = self._over_at or time.monotonic()
        with ledger.reader() as tx:
            judging = turns.counts(tx).get("judging", 0)
            waiting = samples.ready(tx, needs) + samples.counts(tx).get("leased", 0)
        return not waiting and (not judging or time.monotonic() - self._over_at > JUDGE_TIMEOUT)

    def played(self) -> list[dict[str, Any]]:
        """The rows so far; read without the repair that `Interactions` makes, for it is being written."""
        path = self.folder / self.record
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def report(self, ledger: Ledger, version: int, **facts: Any) -> dict[str, Any]:
        """Evaluate policy `version`, write `metrics.json`, return the metrics."""
        self._wait_for(version)
        after, rows = self._measured("after", fresh=True), self.played()
        with ledger.reader() as tx:
            trained = samples.counts(tx).get("trained", 0)
            versions = sum(policy.version > 0 for policy in policies.all(tx))
        metrics = {
            **self.metrics(self.before, after, rows),
            "policy_version": version,
            "policy_versions": versions,
            "samples_trained": trained,
            **facts,
        }
        write_private(self.folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")
        return metrics

    def _measured(self, name: str, *, fresh: bool = False) -> R:
        path = self.folder / f"evaluation_{name}.json"
        if path.exists() and not fresh:
            return self.from_json(json.loads(path.read_text()))
        report = self.evaluate(name)
        write_private(path, json.dumps(self.to_json(report)) + "\n")
        return report

    def _start(self) -> subprocess.Popen[bytes]:
        flags = {"run": self.folder, "model": self.model, **self.flags()}
        words = [word for name, value in flags.items() if value is not None for word in (f"--{name}", str(value))]
        with open_private(self.folder / "logs" / self.log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", self.module, *words],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=end_with_parent,
            )

    def _wait_for(self, version: int) -> None:
        """Wait until the gateway answers with `version`.

        Raises:
            UserError: If it still doesn't after 30 s.
        """
        key = client_key("chat")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        body = {"model": self.model, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}
        deadline = time.monotonic() + SWITCH_TIMEOUT
        while time.monotonic() < deadline:
            response = httpx.post(
                f"{self.base_url}/chat/completions",
                json=body,
                headers={**headers, "X-Turn-Type": "side"},
                timeout=SWITCH_TIMEOUT,
            )
            if response.headers.get("x-clawrl-policy-version") == str(version):
                return
            time.sleep(0.2)
        raise UserError(f"The gateway does not serve policy {version}; see {self.folder / 'logs' / 'gateway.log'}.")


class _Watch(threading.Thread):
    """Shows how far the teacher is, from the record it keeps."""

    def __init__(self, run: TaughtRun[Any]) -> None:
        super().__init__(daemon=True)
        self._run = run
        self._halt = threading.Event()

    def run(self) -> None:
        with bar(desc=self._run.title) as shown:
            while not self._halt.wait(0.5):
                done, shown.total, remark = self._run.shown(self._run.played())
                shown.set_postfix_str(remark, refresh=False)
                shown.update(done - shown.n)

    def stop(self) -> None:
        """End the display."""
        self._halt.set()
        self.join()


def print_table(metrics: dict[str, Any], columns: Sequence[str] | None = None) -> None:
    """Print metrics as a table of two columns."""
    table = Table("", "", show_header=False)
    for name in columns or metrics:
        value = metrics[name]
        table.add_row(name.replace("_", " "), f"{value:.2f}" if isinstance(value, float) else str(value))
    Console().print(table)
