"""A persona's lessons on a live run, measured before and after.

The persona plays in a process of its own, as any client would, while the caller trains. What was measured is
kept in the run folder, so a run that was interrupted goes on where it stopped and reports the same figures.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from clawrl_trl.envs.evaluate import EvalReport, evaluate, interactions_to_hold
from clawrl_trl.envs.play import FILE_NAME
from clawrl_trl.envs.plot import learning_curve
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger, policies, samples, turns
from clawrl_trl.settings import ServeSettings, api_key
from clawrl_trl.supervisor import end_with_parent, last_lines

SWITCH_TIMEOUT = 30.0
JUDGE_TIMEOUT = 60.0


@dataclass(frozen=True)
class Lesson:
    """Who teaches whom, how often.

    Args:
        persona (`str`): `student` or `teacher`.
        interactions (`int`): Chats it plays, one problem each.
        seed (`int`): Seed of its problems and wordings.
        think_time (`float`): Mean seconds between reading a reply and writing.
        problems (`int`): Held-out problems of each evaluation.
        rollout (`str`, *optional*): An own rollout, `file.py:name`.
        generate (`str`, *optional*): An own generation, `file.py:name`.
    """

    persona: str
    interactions: int
    seed: int
    think_time: float
    problems: int
    rollout: str | None = None
    generate: str | None = None


class PersonaRun:
    """A lesson on a served run.

    Entering it evaluates and starts the persona; leaving it ends the persona.

    Args:
        lesson (`Lesson`): What is played.
        settings (`ServeSettings`): The run.
        base_url (`str`): Its gateway's URL, ending in `/v1`.
    """

    def __init__(self, lesson: Lesson, settings: ServeSettings, base_url: str) -> None:
        self.lesson = lesson
        self.folder = Path(settings.run)
        self.model = settings.served_model_name
        self.base_url = base_url
        self._over_at: float | None = None

    def __enter__(self) -> "PersonaRun":
        self.before = self._evaluate("before")
        self._process = self._play()
        self._watch = _Watch(self)
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.stop()
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def over(self, ledger: Ledger, needs: Sequence[str]) -> bool:
        """Whether the persona has played its last interaction and nothing of it is left to judge or to train.

        Raises:
            UserError: If the persona ended early.
        """
        code = self._process.poll()
        if code:
            raise UserError(last_lines(self.folder / "logs" / "persona.log").removeprefix("error: "))
        if code is None:
            return False
        self._over_at = self._over_at or time.monotonic()
        with ledger.reader() as tx:
            judging = turns.counts(tx).get("judging", 0)
            waiting = samples.ready(tx, needs) + samples.counts(tx).get("leased", 0)
        return not waiting and (not judging or time.monotonic() - self._over_at > JUDGE_TIMEOUT)

    def played(self) -> list[dict[str, Any]]:
        """The interactions so far; read without the repair that `Interactions` makes, for it is being written."""
        path = self.folder / FILE_NAME
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def report(self, ledger: Ledger, version: int, **facts: Any) -> dict[str, Any]:
        """Evaluate policy `version`, write `metrics.json` and `learning_curve.png`, return the metrics."""
        self._wait_for(version)
        after = self._evaluate("after", fresh=True)
        rows = self.played()
        with ledger.reader() as tx:
            trained = samples.counts(tx).get("trained", 0)
            versions = sum(policy.version > 0 for policy in policies.all(tx))
        metrics = {
            "persona": self.lesson.persona,
            "seed": self.lesson.seed,
            "interactions": len(rows),
            "interactions_to_hold": interactions_to_hold(rows),
            "score_before": self.before.score,
            "score_after": after.score,
            "correct_before": self.before.correct,
            "correct_after": after.correct,
            "eval_problems": after.n,
            "requests": self.before.requests + after.requests + sum(row["requests"] for row in rows),
            "failed_requests": self.before.failed + after.failed + sum(row["failed"] for row in rows),
            "policy_versions": versions,
            "samples_trained": trained,
            **facts,
        }
        (self.folder / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
        learning_curve(rows, self.before, after, self.folder / "learning_curve.png")
        return metrics

    def _evaluate(self, name: str, *, fresh: bool = False) -> EvalReport:
        path = self.folder / f"evaluation_{name}.json"
        if path.exists() and not fresh:
            return EvalReport(**json.loads(path.read_text()))
        with tqdm(total=self.lesson.problems, desc=f"Evaluation {name}", leave=False) as bar:
            report = evaluate(
                self.base_url,
                api_key("chat"),
                self.lesson.persona,
                problems=self.lesson.problems,
                seed=self.lesson.seed,
                model=self.model,
                progress=bar.update,
            )
        path.write_text(json.dumps(asdict(report)) + "\n")
        return report

    def _play(self) -> subprocess.Popen[bytes]:
        lesson = self.lesson
        flags: dict[str, Any] = {
            "run": self.folder,
            "model": self.model,
            "persona": lesson.persona,
            "interactions": lesson.interactions,
            "seed": lesson.seed,
            "think_time": lesson.think_time,
            "rollout_function_path": lesson.rollout,
            "custom_generate_function_path": lesson.generate,
        }
        words = [word for name, value in flags.items() if value is not None for word in (f"--{name}", str(value))]
        with (self.folder / "logs" / "persona.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "clawrl_trl.envs.play", *words],
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
        key = api_key("chat")
        headers = {"Authorization": f"Bearer {key.split(',')[0]}"} if key else {}
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
    """Shows how far the persona is, from the record it keeps."""

    def __init__(self, run: PersonaRun) -> None:
        super().__init__(daemon=True)
        self._run = run
        self._halt = threading.Event()

    def run(self) -> None:
        with tqdm(total=self._run.lesson.interactions, desc=f"{self._run.lesson.persona} chats") as bar:
            while not self._halt.wait(0.5):
                rows = self._run.played()
                liked = sum(row["first_score"] or 0 for row in rows[-6:])
                version = rows[-1]["policy_version"] if rows else 0
                bar.set_postfix_str(f"policy {version}, liked {liked:.0f} of the last {len(rows[-6:])}", refresh=False)
                bar.update(len(rows) - bar.n)

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
