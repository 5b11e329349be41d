"""The rollout: many episodes at a time, in groups of one task, each group reported to the gateway when it has ended.

Episodes run on threads, one environment each, which take the next episode as soon as one has ended, so that none waits
for the slowest. Every turn goes through the gateway like any chat and is captured there; the rollout adds the outcome
and, with `prm_coef`, the process scores of the steps. It never trains and holds no tokens.
"""

import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import openai
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.envs import EnvBase

from clawrl_trl.envs.base.actor import TRANSPORT_ERRORS, GatewayPolicy
from clawrl_trl.envs.rollout.episode import Episode, Group, OpenGroup, read_hints
from clawrl_trl.envs.rollout.queues import EpisodeQueue, ResultQueue
from clawrl_trl.envs.rollout.screenshots import Screenshots
from clawrl_trl.envs.rollout.signals import EpisodeSignals, StepJudge
from clawrl_trl.errors import UserError

logger = logging.getLogger(__name__)

REPORT_ATTEMPTS = 5
"""Requests made to report a group before the run ends with the error."""


class Rollout:
    """Player of groups of episodes.

    Args:
        make_env (`Callable[[], EnvBase]`): Makes an [`AgentEnv`] or a [`RemoteEnv`]; called once for each
            that runs in parallel.
        policy ([`GatewayPolicy`]): The policy that acts.
        num_generations (`int`, *optional*, defaults to `8`): Episodes of a group.
        parallel_envs (`int`, *optional*, defaults to `4`): Environments at a time.
        report (`bool`, *optional*, defaults to `True`): Tell the gateway the outcomes. Without that (an evaluation),
            sessions belong to no group.
        feedback_key (`str`, *optional*): Key of the gateway's feedback scope. Default: the policy's own.
        reward (`Callable[[Episode], float]`, *optional*): What is reported in place of an episode's outcome.
        stop (`threading.Event`, *optional*): Set it to begin no further episode; those under way are dropped after
            the step that they are at.
        prm_coef (`float`, *optional*, defaults to `0.0`): Weight of the steps' process scores in their rewards.
        stepwise (`bool`, *optional*, defaults to `False`): Compare the rewards of a group step by step.
        judge ([`StepJudge`], *optional*): Gives the process scores. Default: the world itself.
        screenshots ([`Screenshots`], *optional*): Store for the observed screenshots.
        hints (`bool`, *optional*, defaults to `False`): Report the environment's words on steps that fell short, as
            hints for the run's teacher.

    Examples:
        >>> rollout = Rollout(lambda: TerminalEnv(tasks), GatewayPolicy("http://127.0.0.1:30000"), num_generations=4)
        >>> for group in rollout.play(range(len(tasks))):
        ...     print(group.id, [episode.outcome for episode in group.episodes])
    """

    def __init__(
        self,
        make_env: Callable[[], EnvBase],
        policy: GatewayPolicy,
        *,
        num_generations: int = 8,
        parallel_envs: int = 4,
        report: bool = True,
        feedback_key: str | None = None,
        reward: Callable[[Episode], float] | None = None,
        stop: threading.Event | None = None,
        prm_coef: float = 0.0,
        stepwise: bool = False,
        judge: StepJudge | None = None,
        screenshots: Screenshots | None = None,
        hints: bool = False,
    ) -> None:
        if num_generations < 1 or parallel_envs < 1:
            raise ValueError("num_generations and parallel_envs must be at least 1")
        self.make_env = make_env
        self.policy = policy
        self.num_generations = num_generations
        self.parallel_envs = parallel_envs
        self.report = report
        self.feedback_key = feedback_key
        self.reward = reward
        self.stop = stop or threading.Event()
        self.prm_coef, self.stepwise = prm_coef, stepwise
        self.judge = judge
        self.screenshots = screenshots
        self.hints = hints
        self._closed = threading.Event()  # of the play under way

    @property
    def is_stopped(self) -> bool:
        """True when no further episode begins, though tasks may be left: `stop` is set, or nobody reads the groups."""
        return self.stop.is_set() or self._closed.is_set()

    def play(self, tasks: Iterable[int]) -> Iterator[Group]:
        """Play a group for each task, and yield it when its last episode has ended.

        Args:
            tasks (`Iterable[int]`): Positions of tasks, also endless ones; read as episodes begin.

        Raises:
            UserError: If the gateway refuses the key, does not know the model, or stays away.
            Exception: What an environment raised when it was made.
        """
        episodes = EpisodeQueue(tasks, self.num_generations)
        # Bounded, so that a reader who waits (for the trainer's next version) makes the environments wait too.
        results = ResultQueue(2 * self.parallel_envs)
        self._closed = results.closed
        with ThreadPoolExecutor(self.parallel_envs, thread_name_prefix="rollout") as threads:
            for _ in range(self.parallel_envs):
                threads.submit(self._run_worker, episodes, results).add_done_callback(results.put_ended_thread)
            try:
                yield from self._collect_groups(results, self.parallel_envs)
            finally:
                results.closed.set()  # a reader that leaves early must not wait for all tasks to be played

    def _collect_groups(self, results: ResultQueue, running: int) -> Iterator[Group]:
        while running:
            item = results.get()
            if isinstance(item, Future):
                item.result()  # raises what ended the thread
                running -= 1
                continue
            group, episode = item
            group.episodes.append(episode)
            group.missing -= 1
            if not group.missing:
                yield Group(group.id, group.episodes, self._report_group(group) if self.report else {})

    def _run_worker(self, episodes: EpisodeQueue, results: ResultQueue) -> None:
        """Play episode after episode in one environment, until there is no task left."""
        env = self.make_env()  # on this thread, where it stays: browsers insist on one
        try:
            while not self.is_stopped and (group := episodes.next()) is not None:
                results.put(group, self._play_episode(env, group))
        finally:
            env.close()

    def _play_episode(self, env: EnvBase, group: OpenGroup) -> Episode:
        started = time.perf_counter()
        state = env.reset(TensorDict({"next_task": torch.tensor([group.task])}, batch_size=()))
        self._keep_screenshot(state)
        versions: dict[int, None] = {}  # a set that keeps the order
        signals, drop_reason = EpisodeSignals(self.judge), ""
        turns: dict[int, str] = {}
        while not (bool(state["done"]) or bool(state["dropped"])):
            if self.is_stopped:
                drop_reason = "stopped"
                break
            reply = self.policy.reply(
                json.loads(state["conversation"]),
                session_id=state["session_id"],
                tools=json.loads(state["tools"]) or None,
                group=group.id if self.report else None,
            )
            if reply.policy_version is not None:
                versions[reply.policy_version] = None
            if reply.too_long and int(state["step"]):
                state = env.conclude()  # the agent filled its context: that is its outcome
                continue
            if reply.refusal:  # the same conversation would be refused again
                drop_reason = reply.refusal
                break
            if reply.turn_id is not None and reply.action:
                turns[int(state["step"])] = reply.turn_id
            before, state = state, env.step(state.set("action", reply.action))["next"]
            self._keep_screenshot(state)
            if self.report and self.prm_coef:
                signals.add_step(reply, before, state)
        dropped = bool(drop_reason) or bool(state["dropped"])
        return Episode(
            task=group.task,
            task_id=state["task_id"],
            session_id=state["session_id"],
            outcome=None if dropped else float(state["outcome"]),
            reason=drop_reason or state["reason"],
            steps=int(state["step"]),
            versions=tuple(versions),
            wall_s=round(time.perf_counter() - started, 3),
            signals={} if dropped else signals.collect_scores(),
            hints=read_hints(state, turns) if self.hints and self.report and not dropped else {},
        )

    def _keep_screenshot(self, state: TensorDictBase) -> None:
        if self.screenshots is not None:
            self.screenshots.keep(state)

    def _report_group(self, group: OpenGroup) -> Mapping[str, Any]:
        """Report a group; settling is idempotent, so a report whose answer was lost is sent again."""
        body = {
            "group": group.id,
            "episodes": [
                {
                    "session_id": episode.session_id,
                    "outcome": self._compute_reward(episode),
                    "reason": episode.reason,
                    "signals": episode.signals,
                    **({"hints": episode.hints} if episode.hints else {}),
                }
                for episode in group.episodes
            ],
            "signal_weight": self.prm_coef,
            "stepwise": self.stepwise,
        }
        headers = {"Authorization": f"Bearer {self.feedback_key}"} if self.feedback_key else {}
        for attempt in itertools.count(1):
            try:
                return self.policy.client.post(
                    "/episodes", body=body, cast_to=dict[str, Any], options={"headers": headers}
                )
            except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
                raise UserError("the gateway refuses outcomes with this key: set CLAWRL_FEEDBACK_KEY.") from error
            except TRANSPORT_ERRORS as error:
                client_fault = isinstance(error, openai.APIStatusError) and error.status_code < 500
                if client_fault or attempt >= REPORT_ATTEMPTS:
                    raise
                logger.warning("the outcomes of a group could not be told: %s", type(error).__name__)
                self.policy.wait_until_up()
        raise AssertionError("unreachable")

    def _compute_reward(self, episode: Episode) -> float | None:
        if self.reward is None or episode.outcome is None:
            return episode.outcome
        reward = float(self.reward(episode))
        if not -1 <= reward <= 1:
            raise UserError(f"the own reward gave {reward} for {episode.task_id}: return a number from -1 to 1.")
        return reward
