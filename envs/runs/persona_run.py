"""A persona's run: a simulated user chats with the served model, and first replies are measured before and after."""

from dataclasses import asdict

from clawrl_trl.config.api_keys import read_client_key
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.envs.chat.evaluation import EvalReport, evaluate, interactions_to_hold
from clawrl_trl.envs.chat.persona_file import persona as load_persona
from clawrl_trl.envs.runs.learning_curve import learning_curve
from clawrl_trl.envs.runs.measured_run import MeasuredRun
from clawrl_trl.envs.runs.persona_options import PersonaOptions
from clawrl_trl.envs.runs.persona_worker import FILE_NAME
from clawrl_trl.envs.runs.progress import open_progress_bar
from clawrl_trl.messages import Json


class PersonaRun(MeasuredRun[PersonaOptions, EvalReport]):
    """Chats of a persona with a served run.

    Args:
        options ([`PersonaOptions`]): Who chats, how often and how.
        settings (`ServeSettings`): The run.
        base_url (`str`): Its gateway's URL, ending in `/v1`.
    """

    module = "clawrl_trl.envs.runs.persona_worker"
    log = "persona.log"
    record = FILE_NAME

    def __init__(self, options: PersonaOptions, settings: ServeSettings, base_url: str) -> None:
        super().__init__(options, settings, base_url)
        self.persona = load_persona(options.persona)

    @property
    def title(self) -> str:
        return f"{self.persona.name} chats"

    def evaluate(self, name: str) -> EvalReport:
        with open_progress_bar(total=self.options.eval_problems, desc=f"Evaluation {name}", leave=False) as bar:
            return evaluate(
                self.base_url,
                read_client_key("chat"),
                self.persona,
                problems=self.options.eval_problems,
                seed=self.options.seed,
                model=self.model,
                progress=bar.update,
            )

    def to_json(self, report: EvalReport) -> Json:
        return asdict(report)

    def from_json(self, content: Json) -> EvalReport:
        return EvalReport(**content)

    def collect_metrics(self, before: EvalReport, after: EvalReport, rows: list[Json]) -> Json:
        learning_curve(rows, before, after, self.folder / "learning_curve.png")
        # A held-out problem without an answer is no failure of the model, and stands with the dropped chats.
        unanswered = 2 * self.options.eval_problems - before.n - after.n
        return {
            "persona": self.persona.name,
            "seed": self.options.seed,
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

    def describe_progress(self, rows: list[Json]) -> tuple[int, int, str]:
        liked = sum(row["first_score"] or 0 for row in rows[-6:])
        version = rows[-1]["policy_version"] if rows else 0
        remark = f"policy {version}, liked {liked:.0f} of the last {len(rows[-6:])}"
        return len(rows), self.options.interactions, remark
