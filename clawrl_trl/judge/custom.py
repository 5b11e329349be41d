"""A user's own reward in place of the judge's score: `--custom_rm_path file.py:name`.

Two contracts, told apart by the names of the parameters: `reward(turn)` gets one [`JudgedTurn`], and
`score(prompt, response, next_state)`, that of the reference system's reward models, gets texts. Either may be a
function, a coroutine function, an instance with `__call__`, or a class or an instance with the method `score`. It
returns a score in [-1, 1], `None` to abstain, or something with a `score` and a `hint`. A plain one runs in a thread
of its own. A call that fails is tried again a few times; then the turn is judged as abstained, with the reason.
Explicit feedback decides before it, and the owner's own words are the hints of what it rejects.
"""

import asyncio
import inspect
import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from clawrl_trl.custom import load_object
from clawrl_trl.errors import UserError
from clawrl_trl.judge.classifier.encoders import MINILM
from clawrl_trl.judge.provenance import list_tool_names
from clawrl_trl.judge.refusals import find_refusal
from clawrl_trl.judge.rules import RulesJudge
from clawrl_trl.judge.turn import JudgedTurn, Judgement, JudgeUnavailable, encodable_text

ATTEMPTS = 4
"""How often a reward that raises is called for one turn."""
TEXTS = ("prompt", "response", "next_state")
"""Parameters of the reference system's contract."""
CONTRACTS = "reward(turn) or score(prompt, response, next_state)"


class Threads:
    """Threads for calls that may never return: such a call keeps its thread, but neither others' nor the process.

    An executor would not do: Python waits for the threads of all executors before it ends.

    Args:
        count: How many calls may be under way at once.
    """

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    @property
    def are_held(self) -> bool:
        """Return whether each thread has a call under way."""
        return self._free.locked()

    async def run(self, call: Callable[[], Any]) -> Any:
        """What a call returns; it goes on, and keeps its thread, when this is cancelled."""
        await self._free.acquire()
        loop, result = asyncio.get_running_loop(), Future[Any]()
        result.set_running_or_notify_cancel()  # so that it can't be cancelled any more

        def work() -> None:
            try:
                result.set_result(call())
            except BaseException as error:  # noqa: BLE001 - whatever it is, the caller must hear of it
                result.set_exception(error)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._free.release)

        threading.Thread(target=work, name="custom-reward", daemon=True).start()
        return await asyncio.wrap_future(result)


@dataclass(frozen=True)
class Reward:
    """A user's reward, and how it is to be called.

    Args:
        call: The function or bound method.
        takes_texts: Whether it is called as `(prompt=, response=, next_state=)` and not as `(turn)`.
    """

    call: Callable[..., Any]
    takes_texts: bool

    async def ask(self, turn: JudgedTurn, threads: Threads) -> object:
        """What it returns for a turn."""
        positional = () if self.takes_texts else (turn,)
        named = make_texts(turn) if self.takes_texts else {}
        if inspect.iscoroutinefunction(self.call) or inspect.iscoroutinefunction(
            getattr(self.call, "__call__", None)  # noqa: B004 - an instance with an async __call__
        ):
            return await self.call(*positional, **named)
        # A plain function may block, so it gets a thread; a lambda may still return a coroutine.
        result = await threads.run(partial(self.call, *positional, **named))
        return await result if inspect.isawaitable(result) else result


def load_reward(spec: str, *, make: bool = True) -> Reward:
    """Load a user's reward and find out which contract it has.

    Args:
        spec: `file.py:name` or `package.module:name`.
        make: Make an object of a class, which may load a model. Without it the reward is only checked.

    Raises:
        UserError: If it does not exist or has neither contract.
    """
    target = load_object(spec)
    if make and has_score(target) and isinstance(target, type):
        target = make_model(target, spec)
    call = find_call(target, spec)
    try:
        parameters = inspect.signature(call).parameters
    except ValueError:  # a built-in without a signature can't be checked
        return Reward(call, takes_texts=False)
    except TypeError as error:
        raise UserError(f"{spec!r} must be callable as {CONTRACTS}: {error}.") from None
    texts = [name for name in TEXTS if name in parameters]
    takes_texts = len(texts) == len(TEXTS)
    if texts and not takes_texts:
        absent = ", ".join(name for name in TEXTS if name not in texts)
        raise UserError(f"{spec!r} must be callable as {CONTRACTS}: it takes {', '.join(texts)} and no {absent}.")
    try:
        inspect.signature(call).bind(*(() if takes_texts else (None,)), **dict.fromkeys(texts))
    except TypeError as error:
        raise UserError(f"{spec!r} must be callable as {CONTRACTS}: {error}.") from None
    return Reward(call, takes_texts)


