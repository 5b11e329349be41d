"""Process scores of an episode's steps, in [-1, 1]: from the world, or from the run's judge.

The run's judge process scores chats; turns of an episode wait for their outcome instead. So the rollout itself asks
the run's judge (`--judge llm`, or an own reward) about each step, while the world goes on, and waits for the last
answers once, when the episode has ended, and no longer than one vote may take. A step that is undecided by then, or
that the judge could not or would not decide, has no score. Without such a judge the world's own signal is the score.
"""

import asyncio
import contextlib
import json
import logging
import math
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

from tensordict import TensorDictBase

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.envs.base.actor import ModelReply
from clawrl_trl.judge.factory import open_judge
from clawrl_trl.judge.turn import Judge, JudgedTurn, JudgeUnavailable
from clawrl_trl.messages import Json
from clawrl_trl.run import RunFolder

logger = logging.getLogger(__name__)

T = TypeVar("T")


class StepJudge:
    """A run's judge, asked about steps from any thread.

    Args:
        settings (`ServeSettings`): The run's settings.

    Raises:
        UserError: If an own reward can't be loaded.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self.timeout = settings.judge_timeout
        self._judging_slots = asyncio.Semaphore(max(1, settings.judge_workers))
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="step-judge", daemon=True).start()
        self._resources = contextlib.AsyncExitStack()
        try:
            self._judge = self._submit(self._open_judge(settings)).result()
        except BaseException:
            self.close()
            raise

    @classmethod
    def of_run(cls, run: Path) -> "StepJudge | None":
        """Return the judge of a run; `None` where its judge is one that reads chats only."""
        settings = ServeSettings.load(run)
        return cls(settings) if settings.judge == "llm" or settings.custom_rm_path else None

    def ask(self, step: JudgedTurn) -> "Future[float | None]":
        """Ask for the score of a step; returns at once. The answer is `None` where nothing was decided."""
        return self._submit(self._score(step))

    def collect_scores(self, pending: "Mapping[str, Future[float | None]]") -> dict[str, float]:
        """Wait for scores, by turn, for at most one vote's time; what is late is cancelled and has no score."""
        finished, late = wait(pending.values(), timeout=self.timeout)
        for future in late:
            future.cancel()
        if late:
            logger.warning("%d steps were not judged within %.0f s", len(late), self.timeout)
        scores = {turn_id: future.result() for turn_id, future in pending.items() if future in finished}
        return {turn_id: score for turn_id, score in scores.items() if score is not None}

    def close(self) -> None:
        """Close the judge; what is still under way is given up."""
        with contextlib.suppress(TimeoutError):
            self._submit(self._resources.aclose()).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open_judge(self, settings: ServeSettings) -> Judge:
        engine = EngineClient.of_run(RunFolder(settings.run), settings, settings.judge_timeout)
        await self._resources.enter_async_context(engine)
        return await self._resources.enter_async_context(open_judge(settings, engine))

    async def _score(self, step: JudgedTurn) -> float | None:
        async with self._judging_slots:
            try:
                score: float | None = (await self._judge.judge(step)).score
                return score
            except JudgeUnavailable as failure:
                logger.warning("a step was not judged: %s", failure.reason)
            except Exception:  # a judge's bug must not cost the episode
                logger.exception("judging a step failed")
        return None


class EpisodeSignals:
    """The process scores of one episode, by turn: add each step, then collect the scores once.

    Args:
        judge ([`StepJudge`], *optional*): Gives the scores. Default: the world itself.
    """

    def __init__(self, judge: StepJudge | None) -> None:
        self._judge = judge
        self._scores: dict[str, float] = {}
        self._pending: dict[str, Future[float | None]] = {}

    def add_step(self, reply: ModelReply, before: TensorDictBase, after: TensorDictBase) -> None:
        """Score a step, given by its reply and the observations before and after it; returns at once."""
        if reply.turn_id is None or not reply.action:  # a reply that was not captured has no turn to score
            return
        if self._judge is not None:
            step = make_judged_turn(reply, before, after)
            if step.next_state:
                self._pending[reply.turn_id] = self._judge.ask(step)
        elif "signal" in after and math.isfinite(score := float(after["signal"])):
            self._scores[reply.turn_id] = score

    def collect_scores(self) -> dict[str, float]:
        """Return the scores of an episode that has ended; waits for a judge once."""
        return self._scores if self._judge is None else self._judge.collect_scores(self._pending)


def make_judged_turn(reply: ModelReply, before: TensorDictBase, after: TensorDictBase) -> JudgedTurn:
    """Make a judge's turn of a step: the task is the owner's, and all that follows the reply is a tool's."""
    messages: list[Json] = json.loads(before["conversation"])
    next_state: list[Json] = json.loads(after["conversation"])[len(messages) + 1 :]  # after the reply itself
    return JudgedTurn(
        turn_id=reply.turn_id or "",
        session_id=before["session_id"],
        messages=messages,
        tools=json.loads(before["tools"]) or None,
        response=reply.message,
        next_state=next_state,
        next_state_provenance=["tool"] * len(next_state),
        feedback=(),
        policy_version=reply.policy_version,
        provenance=label_provenance(messages),
    )


def label_provenance(messages: Sequence[Json]) -> list[str]:
    """Return the author of each message of an episode: what stands before the first reply is the owner's."""
    roles = [message["role"] for message in messages]
    first_reply = roles.index("assistant") if "assistant" in roles else len(roles)
    # A user message after the first reply is the environment's (a picture, calls read from text), never the owner's.
    labels = ["owner"] * first_reply + ["tool"] * (len(roles) - first_reply)
    return [role if role in ("system", "assistant") else label for role, label in zip(roles, labels, strict=True)]
