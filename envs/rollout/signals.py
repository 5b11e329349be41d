"""Process scores of an episode's steps, in [-1, 1]: from the world, or from the run's judge.

The run's judge process looks after chats; turns of an episode wait for their outcome instead. So the rollout itself
asks the run's judge (`--judge llm`, or an own reward) about each step, while the world goes on, and waits for the last
answers once, when the episode has ended, and no longer than one vote may take. What was not decided by then, and what
the judge could not or would not decide, has no score. Without such a judge the world's own signal is the score.
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

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.envs.base.actor import ModelReply
from clawrl_trl.envs.base.message import Json
from clawrl_trl.judge.factory import open_judge
from clawrl_trl.judge.turn import JudgedTurn, JudgeUnavailable
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
        self._room = asyncio.Semaphore(max(1, settings.judge_workers))
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="step-judge", daemon=True).start()
        self._opened = contextlib.AsyncExitStack()
        try:
            self._judge = self._submit(self._open(settings)).result()
        except BaseException:
            self.close()
            raise

    @classmethod
    def of_run(cls, run: Path) -> "StepJudge | None":
        """The judge of a run; `None` where its judge is one that reads chats only."""
        settings = ServeSettings.load(run)
        return cls(settings) if settings.judge == "llm" or settings.custom_rm_path else None

    def ask(self, step: JudgedTurn) -> "Future[float | None]":
        """Ask for the score of a step; returns at once. The answer is `None` where nothing was decided."""
        return self._submit(self._score(step))

    def answers(self, asked: "Mapping[str, Future[float | None]]") -> dict[str, float]:
        """The scores that are there after at most one vote's time; what is late is given up."""
        done, late = wait(asked.values(), timeout=self.timeout)
        for one in late:
            one.cancel()
        if late:
            logger.warning("%d steps were not judged within %.0f s", len(late), self.timeout)
        found = {name: one.result() for name, one in asked.items() if one in done}
        return {name: score for name, score in found.items() if score is not None}

    def close(self) -> None:
        """Let go of the judge; what is still under way is given up."""
        with contextlib.suppress(TimeoutError):
            self._submit(self._opened.aclose()).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open(self, settings: ServeSettings) -> Any:
        engine = EngineClient.of_run(RunFolder(settings.run), settings, settings.judge_timeout)
        await self._opened.enter_async_context(engine)
        return await self._opened.enter_async_context(open_judge(settings, engine))

    async def _score(self, step: JudgedTurn) -> float | None:
        async with self._room:
            try:
                score: float | None = (await self._judge.judge(step)).score
                return score
            except JudgeUnavailable as failure:
                logger.warning("a step was not judged: %s", failure.reason)
            except Exception:  # a judge's bug must not cost the episode
                logger.exception("judging a step failed")
        return None


class Signals:
    """The process scores of one episode, by turn.

    Args:
        judge ([`StepJudge`], *optional*): Who scores. Default: the world itself.
    """

    def __init__(self, judge: StepJudge | None) -> None:
        self._judge = judge
        self._known: dict[str, float] = {}
        self._asked: dict[str, Future[float | None]] = {}

    def took(self, reply: ModelReply, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """A step: the reply, and what the environment observed before and after it."""
        if reply.turn_id is None or not reply.action:
            return
        if self._judge is not None:
            step = judged_step(reply, before, after)
            if step.next_state:
                self._asked[reply.turn_id] = self._judge.ask(step)
        elif "signal" in after and math.isfinite(score := float(after["signal"])):
            self._known[reply.turn_id] = score

    def told(self) -> dict[str, float]:
        """All scores there are, when the episode has ended; waits for a judge once."""
        return self._known if self._judge is None else self._judge.answers(self._asked)


def judged_step(reply: ModelReply, before: Mapping[str, Any], after: Mapping[str, Any]) -> JudgedTurn:
    """A step as a judge sees it: the task is the owner's, and all that follows it is what tools said."""
    messages: list[Json] = json.loads(before["conversation"])
    world = json.loads(after["conversation"])[len(messages) + 1 :]
    return JudgedTurn(
        turn_id=reply.turn_id or "",
        session_id=before["session_id"],
        messages=messages,
        tools=json.loads(before["tools"]) or None,
        response=reply.message,
        next_state=world,
        next_state_provenance=["tool"] * len(world),
        feedback=(),
        policy_version=reply.policy_version,
        provenance=provenance(messages),
    )


def provenance(messages: Sequence[Json]) -> list[str]:
    """Return who wrote each message of an episode: what stands before the first reply is the owner's."""
    begun = next((place for place, one in enumerate(messages) if one["role"] == "assistant"), len(messages))
    named = {"system": "system", "assistant": "assistant"}
    return [named.get(one["role"], "owner" if place < begun else "tool") for place, one in enumerate(messages)]
