"""A persona's lessons on a live run: a simulated user chats, and the first replies are measured before and after."""

from dataclasses import asdict, dataclass
from typing import Any

from clawrl_trl.config.serving import ServeSettings, client_key
from clawrl_trl.envs.chat.evaluation import EvalReport, evaluate, interactions_to_hold
from clawrl_trl.envs.chat.persona_file import persona as persona_named
from clawrl_trl.envs.runs.learning_curve import learning_curve
from clawrl_trl.envs.runs.measured_run import TaughtRun
from clawrl_trl.envs.runs.persona_worker import FILE_NAME, PlaySettings
from clawrl_trl.envs.runs.progress import bar


@dataclass(frozen=True)
class Lesson:
    """A persona's run: who teaches, how often, and with what problems.

    Args:
        persona (`str`): `student`, `teacher`, or a YAML file that describes one.
        interactions (`int`): Chats it plays, one problem each.
        seed (`int`): Seed of its problems and wordings.
        think_time (`float`): Mean seconds between reading a reply and writing.
        problems (`int`): Held-out problems of each evaluation.
        max_turns (`int`): Most messages it sends in a chat.
        rollout (`str`, *optional*): An own rollout, `file.py:name`.
        generate (`str`, *optional*): An own generation, `file.py:name`.
    """

    persona: str
    interactions: int
    seed: int
    think_time: float
    problems: int
    max_turns: int = PlaySettings.max_turns
    rollout: str | None = None
    generate: str | None = None


class PersonaRun(TaughtRun[EvalReport]):
    """A lesson on a served run.

    Args:
        lesson (`Lesson`): What is played.
        settings (`ServeSettings`): The run.
        base_url (`str`): Its gateway's URL, ending in `/v1`.
    """

    module = "clawrl_trl.envs.runs.persona_worker"
    log = "persona.log"
    record = FILE_NAME

    def __init__(self, lesson: Lesson, settings: ServeSettings, base_url: str) -> None:
        super().__init__(settings, base_url)
        self.lesson = lesson
        self.persona = persona_named(lesson.persona)

    @property
    def title(self) -> str:
        return f"{self.persona.name} chats"

    def flags(self) -> dict[str, Any]:
        lesson = self.lesson
        return {
            "persona": lesson.persona,
            "interactions": lesson.interactions,
            "seed": lesson.seed,
            "think_time": lesson.think_time,
            "max_turns": lesson.max_turns,
            "rollout_function_path": lesson.rollout,
            "custom_generate_function_path": lesson.generate,
        }

    def evaluate(self, name: str) -> EvalReport:
        with bar(total=self.lesson.problems, desc=f"Evaluation {name}", leave=False) as shown:
            return evaluate(
                self.base_url,
                client_key("chat"),
                self.persona,
                problems=self.lesson.problems,
                seed=self.lesson.seed,
                model=self.model,
                progress=shown.update,
            )

    def to_json(self, report: EvalReport) -> dict[str, Any]:
        return asdict(report)

    def from_json(self, content: dict[str, Any]) -> EvalReport:
        return EvalReport(**content)

    def metrics(self, before: EvalReport, after: EvalReport, rows: list[dict[str, Any]]) -> dict[str, Any]:
        learning_curve(rows, before, after, self.folder / "learning_curve.png")
        unanswered = 2 * self.lesson.problems - before.n - after.n
        return {
            "persona": self.persona.name,
            "seed": self.lesson.seed,
            "interactions": len(rows),
            "episodes": len(rows),
            "dropped_episodes": sum(bool(row.get("dropped")) for row in rows) + unanswered,
            "success_before": before.score,
            "success_after": after.score,
            "interactions_to_hold": interactions_to_hold(rows),
            "score_before": before.score,
            "score_after": after.score,
            "correct_before": before.correct,
            "correct_after": after.correct,
            "eval_problems": after.n,
            "requests": before.requests + after.requests + sum(row["requests"] for row in rows),
            "failed_requests": before.failed + after.failed + sum(row["failed"] for row in rows),
        }

    def shown(self, rows: list[dict[str, Any]]) -> tuple[int, int, str]:
        liked = sum(row["first_score"] or 0 for row in rows[-6:])
        version = rows[-1]["policy_version"] if rows else 0
        remark = f"policy {version}, liked {liked:.0f} of the last {len(rows[-6:])}"
        return len(rows), self.lesson.interactions, remark
