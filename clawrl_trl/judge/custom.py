"""A user's own reward in place of the judge's score: `--custom_rm_path file.py:name`.

The callable gets one [`JudgedTurn`] and returns a score in [-1, 1], `None` to abstain, or something with a `score`
and a `hint`. It may be a coroutine function; a plain one runs in a thread. A call that fails is tried again a few
times; then the turn is judged as abstained, with the reason.
"""

import asyncio
import inspect
import math
from collections.abc import Mapping
from typing import Any

from clawrl_trl.custom import load_callable
from clawrl_trl.judge.provenance import list_tool_names
from clawrl_trl.judge.refusals import find_refusal
from clawrl_trl.judge.turn import JudgedTurn, Judgement, JudgeUnavailable

ATTEMPTS = 4
"""How often a reward that raises is called for one turn."""


class CustomJudge:
    """Judges with a user's callable.

    Args:
        spec: `file.py:name` or `package.module:name`, called as `reward(turn)`.
        timeout: Longest wait for one call, seconds.

    Raises:
        UserError: If it does not exist or can't be called so.
    """

    def __init__(self, spec: str, timeout: float = 60.0) -> None:
        self._reward = load_callable(spec, parameters=["turn"])
        self.name = f"custom:{spec.rpartition(':')[2]}"
        self._timeout = timeout

    async def judge(self, turn: JudgedTurn) -> Judgement:
        """The judgement of one turn.

        Raises:
            JudgeUnavailable: If the callable raised, took too long, or returned no score.
        """
        try:
            async with asyncio.timeout(self._timeout):
                score, hint = parse_result(await self._call(turn))
        except Exception as error:
            raise JudgeUnavailable(
                f"custom reward: {type(error).__name__}: {error}"[:300], patience=ATTEMPTS
            ) from error
        reason = find_refusal(hint, list_tool_names(turn.tools)) if hint else None
        hints = (hint,) if hint and reason is None else ()
        detail = {"by": "custom reward", **({"hint_refused": reason} if reason else {})}
        return Judgement(self.name, score, hints, self.name if hints else None, detail=detail)

    async def _call(self, turn: JudgedTurn) -> object:
        if inspect.iscoroutinefunction(self._reward) or inspect.iscoroutinefunction(
            getattr(self._reward, "__call__", None)  # noqa: B004 - an instance with an async __call__
        ):
            return await self._reward(turn)
        # A plain function may block, so it gets a thread; a lambda may still return a coroutine.
        result = await asyncio.to_thread(self._reward, turn)
        return await result if inspect.isawaitable(result) else result


def parse_result(value: Any) -> tuple[float | None, str | None]:
    """Score and hint of what a reward returned.

    Raises:
        ValueError: If it is neither a number in [-1, 1], nor `None`, nor something with `score` and `hint`.
    """
    hint: object = None
    if isinstance(value, Mapping) and "score" in value:
        value, hint = value["score"], value.get("hint")
    elif hasattr(value, "score"):
        value, hint = value.score, getattr(value, "hint", None)
    if hint is not None and not isinstance(hint, str):
        raise ValueError(f"the hint is a {type(hint).__name__}, not a string")
    if value is None:
        return None, hint
    score = float(value)
    if not math.isfinite(score) or not -1 <= score <= 1:
        raise ValueError(f"score {score} is not in [-1, 1]")
    return score, hint