def has_score(target: object) -> bool:
    """Return whether an object or a class has a method `score`."""
    return callable(getattr(target, "score", None))


def make_model(kind: type, spec: str) -> object:
    """Make an object of a user's class.

    Raises:
        UserError: If it can't be made without arguments.
    """
    try:
        model: object = kind()
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(f"{spec!r}: {kind.__name__}() failed: {reason}") from error
    return model


def find_call(target: object, spec: str) -> Callable[..., Any]:
    """The function to call: the object itself, or its method `score`.

    Raises:
        UserError: If there is none.
    """
    score: Callable[..., Any] | None = getattr(target, "score", None) if has_score(target) else None
    if isinstance(target, type) and score is not None:
        return partial(score, None)  # of an object that is yet to be made: for its signature alone
    if callable(target):
        return target
    if score is None:
        raise UserError(f"{spec!r} is a {type(target).__name__}, not a callable, and has no method score.")
    return score


def make_texts(turn: JudgedTurn) -> dict[str, str]:
    """The texts of a turn: the owner's request, the reply with its calls, and all that came next."""
    after = [text for message in turn.next_state if (text := encodable_text(message))]
    return {"prompt": turn.request, "response": turn.reply, "next_state": "\n\n".join(after)}


class CustomJudge:
    """Judges by explicit feedback, and without it with a user's callable.

    Args:
        spec: `file.py:name` or `package.module:name`, called as `reward(turn)` or as
            `score(prompt, response, next_state)`.
        timeout: Longest wait for one call, seconds.
        workers: Calls of a plain function that may be under way at once.
        encoder: The encoder that the embedded judge, who writes the hints, reads with.
        any_score: Write hints also where the score is no objection.

    Raises:
        UserError: If it does not exist or can't be called so.
    """

    def __init__(
        self, spec: str, timeout: float = 60.0, *, workers: int = 4, encoder: str = MINILM, any_score: bool = False
    ) -> None:
        self._reward = load_reward(spec)
        self.name = f"custom:{spec.rpartition(':')[2]}"
        self._timeout = timeout
        self._threads = Threads(max(1, workers))
        self._any_score = any_score
        self._rules = RulesJudge(encoder=encoder, any_score=any_score)

    async def judge(self, turn: JudgedTurn) -> Judgement:
        """The judgement of one turn.

        Raises:
            JudgeUnavailable: If the callable raised, took too long, or returned no score.
        """
        if turn.feedback:
            by_rules = await self._rules.judge(turn)
            if str(by_rules.detail.get("by")).startswith("feedback"):
                return by_rules
        score, hint = await self._ask(turn)
        reason = find_refusal(hint, list_tool_names(turn.tools), turn.reply) if hint else None
        detail = {"by": "custom reward", **({"hint_refused": reason} if reason else {})}
        if hint and reason is None:
            return Judgement(self.name, score, (hint,), self.name, detail=detail)
        if score is None or (score >= 0 and not self._any_score):
            return Judgement(self.name, score, detail=detail)
        by_rules = await self._rules.judge(turn)
        return Judgement(self.name, score, by_rules.hints, by_rules.hint_source, detail=detail)

    async def _ask(self, turn: JudgedTurn) -> tuple[float | None, str | None]:
        """Score and hint of the callable."""
        try:
            async with asyncio.timeout(self._timeout):
                return parse_result(await self._reward.ask(turn, self._threads))
        except Exception as error:
            held = isinstance(error, TimeoutError) and self._threads.are_held
            reason = "all its threads are held by calls that have not returned" if held else error
            raise JudgeUnavailable(
                f"custom reward: {type(error).__name__}: {reason}"[:300], patience=ATTEMPTS
            ) from error


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
