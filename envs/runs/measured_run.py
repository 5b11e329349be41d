"""A live run that is measured before and after, while a process of its own plays on it.

What plays, a simulated user or a rollout of episodes, does so through the gateway as any client would, while the
caller trains. What was measured is kept in the run folder, so a run that was interrupted goes on where it stopped and
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx
from rich.console import Console
from rich.table import Table

from clawrl_trl.config.api_keys import read_client_key
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.envs.runs.options import RunOptions
from clawrl_trl.envs.runs.progress import open_progress_bar
from clawrl_trl.errors import UserError
from clawrl_trl.json_lines import split_lines
from clawrl_trl.ledger import Ledger, policies, samples, turns
from clawrl_trl.messages import Json
from clawrl_trl.process import end_with_parent
from clawrl_trl.run import open_private, write_private
from clawrl_trl.serving.supervisor import read_last_lines

SWITCH_TIMEOUT = 30.0
JUDGE_TIMEOUT = 60.0
"""How long a judge that judges nothing more is waited for at the end of a run, in seconds."""
STOP_TIMEOUT = 60.0
"""Longest wait for a worker that was told to end, in seconds: a step, or a grading, may take many minutes."""

Report = TypeVar("Report")
Options = TypeVar("Options", bound=RunOptions)


class MeasuredRun(ABC, Generic[Options, Report]):
    """A run that is played on and measured; `Report` is that of an evaluation.

    Entering it evaluates and starts the worker; leaving it ends the worker.

    Args:
        options (`RunOptions`): What is played, and how it is measured; the worker reads them in the run folder.
        settings (`ServeSettings`): The run.
        base_url (`str`): Its gateway's URL, ending in `/v1`.
    """

    module: str
    """The worker's module, run with `python -m`."""
    log: str
    """Its log, in the run's folder of logs."""
    record: str
    """The file of its rows, in the run folder."""

    def __init__(self, options: Options, settings: ServeSettings, base_url: str) -> None:
        self.options = options
        self.folder = Path(settings.run)
        self.model = settings.model_names[0]
        self.base_url = base_url
        self._judging = -1
        self._judged_at = 0.0

    @abstractmethod
    def evaluate(self, name: str) -> Report:
        """Measure the model as it is served now."""

    @abstractmethod
    def to_json(self, report: Report) -> Json:
        """Return a report as it is kept."""

    @abstractmethod
    def from_json(self, content: Json) -> Report:
        """Return the report that was kept."""

    @abstractmethod
    def collect_metrics(self, before: Report, after: Report, rows: list[Json]) -> Json:
        """Return the metrics of both evaluations and of the rows between."""

    @abstractmethod
    def describe_progress(self, rows: list[Json]) -> tuple[int, int, str]:
        """Return how many are done, of how many, and a remark."""

    @property
    def title(self) -> str:
        """Title of the progress bar."""
        return self.log.removesuffix(".log")

    def __enter__(self) -> Self:
        self.before = self._load_or_evaluate("before")
        self._process = self._start()
        self._watch = _ProgressThread(self)
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.stop()
        if self._process.poll() is None:
            # Politely first: the worker closes its sandboxes and browsers on its way out.
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def is_over(self, ledger: Ledger, needs: Sequence[str]) -> bool:
        """Return whether the worker is through and nothing of it is left to judge or to train.

        Raises:
            UserError: If the worker ended early.
        """
        code = self._process.poll()
        if code:
            raise UserError(read_last_lines(self.folder / "logs" / self.log).removeprefix("error: "))
        if code is None:
            return False
        with ledger.reader() as tx:
            judging = turns.counts(tx).get("judging", 0)
            waiting = samples.ready(tx, needs) + samples.counts(tx).get("leased", 0)
        if judging != self._judging:
            self._judging, self._judged_at = judging, time.monotonic()
        # A judge that is away must not keep a run from its end; a slow one, with a queue before it, is waited for.
        return not waiting and (not judging or time.monotonic() - self._judged_at > JUDGE_TIMEOUT)

    def read_rows(self) -> list[Json]:
        """Read the rows so far; without the repair that `Interactions` makes, for the file is being written."""
        path = self.folder / self.record
        # Whole lines alone, the last of which may be half written.
        whole = path.read_bytes().rpartition(b"\n")[0].decode() if path.exists() else ""
        return [json.loads(line) for line in split_lines(whole)]

    def write_report(self, ledger: Ledger, version: int, **facts: object) -> Json:
        """Evaluate policy `version`, write `metrics.json`, return the metrics."""
        self._wait_for_version(version)
        after, rows = self._load_or_evaluate("after", fresh=True), self.read_rows()
        with ledger.reader() as tx:
            trained = samples.counts(tx).get("trained", 0)
            versions = sum(policy.version > 0 for policy in policies.all(tx))
        metrics = {
            **self.collect_metrics(self.before, after, rows),
            "policy_version": version,
            "policy_versions": versions,
            "samples_trained": trained,
            **facts,
        }
        write_private(self.folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")
        return metrics

    def _load_or_evaluate(self, name: str, *, fresh: bool = False) -> Report:
        path = self.folder / f"evaluation_{name}.json"
        # A resumed run serves a trained policy: only the evaluation on file is one of the model before.
        if path.exists() and not fresh:
            return self.from_json(json.loads(path.read_text()))
        report = self.evaluate(name)
        write_private(path, json.dumps(self.to_json(report)) + "\n")
        return report

    def _start(self) -> subprocess.Popen[bytes]:
        self.options.save(self.folder)
        with open_private(self.folder / "logs" / self.log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", self.module, "--run", str(self.folder)],
                # The worker computes little; torch's threads would take the cores of engine and trainer.
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # what the worker starts, sandboxes and browsers, is killed with it
                # A trainer that is killed must not leave a client behind that goes on asking.
                preexec_fn=end_with_parent,
            )

    def _wait_for_version(self, version: int) -> None:
        """Wait until the gateway answers with `version`.

        Raises:
            UserError: If it still doesn't after 30 s.
        """
        key = read_client_key("chat")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # On the side, so that no greeting is judged and trained on.
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


class _ProgressThread(threading.Thread):
    """Shows how far the worker is, from the record it keeps."""

    def __init__(self, run: MeasuredRun[Any, Any]) -> None:
        super().__init__(daemon=True)
        self._run = run
        self._halt = threading.Event()

    def run(self) -> None:
        with open_progress_bar(desc=self._run.title) as bar:
            while not self._halt.wait(0.5):
                played, bar.total, remark = self._run.describe_progress(self._run.read_rows())
                bar.set_postfix_str(remark, refresh=False)
                bar.update(played - bar.n)

    def stop(self) -> None:
        """End the display."""
        self._halt.set()
        self.join()


def print_table(metrics: Mapping[str, Any], columns: Sequence[str] | None = None) -> None:
    """Print metrics as a table of two columns."""
    table = Table("", "", show_header=False)
    for name in columns or metrics:
        value = metrics[name]
        table.add_row(name.replace("_", " "), f"{value:.2f}" if isinstance(value, float) else str(value))
    Console().print(table)
