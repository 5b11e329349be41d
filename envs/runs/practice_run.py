"""Practice on a live run: episodes are played and trained on, and held-out tasks are measured before and after."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from clawrl_trl.config.serving import ServeSettings, client_key
from clawrl_trl.envs.base.actor import GatewayPolicy
from clawrl_trl.envs.rollout.rollout import Rollout
from clawrl_trl.envs.rollout.screenshots import Screenshots
from clawrl_trl.envs.runs.measured_run import TaughtRun
from clawrl_trl.envs.runs.practice_worker import FILE_NAME, PLAIN_FLAGS, Practice, untrainable
from clawrl_trl.envs.runs.progress import bar


@dataclass(frozen=True)
class Success:
    """Result of an evaluation.

    Attributes:
        rate (`float`): Share of the episodes with an outcome that did their task in full.
        graded (`int`): Episodes with an outcome.
        dropped (`int`): Episodes without one.
        requests (`int`): Requests made.
        failed (`int`): Requests that failed.
    """

    rate: float
    graded: int
    dropped: int
    requests: int
    failed: int


class PracticeRun(TaughtRun[Success]):
    """Practice on a served run.

    Args:
        practice ([`Practice`]): What is practised.
        problems (`int`): Held-out episodes of each evaluation; tasks repeat when there are fewer.
        settings (`ServeSettings`): The run.
        base_url (`str`): Its gateway's URL, ending in `/v1`.
    """

    module = "clawrl_trl.envs.runs.practice_worker"
    log = "practice.log"
    record = FILE_NAME

    def __init__(self, practice: Practice, problems: int, settings: ServeSettings, base_url: str) -> None:
        super().__init__(settings, base_url)
        self.practice, self.problems = practice, problems

    @property
    def title(self) -> str:
        return f"{self.practice.env} episodes"

    def flags(self) -> dict[str, Any]:
        own = {
            "env_options": json.dumps(dict(self.practice.env_options)),
            "reward_function_path": self.practice.reward,
            "prm_coef": self.practice.prm_coef,
            "stepwise": int(self.practice.stepwise),
            "keep_screenshots": int(self.practice.keep_screenshots),
            "env_hints": ",".join(self.practice.hints) or None,
        }
        return {name: getattr(self.practice, name) for name in PLAIN_FLAGS} | own

    def evaluate(self, name: str) -> Success:
        practice = self.practice
        make_env, count = practice.worlds("heldout")
        policy = GatewayPolicy(
            self.base_url,
            api_key=client_key("chat"),
            model=self.model,
            sampling={"max_tokens": practice.max_tokens},
            stream_share=0.0,
            turn_type="side",
        )
        rollout = Rollout(
            make_env,
            policy,
            num_generations=1,
            parallel_envs=practice.parallel_envs,
            report=False,
            screenshots=Screenshots(self.folder) if practice.keep_screenshots else None,
        )
        outcomes = []
        with bar(total=self.problems, desc=f"Evaluation {name}", leave=False) as shown:
            for group in rollout.play(index % count for index in range(self.problems)):
                outcomes.append(group.episodes[0])
                shown.update()
        policy.close()
        graded = [one for one in outcomes if one.outcome is not None]
        rate = sum(one.success for one in graded) / len(graded) if graded else 0.0
        return Success(rate, len(graded), len(outcomes) - len(graded), policy.requests, policy.failures)

    def to_json(self, report: Success) -> dict[str, Any]:
        return asdict(report)

    def from_json(self, content: dict[str, Any]) -> Success:
        return Success(**content)

    def metrics(self, before: Success, after: Success, rows: list[dict[str, Any]]) -> dict[str, Any]:
        episodes = [one for row in rows for one in row["episodes"]]
        return {
            "env": self.practice.env,
            "seed": self.practice.seed,
            "success_before": before.rate,
            "success_after": after.rate,
            "eval_episodes": after.graded,
            "episodes": len(episodes),
            "dropped_episodes": sum(one["outcome"] is None for one in episodes) + before.dropped + after.dropped,
            "constant_samples": sum(row["settled"].get("constant", 0) for row in rows),
            "requests": before.requests + after.requests + (rows[-1]["requests"] if rows else 0),
            "failed_requests": before.failed + after.failed + (rows[-1]["failed"] if rows else 0),
        }

    def shown(self, rows: list[dict[str, Any]]) -> tuple[int, int, str]:
        recent = [one for row in rows[-4:] for one in row["episodes"] if one["outcome"] is not None]
        solved = sum(one["outcome"] >= 1.0 for one in recent)
        size = self.practice.num_generations
        remark = f"solved {solved} of the last {len(recent)}"
        if rows and all(map(untrainable, rows)):
            remark += f", nothing to train: see {self.log}"
        return len(rows) * size, self.practice.groups * size, remark
