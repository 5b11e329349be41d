"""Practice on a live run: episodes are played and trained on, and held-out tasks are measured before and after."""

from dataclasses import asdict, dataclass

from clawrl_trl.config.api_keys import read_client_key
from clawrl_trl.envs.base.actor import GatewayPolicy
from clawrl_trl.envs.rollout.rollout import Rollout
from clawrl_trl.envs.rollout.screenshots import Screenshots
from clawrl_trl.envs.runs.measured_run import MeasuredRun
from clawrl_trl.envs.runs.practice_options import PracticeOptions
from clawrl_trl.envs.runs.practice_worker import FILE_NAME, is_untrainable
from clawrl_trl.envs.runs.progress import open_progress_bar
from clawrl_trl.messages import Json


@dataclass(frozen=True)
class SuccessReport:
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


class PracticeRun(MeasuredRun[PracticeOptions, SuccessReport]):
    """Practice on a served run.

    Args:
        options ([`PracticeOptions`]): What is practised; `eval_problems` held-out tasks are played in each evaluation,
            and repeat when there are fewer.
        settings (`ServeSettings`): The run.
        base_url (`str`): Its gateway's URL, ending in `/v1`.
    """

    module = "clawrl_trl.envs.runs.practice_worker"
    log = "practice.log"
    record = FILE_NAME

    @property
    def title(self) -> str:
        return f"{self.options.env} episodes"

    def evaluate(self, name: str) -> SuccessReport:
        options = self.options
        make_env, count = options.load_environments("heldout")
        policy = GatewayPolicy(
            self.base_url,
            api_key=read_client_key("chat"),
            model=self.model,
            sampling=options.sampling,
            stream_share=0.0,
            turn_type="side",  # what is held out is not trained on
        )
        rollout = Rollout(
            make_env,
            policy,
            # A success rate needs no group to compare with.
            num_generations=1,
            parallel_envs=options.parallel_envs,
            report=False,
            screenshots=Screenshots(self.folder) if options.keep_screenshots else None,
        )
        episodes = []
        with open_progress_bar(total=options.eval_problems, desc=f"Evaluation {name}", leave=False) as bar:
            for group in rollout.play(index % count for index in range(options.eval_problems)):
                episodes.append(group.episodes[0])
                bar.update()
        policy.close()
        graded = [episode for episode in episodes if episode.outcome is not None]
        rate = sum(episode.success for episode in graded) / len(graded) if graded else 0.0
        return SuccessReport(rate, len(graded), len(episodes) - len(graded), policy.requests, policy.failures)

    def to_json(self, report: SuccessReport) -> Json:
        return asdict(report)

    def from_json(self, content: Json) -> SuccessReport:
        return SuccessReport(**content)

    def collect_metrics(self, before: SuccessReport, after: SuccessReport, rows: list[Json]) -> Json:
        episodes = [episode for row in rows for episode in row["episodes"]]
        dropped = sum(episode["outcome"] is None for episode in episodes)
        return {
            "env": self.options.env,
            "seed": self.options.seed,
            "success_before": before.rate,
            "success_after": after.rate,
            "eval_episodes": after.graded,
            "episodes": len(episodes),
            "dropped_episodes": dropped + before.dropped + after.dropped,
            "constant_samples": sum(row["settled"].get("constant", 0) for row in rows),
            "requests": before.requests + after.requests + (rows[-1]["requests"] if rows else 0),
            "failed_requests": before.failed + after.failed + (rows[-1]["failed"] if rows else 0),
        }

    def describe_progress(self, rows: list[Json]) -> tuple[int, int, str]:
        recent = [episode for row in rows[-4:] for episode in row["episodes"] if episode["outcome"] is not None]
        solved = sum(episode["outcome"] >= 1.0 for episode in recent)
        size = self.options.group_size
        remark = f"solved {solved} of the last {len(recent)}"
        if rows and all(map(is_untrainable, rows)):
            remark += f", nothing to train: see {self.log}"
        return len(rows) * size, self.options.groups * size, remark
