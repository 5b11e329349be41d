"""Episodes on a live run: `python -m clawrl_trl.envs.runs.practice_worker --run DIR`, after its `practice.json`.

Groups of episodes are played through the run's gateway while a trainer trains on them. Each group is on record when
its outcomes are with the gateway, one line of `episodes.jsonl`; what is on record is not played again. The rollout
keeps no more than a few updates ahead of the policy, so that what it plays is not stale before it is trained.
"""

import itertools
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from clawrl_trl.config.api_keys import read_client_key
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.custom import load_callable
from clawrl_trl.envs.base.actor import GatewayPolicy
from clawrl_trl.envs.rollout.episode import Group
from clawrl_trl.envs.rollout.rollout import Rollout
from clawrl_trl.envs.rollout.screenshots import Screenshots
from clawrl_trl.envs.rollout.signals import StepJudge
from clawrl_trl.envs.runs.interactions import Interactions
from clawrl_trl.envs.runs.practice_options import PracticeOptions
from clawrl_trl.envs.runs.worker import find_gateway, read_served_model, start_worker
from clawrl_trl.errors import run_main
from clawrl_trl.ledger import Ledger, samples, turns
from clawrl_trl.messages import Json
from clawrl_trl.policy_names import parse_policy_name
from clawrl_trl.run import RunFolder

logger = logging.getLogger(__name__)

FILE_NAME = "episodes.jsonl"
POLL_SECONDS = 0.2
GATEWAY_PATIENCE = 60.0
"""Longest wait for the run's gateway, in seconds."""


def order_tasks(count: int, seed: int) -> Iterator[int]:
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
        self._largest_lead = update_samples * lead
        self._version = find_newest_version(run)
        self.ahead = 0

    def count_group(self, group: Group) -> None:
        """Count the samples of a group."""
        self.ahead += group.settled.get("samples", 0)

    def wait(self) -> None:
        """Wait; return when another group may begin."""
        deadline = time.monotonic() + self._lead_s
        while True:
            version = find_newest_version(self._run)
            if version > self._version:
                self.ahead = max(0, self.ahead - self._update_samples * (version - self._version))
                self._version, deadline = version, time.monotonic() + self._lead_s
            if self._backlog is not None:
                self.ahead = self._backlog()
            if self.ahead < self._largest_lead:
                return
            if time.monotonic() > deadline:
                self.ahead = 0  # samples may have been dropped or refused: waiting on would wait for ever
                return
            time.sleep(POLL_SECONDS)


def find_newest_version(run: Path) -> int:
    """The newest policy version in the run's folder of policies; 0 for the base."""
    versions = [parse_policy_name(path.name) for path in RunFolder(run).policies.glob("*")]
    return max((version for version in versions if version is not None), default=0)


def count_backlog(ledger: Ledger, needs: Sequence[str]) -> int:
    """Number of samples of a run that wait to be trained, those included that still wait for their teacher."""
    with ledger.reader() as tx:
        waiting = turns.counts(tx).get("judging", 0) + samples.counts(tx).get("leased", 0)
        return waiting + samples.ready(tx, needs)


def is_untrainable(row: Json) -> bool:
    """Return whether a group has outcomes, but no turn of it can be trained."""
    settled, graded = row["settled"], any(episode["outcome"] is not None for episode in row["episodes"])
    trained_later = ("samples", "constant", "incomparable", "hinted")
    return graded and "samples" in settled and not any(settled.get(name) for name in trained_later)


def play_episodes(
    run: Path,
    options: PracticeOptions,
    policy: GatewayPolicy,
    judge: StepJudge | None = None,
    ledger: Ledger | None = None,
) -> Iterator[Json]:
    """Play what is missing of a run's episodes; yields the rows as they go on record.

    Args:
        run (`Path`): The run folder.
        options ([`PracticeOptions`]): What is practised.
        policy ([`GatewayPolicy`]): Who acts.
        judge ([`StepJudge`], *optional*): Who gives the process scores. Default: the environments.
        ledger (`Ledger`, *optional*): The run's ledger, where the samples that wait are counted; see [`Pace`].
    """
    make_env, count = options.load_environments("train")
    record = Interactions(run / FILE_NAME)
    backlog = partial(count_backlog, ledger, options.hints) if ledger is not None else None
    pace = Pace(run, options.update_samples, options.lead, options.lead_s, backlog)
    numbers = itertools.count(len(record.rows))
    reward = options.reward_function_path

    def paced_tasks() -> Iterator[int]:
        # The order is the seed's, so a run that goes on skips the tasks of the groups on record.
        for position in itertools.islice(order_tasks(count, options.seed), len(record.rows), options.groups):
            pace.wait()
            yield position

    rollout = Rollout(
        make_env,
        policy,
        num_generations=options.group_size,
        parallel_envs=options.parallel_envs,
        feedback_key=read_client_key("feedback"),
        reward=load_callable(reward, parameters=["episode"]) if reward else None,
        prm_coef=options.prm_coef,
        stepwise=options.stepwise,
        judge=judge,
        screenshots=Screenshots(run) if options.keep_screenshots else None,
        hints=bool(options.hints),
    )
    for group in rollout.play(paced_tasks()):
        pace.count_group(group)
        row = {
            "index": next(numbers),
            "group": group.id,
            "episodes": [asdict(episode) for episode in group.episodes],
            "settled": dict(group.settled),
            "requests": policy.requests,
            "failed": policy.failures,
        }
        if is_untrainable(row) and not any(map(is_untrainable, record.rows)):
            logger.warning(
                "no turn of group %d can be trained: 'clawrl inspect %s' says why.",
                row["index"],
                group.episodes[0].session_id,
            )
        record.append(row)
        yield row


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m clawrl_trl.envs.runs.practice_worker`."""
    run = start_worker(argv, "clawrl_trl.envs.runs.practice_worker", "Episodes on a live run.")
    options = PracticeOptions.load(run)
    settings = ServeSettings.load(run)
    # Without a teacher the samples of a group are known as soon as it is played.
    ledger = Ledger.open(settings.ledger_url or RunFolder(run).ledger) if options.hints else None
    judge = StepJudge.of_run(run) if options.prm_coef else None
    policy = GatewayPolicy(
        find_gateway(run, GATEWAY_PATIENCE),
        api_key=read_client_key("chat"),
        model=read_served_model(run),
        sampling=options.sampling,
        stream_share=0.0,
        seed=options.seed,
    )
    try:
        for row in play_episodes(run, options, policy, judge, ledger):
            outcomes = [episode["outcome"] for episode in row["episodes"]]
            logger.info("group %d: %s", row["index"], outcomes)
    finally:
        policy.close()
        if judge is not None:
            judge.close()
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
