"""Episodes on a live run: `python -m clawrl_trl.envs.runs.practice_worker --run DIR --env terminal --tasks PATH`.

Groups of episodes are played through the run's gateway while a trainer trains on them. Each group is on record when
its outcomes are with the gateway, one line of `episodes.jsonl`; what is on record is not played again. The rollout
keeps no more than a few updates ahead of the policy, so that what it plays is not stale before it is trained.
"""

import argparse
import itertools
import json
import logging
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from clawrl_trl.config.serving import ServeSettings, client_key
from clawrl_trl.custom import load_callable
from clawrl_trl.envs.base.actor import GatewayPolicy
from clawrl_trl.envs.catalogue import get_environment, list_environments
from clawrl_trl.envs.rollout.rollout import Group, Rollout
from clawrl_trl.envs.rollout.screenshots import Screenshots
from clawrl_trl.envs.rollout.signals import StepJudge
from clawrl_trl.envs.runs.interactions import Interactions
from clawrl_trl.envs.runs.persona_worker import find_gateway
from clawrl_trl.errors import UserError, run_main
from clawrl_trl.ledger import Ledger, samples, turns
from clawrl_trl.policy_names import parse_policy_name
from clawrl_trl.run import RunFolder

logger = logging.getLogger(__name__)

FILE_NAME = "episodes.jsonl"
POLL_SECONDS = 0.2
PLAIN_FLAGS = (
    "env", "tasks", "difficulty", "episodes", "num_generations", "parallel_envs", "max_steps", "seed", "max_tokens",
    "update_samples",
)  # fmt: skip
"""What a practice is told by flags of the same name and form."""


