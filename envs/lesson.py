"""A persona's lessons on a live run, measured before and after.

The persona plays in a process of its own, as any client would, while the caller trains. What was measured is
kept in the run folder, so a run that was interrupted goes on where it stopped and reports the same figures.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from clawrl_trl.envs.evaluate import EvalReport, evaluate, interactions_to_hold
from clawrl_trl.envs.personas import persona as persona_named
from clawrl_trl.envs.plot import learning_curve
from clawrl_trl.errors import UserError
from clawrl_trl.supervisor import end_with_parent, last_lines

SWITCH_TIMEOUT = 30.0


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
    """A lesson on the run in `folder`, whose gateway answers at `base_url`.

    Entering it evaluates and starts the persona; leaving it ends the persona.

    Args:
        lesson (`Lesson`): What is played.
        folder (`Path`): The run folder.
        base_url (`str`): The gateway's URL, ending in `/v1`.
        api_key (`str` or `None`): Its chat key.
        model (`str`): The model name to ask for.
    """

    def __init__(self, lesson: Lesson, folder: Path, base_url: str, api_key: str | None, model: str) -> None:
        self.lesson = lesson
        self.folder = folder
        self.base_url = base_url
        self.api_key = api_key
        self.model = model
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "PersonaRun":
        self.before = self._evaluate("before")
        self._process = self._play()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def finished(self) -> bool:
        """Whether the persona has played its last interaction.

        Raises:
            UserError: If it ended early.
        """
        assert self._process is not None
        code = self._process.poll()
        if code:
            raise UserError(last_lines(self.folder / "logs" / "persona.log").removeprefix("error: "))
        return code == 0

    def played(self) -> list[dict[str, Any]]:
        """The interactions so far, as `clawrl_trl.envs.play` wrote them."""
        path = self.folder / "interactions.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]

    def report(self, version: int, **facts: Any) -> dict[str, Any]:
        """Evaluate policy `version`, write `metrics.json` and `learning_curve.png`, and return the metrics."""
        self._wait_for(version)
        after = self._evaluate("after", fresh=True)
        rows = self.played()
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
            **facts,
        }
        (self.folder / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
        learning_curve(rows, self.before, after, self.folder / "learning_curve.png")
        return metrics

    def _evaluate(self, name: str, *, fresh: bool = False) -> EvalReport:
        path = self.folder / f"evaluation_{name}.json"
        if path.exists() and not fresh:
            return EvalReport(**json.loads(path.read_text()))
        report = evaluate(
            self.base_url,
            self.api_key,
            persona_named(self.lesson.persona),
            problems=self.lesson.problems,
            seed=self.lesson.seed,
            model=self.model,
        )
        path.write_text(json.dumps(asdict(report)) + "\n")
        return report

    def _play(self) -> subprocess.Popen[bytes]:
        lesson = self.lesson
        flags: dict[str, Any] = {
            "run": self.folder,
            "base_url": self.base_url,
            "model": self.model,
            "persona": lesson.persona,
            "interactions": lesson.interactions,
            "seed": lesson.seed,
            "think_time": lesson.think_time,
            "rollout_function_path": lesson.rollout,
            "custom_generate_function_path": lesson.generate,
        }
        words = [
            word for name, value in flags.items() if value is not None for word in (f"--{name}", str(value))
        ]
        with (self.folder / "logs" / "persona.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "clawrl_trl.envs.play", *words],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def _wait_for(self, version: int) -> None:
        """Wait until the gateway answers with `version`.

        Raises:
            UserError: If it still doesn't after 30 s.
        """
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
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
        raise UserError(
            f"The gateway does not serve policy {version}; see {self.folder / 'logs' / 'gateway.log'}."
        )


def print_table(metrics: dict[str, Any], columns: Sequence[str] | None = None) -> None:
    """Print metrics as a table of two columns."""
    table = Table("", "", show_header=False)
    for name in columns or metrics:
        value = metrics[name]
        table.add_row(name.replace("_", " "), f"{value:.2f}" if isinstance(value, float) else str(value))
    Console().print(table)
