"""Episodes on a live run: `python -m clawrl_trl.envs.runs.practice_worker --run DIR`, after its `practice.json`.

Groups of episodes are played through the run's gateway while a trainer trains on them. Each group is on record when
its outcomes are with the gateway, one line of `episodes.jsonl`; what is on record is not played again. The rollout
keeps no more than a few updates ahead of the policy, so that what it plays is not stale before it is trained.
"""

import itertools
import logging
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from clawrl_trl.config.api_keys import read_client_key
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.custom import load_callable
from clawrl_trl.envs.base.actor import GatewayPolicy
from clawrl_trl.envs.rollout.rollout import Rollout
from clawrl_trl.envs.rollout.screenshots import Screenshots
from clawrl_trl.envs.rollout.signals import StepJudge
from clawrl_trl.envs.runs.interactions import Interactions
from clawrl_trl.envs.runs.pace import Pace, count_waiting
from clawrl_trl.envs.runs.practice_options import PracticeOptions
from clawrl_trl.envs.runs.worker import find_gateway, read_served_model, start_worker
from clawrl_trl.errors import run_main
from clawrl_trl.ledger import Ledger
from clawrl_trl.messages import Json
from clawrl_trl.run import RunFolder

logger = logging.getLogger(__name__)

FILE_NAME = "episodes.jsonl"
GATEWAY_PATIENCE = 60.0
"""Longest wait for the run's gateway, in seconds."""


def order_tasks(count: int, seed: int) -> Iterator[int]:
    """Positions of tasks without end: all of them in a random order, then again in another."""
    rng = random.Random(f"practice-{seed}")
    while True:
        yield from rng.sample(range(count), count)


def list_missing_tasks(rows: Sequence[Json], count: int, options: PracticeOptions) -> list[int]:
    """Positions of the tasks that a run has still to play, in the seed's order.

    Args:
        rows (`list[dict]`): The groups on record, in the order in which they ended.
        count (`int`): Tasks there are.
        options ([`PracticeOptions`]): What is practised.
    """
    played = Counter(row["episodes"][0]["task"] for row in rows)
    missing = []
    for position in itertools.islice(order_tasks(count, options.seed), options.groups):
        if played[position]:
            played[position] -= 1
        else:
            missing.append(position)
    return missing[: max(0, options.groups - len(rows))]


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
        ledger (`Ledger`, *optional*): The run's ledger, where the samples that wait are counted; see [`Pace`]. Without
            it nothing holds the rollout back.
    """
    make_env, count = options.load_environments("train")
    record = Interactions(run / FILE_NAME)
    pace = None
    if ledger is not None:
        waiting = partial(count_waiting, ledger, options.hints)
        pace = Pace(run, waiting, room=options.update_samples * options.lead, idle_s=options.lead_s)
    numbers = itertools.count(len(record.rows))
    # Counts go on from those on record, which are of the processes before.
    last = record.rows[-1] if record.rows else {"requests": 0, "failed": 0}
    requests, failed = last["requests"] - policy.requests, last["failed"] - policy.failures
    reward = options.reward_function_path

    def paced_tasks() -> Iterator[int]:
        for position in list_missing_tasks(record.rows, count, options):
            if pace is not None:
                pace.wait(lambda: rollout.is_stopped)
            if rollout.is_stopped:
                return
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
        row = {
            "index": next(numbers),
            "group": group.id,
            "episodes": [asdict(episode) for episode in group.episodes],
            "settled": dict(group.settled),
            "requests": requests + policy.requests,
            "failed": failed + policy.failures,
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
    ledger = Ledger.open(settings.ledger_url or RunFolder(run).ledger)
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