@dataclass(frozen=True)
class Practice:
    """A practice run: the environment, its tasks, and the episodes to play.

    Args:
        env (`str`): The environment's name.
        tasks (`Path`): Its task set.
        difficulty (`int`, *optional*): Only tasks of this difficulty.
        episodes (`int`): Episodes to play in all, rounded up to whole groups.
        num_generations (`int`): Episodes of a group.
        parallel_envs (`int`): Environments at a time.
        max_steps (`int`, *optional*): Most actions of an episode. Default: the environment's.
        seed (`int`): Seed of the order of the tasks.
        max_tokens (`int`): Longest reply, in tokens.
        update_samples (`int`): Samples that the trainer takes for a policy version.
        lead (`int`): Versions' worth of samples that are played before the policy must have moved on.
        lead_s (`float`): Longest that is waited for a version, in seconds.
        env_options (`Mapping`): Further arguments of the environment.
        reward (`str`, *optional*): Own reward, `file.py:name`, called as `reward(episode)`.
        prm_coef (`float`): Weight of the steps' process scores in their rewards.
        stepwise (`bool`): Compare the rewards of a group step by step.
        keep_screenshots (`bool`): Keep the screenshots of the last episodes.
        hints (`tuple[str, ...]`): What the trainer needs of a sample (`score`, `teacher`), where the environment's
            words become hints for a teacher; empty for no hints.

    Raises:
        UserError: If the weight is negative.
    """

    env: str
    tasks: Path
    difficulty: int | None = None
    episodes: int = 400
    num_generations: int = 8
    parallel_envs: int = 4
    max_steps: int | None = None
    seed: int = 0
    max_tokens: int = 256
    update_samples: int = 8
    lead: int = 2
    lead_s: float = 20.0
    env_options: Mapping[str, Any] = field(default_factory=dict)
    reward: str | None = None
    prm_coef: float = 0.0
    stepwise: bool = False
    keep_screenshots: bool = False
    hints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.prm_coef < float("inf"):
            raise UserError(f"--prm_coef {self.prm_coef} is no weight: use 0 or more.")

    def worlds(self, split: str) -> tuple[Callable[[], Any], int]:
        """Return a maker of environments over the tasks of a split, and the number of tasks."""
        return get_environment(self.env).make_factory(
            self.tasks, split, difficulty=self.difficulty, max_steps=self.max_steps, options=self.env_options
        )

    @property
    def groups(self) -> int:
        """Groups to play in all."""
        return -(-self.episodes // self.num_generations)


def order(count: int, seed: int) -> Iterator[int]:
    """Positions of tasks without end: all of them in a random order, then again in another."""
    rng = random.Random(f"practice-{seed}")
    while True:
        yield from rng.sample(range(count), count)


class Pace:
    """Holds the rollout back while the policy has not taken in what was played.

    Args:
        run (`Path`): The run folder.
        update_samples (`int`): Samples that a new version has taken in.
        lead (`int`): Versions' worth of samples to be ahead.
        lead_s (`float`): Longest wait for a version, in seconds: samples may have been dropped, or it was refused.
        backlog (`Callable[[], int]`, *optional*): How many samples wait to be trained. Default: estimated by what was
            played and published; with a teacher, which turns make samples is known only later.
    """

    def __init__(
        self,
        run: Path,
        update_samples: int,
        lead: int,
        lead_s: float,
        backlog: Callable[[], int] | None = None,
    ) -> None:
        self._run, self._update_samples, self._lead_s = run, update_samples, lead_s
        self._backlog = backlog
        self._most = update_samples * lead
        self._version = newest(run)
        self.ahead = 0

    def played(self, group: Group) -> None:
        """Count the samples of a group."""
        self.ahead += group.settled.get("samples", 0)

    def wait(self) -> None:
        """Return when another group may begin."""
        deadline = time.monotonic() + self._lead_s
        while True:
            version = newest(self._run)
            if version > self._version:
                self.ahead = max(0, self.ahead - self._update_samples * (version - self._version))
                self._version, deadline = version, time.monotonic() + self._lead_s
            if self._backlog is not None:
                self.ahead = self._backlog()
            if self.ahead < self._most:
                return
            if time.monotonic() > deadline:
                self.ahead = 0
                return
            time.sleep(POLL_SECONDS)


def newest(run: Path) -> int:
    """The newest policy version in the run's folder of policies; 0 for the base."""
    versions = [parse_policy_name(path.name) for path in RunFolder(run).policies.glob("*")]
    return max((version for version in versions if version is not None), default=0)


def count_backlog(ledger: Ledger, needs: Sequence[str]) -> int:
    """Number of samples of a run that wait to be trained, those included that still wait for their teacher."""
    with ledger.reader() as tx:
        waiting = turns.counts(tx).get("judging", 0) + samples.counts(tx).get("leased", 0)
        return waiting + samples.ready(tx, needs)


def untrainable(row: Mapping[str, Any]) -> bool:
    """Return whether a group has outcomes, but no turn of it can be trained."""
    settled, graded = row["settled"], any(one["outcome"] is not None for one in row["episodes"])
    made = ("samples", "constant", "incomparable", "hinted")
    return graded and "samples" in settled and not any(settled.get(name) for name in made)


def practise(
    run: Path, practice: Practice, policy: GatewayPolicy, judge: StepJudge | None = None, ledger: Ledger | None = None
) -> Iterator[Mapping[str, Any]]:
    """Play what is missing of a run's episodes; yields the rows as they go on record.

    Args:
        run (`Path`): The run folder.
        practice ([`Practice`]): What is practised.
        policy ([`GatewayPolicy`]): Who acts.
        judge ([`StepJudge`], *optional*): Who gives the process scores. Default: the worlds.
        ledger (`Ledger`, *optional*): The run's ledger, where the samples that wait are counted; see [`Pace`].
    """
    make_env, count = practice.worlds("train")
    record = Interactions(run / FILE_NAME)
    backlog = partial(count_backlog, ledger, practice.hints) if ledger is not None else None
    pace = Pace(run, practice.update_samples, practice.lead, practice.lead_s, backlog)
    numbers = itertools.count(len(record.rows))

    def paced() -> Iterator[int]:
        for position in itertools.islice(order(count, practice.seed), len(record.rows), practice.groups):
            pace.wait()
            yield position

    rollout = Rollout(
        make_env,
        policy,
        num_generations=practice.num_generations,
        parallel_envs=practice.parallel_envs,
        feedback_key=client_key("feedback"),
        reward=load_callable(practice.reward, parameters=["episode"]) if practice.reward else None,
        prm_coef=practice.prm_coef,
        stepwise=practice.stepwise,
        judge=judge,
        screenshots=Screenshots(run) if practice.keep_screenshots else None,
        hints=bool(practice.hints),
    )
    for group in rollout.play(paced()):
        pace.played(group)
        row = {
            "index": next(numbers),
            "group": group.id,
            "episodes": [asdict(one) for one in group.episodes],
            "settled": dict(group.settled),
            "requests": policy.requests,
            "failed": policy.failures,
        }
        if untrainable(row) and not any(map(untrainable, record.rows)):
            logger.warning(
                "no turn of group %d can be trained: 'clawrl inspect %s' says why.",
                row["index"],
                group.episodes[0].session_id,
            )
        record.append(row)
        yield row


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m clawrl_trl.envs.runs.practice_worker`."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given = _parser().parse_args(argv)
    practice = Practice(
        **{name: getattr(given, name) for name in PLAIN_FLAGS},
        prm_coef=given.prm_coef,
        stepwise=bool(given.stepwise),
        keep_screenshots=bool(given.keep_screenshots),
        env_options=given.env_options,
        reward=given.reward_function_path,
        hints=tuple(filter(None, given.env_hints.split(","))),
    )
    settings = ServeSettings.load(given.run)
    ledger = Ledger.open(settings.ledger_url or RunFolder(given.run).ledger) if practice.hints else None
    judge = StepJudge.of_run(given.run) if practice.prm_coef else None
    policy = GatewayPolicy(
        find_gateway(given.run, 60.0),
        api_key=client_key("chat"),
        model=given.model,
        sampling={"max_tokens": practice.max_tokens},
        stream_share=0.0,
        seed=practice.seed,
    )
    try:
        for row in practise(given.run, practice, policy, judge, ledger):
            outcomes = [one["outcome"] for one in row["episodes"]]
            logger.info("group %d: %s", row["index"], outcomes)
    finally:
        policy.close()
        if judge is not None:
            judge.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m clawrl_trl.envs.runs.practice_worker", description="Episodes on a live run."
    )
    add = parser.add_argument
    add("--run", type=Path, required=True, help="run folder; episodes.jsonl is written there")
    add("--env", required=True, choices=list_environments(), help="environment")
    add("--tasks", type=Path, required=True, help="task set")
    add("--difficulty", type=int, help="only tasks of this difficulty")
    add("--episodes", type=int, default=Practice.episodes, help="episodes to play in all")
    add("--num_generations", type=int, default=Practice.num_generations, help="episodes of a group")
    add("--parallel_envs", type=int, default=Practice.parallel_envs, help="environments at a time")
    add("--max_steps", type=int, help="most actions of an episode")
    add("--seed", type=int, default=0, help="seeds the order of the tasks")
    add("--max_tokens", type=int, default=Practice.max_tokens, help="longest reply, in tokens")
    add("--update_samples", type=int, default=Practice.update_samples, help="samples of an update of the policy")
    add("--env_options", type=json.loads, default={}, help="further arguments of the environment, JSON")
    add("--reward_function_path", help="own reward, file.py:name, called as reward(episode)")
    add("--prm_coef", type=float, default=0.0, help="weight of the steps' process scores")
    add("--stepwise", type=int, choices=(0, 1), default=0, help="compare rewards step by step")
    add("--keep_screenshots", type=int, choices=(0, 1), default=0, help="keep the last episodes' screenshots")
    add("--env_hints", default="", help="report hints for a teacher; what training needs: score, teacher or both")
    add("--model", default="clawrl", help="model name to ask for")
    return parser


if __name__ == "__main__":
    sys.exit(run_main(main))
