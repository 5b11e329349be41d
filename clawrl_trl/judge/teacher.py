"""Log-probabilities of sampled tokens under the teacher: the base model that has read a hint.

The response is scored, not written again: the hinted prompt is rendered by the engine's own chat template, the
stored completion ids follow it, and the engine returns one log-prob for each of them, aligned by position. Both
sides of the gap are taken at temperature 1. If the engine can't render the stored prompt from the stored messages
exactly, then it can't render the hinted one either, and there is no teacher for that turn. With `top_k` the teacher
also scores, at each position, the tokens that the policy found most likely (see `align_candidates`).
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clawrl_trl.engines.calls import rename_reasoning
from clawrl_trl.engines.client import EngineClient, EngineError, PromptLogprobs
from clawrl_trl.judge.candidates import align_candidates, list_widths
from clawrl_trl.judge.hints.choice import (
    OVERLAP_TOKENS,
    choose_by_overlap,
    choose_hint,
    estimate_overlap,
    measure_gain,
    measure_overlap,
)
from clawrl_trl.judge.hints.template import append_hint, choose_template
from clawrl_trl.judge.turn import JudgeUnavailable, Message
from clawrl_trl.ledger.schema import Turn
from clawrl_trl.messages import Json
from clawrl_trl.pictures import has_pictures
from clawrl_trl.policy_names import name_policy

logger = logging.getLogger(__name__)

MAX_CANDIDATES = 3
"""Hints that are tried on one turn."""
ATTEMPTS = 8
"""How often an engine that answers too late, or with faults of its own, is asked about one turn."""


@dataclass(frozen=True)
class TeacherScores:
    """A teacher's scores of one turn.

    Args:
        hint: The hint that was chosen.
        teacher: Log-probs of the completion under base model and hint, shape `(completion,)`, temperature 1.
        plain: Log-probs under the policy that sampled it, without the hint, same shape.
        detail: Overlap and gain of each candidate hint.
        topk_ids: The policy's most likely tokens at each position, shape `(completion, K)`, -1 in empty slots;
            `None` when none were asked for.
        topk_logprobs: Log-probs of those under base model and hint, same shape, NaN in empty slots.
    """

    hint: str
    teacher: NDArray[np.float32]
    plain: NDArray[np.float32]
    detail: Json
    topk_ids: NDArray[np.int32] | None = None
    topk_logprobs: NDArray[np.float32] | None = None


class NoTeacher(Exception):
    """This turn can't have a teacher; the text says why."""


class HintTeacher:
    """Scores turns under hints.

    Args:
        engine: The engine that holds the base model and the policies.
        timeout: Longest wait for one call, seconds.
        top_k: Candidates per token to score beside the sampled one (K); 0 for none.
        choice: How a hint is chosen: `gap` or `overlap`.
    """

    def __init__(self, engine: EngineClient, timeout: float = 60.0, top_k: int = 0, choice: str = "gap") -> None:
        self._engine = engine
        self._timeout = timeout
        self._top_k = top_k
        self._by_overlap = choice == "overlap"
        self._policy_k = max(top_k, OVERLAP_TOKENS) if self._by_overlap else top_k
        self._widths = list_widths(self._policy_k)

    async def teach(
        self, turn: Turn, suggested: Sequence[str], score: float | None = None, source: str | None = None
    ) -> TeacherScores:
        """Score the turn's completion under the best of the suggested hints.

        Args:
            turn: The turn.
            suggested: Hints, of which the first few are tried.
            score: The verdict on the turn, if there is one.
            source: Where the hints come from, see `choose_template`.

        Raises:
            NoTeacher: If there can't be one: pictures in the prompt, template not reproducible, prompt too long, no
                hint qualifies.
            JudgeUnavailable: If the engine failed; to be tried again.
        """
        if turn.prompt_ids is None or turn.completion_ids is None or not len(turn.completion_ids):
            raise NoTeacher("the turn has no token ids")
        if has_pictures(turn.messages):
            raise NoTeacher("its prompt has pictures, and the engine scores text alone")
        try:
            prompt, completion = list(map(int, turn.prompt_ids)), list(map(int, turn.completion_ids))
            return await self._teach(turn, prompt, completion, suggested, score, choose_template(source))
        except TimeoutError as error:
            raise JudgeUnavailable("teacher: time-out", patience=ATTEMPTS) from error
        except UnicodeEncodeError as error:
            raise NoTeacher("a message holds half a character, which no request can carry") from error
        except EngineError as error:
            if not error.retryable:
                raise NoTeacher(f"the engine refused: {error}"[:300]) from error
            # An engine that is away comes back, and is waited for; one that is too slow for this turn stays so.
            patience = None if error.away else ATTEMPTS
            raise JudgeUnavailable(f"teacher: {error}"[:300], patience, is_attempt=not error.away) from error

    async def _teach(
        self,
        turn: Turn,
        prompt: list[int],
        completion: list[int],
        suggested: Sequence[str],
        score: float | None,
        template: str,
    ) -> TeacherScores:
        if await self._render(turn, turn.messages) != prompt:
            raise NoTeacher("the stored prompt can't be rendered again from its messages")
        plain, likely = await self._score_policy(turn, prompt, completion)
        tried, scored, contexts = [], [], []
        for hint in suggested[:MAX_CANDIDATES]:
            try:
                messages = append_hint(turn.messages, hint, template)
            except ValueError as error:
                raise NoTeacher(str(error)) from error
            contexts.append(await self._render(turn, messages))
            answer = await self._score_hinted(contexts[-1], completion)
            scored.append(answer)
            logprobs = _to_floats(answer.logprobs)
            overlap, gain = estimate_overlap(logprobs, plain), measure_gain(logprobs, plain, score)
            # Without the policy's tokens, where it can't be asked, the sampled ones stand for them.
            if self._by_overlap and likely is not None:
                overlap = measure_overlap(likely, name_tokens(answer, completion))
            tried.append({"hint": hint, "overlap": overlap, "gain": gain})
        best = self._choose(scored, plain, score, tried)
        if best is None:
            raise NoTeacher("under every hint the teacher is too far from the response, or against the verdict")
        detail: Json = {"candidates": tried}
        if not self._top_k:
            return TeacherScores(suggested[best], _to_floats(scored[best].logprobs), plain, detail)
        wide = scored[best] if self._by_overlap else await self._score_widely(contexts[best], completion)
        ids, logprobs_of = align_candidates(likely, wide, completion, self._top_k)
        detail["known"] = float((ids >= 0).mean())
        return TeacherScores(suggested[best], _to_floats(wide.logprobs), plain, detail, ids, logprobs_of)

    def _choose(
        self, scored: Sequence[PromptLogprobs], plain: NDArray[np.float32], score: float | None, tried: Sequence[Json]
    ) -> int | None:
        if self._by_overlap:
            overlaps, gains = [hint["overlap"] for hint in tried], [hint["gain"] for hint in tried]
            return choose_by_overlap(overlaps, gains)
        return choose_hint([_to_floats(answer.logprobs) for answer in scored], plain, score)

    async def _score_hinted(self, context: list[int], completion: list[int]) -> PromptLogprobs:
        """The teacher's scores under one hint, with its most likely tokens where the choice needs them."""
        if self._by_overlap:
            return await self._score_widely(context, completion)
        return await self._score(context, completion, await self._engine.find_base_name())

    async def _render(self, turn: Turn, messages: Sequence[Message]) -> list[int]:
        model = await self._engine.find_base_name()
        # Thoughts as the gateway sent them: where the template prints them other ids would come out.
        body: Json = {"model": model, "messages": rename_reasoning(messages), "add_generation_prompt": True}
        if turn.tools:
            body["tools"] = turn.tools
        if turn.sampling.get("chat_template_kwargs"):
            body["chat_template_kwargs"] = turn.sampling["chat_template_kwargs"]
        async with asyncio.timeout(self._timeout):
            return await self._engine.tokenize(body)

    async def _score_policy(
        self, turn: Turn, prompt: list[int], completion: list[int]
    ) -> tuple[NDArray[np.float32], list[dict[int, float]] | None]:
        """The sampled tokens' log-probs under the policy, and its most likely tokens where it can be asked.

        It can't when several versions sampled the turn, or when the engine has let go of the one that did.
        """
        stored = None
        if turn.logprobs is not None and len(turn.logprobs) == len(completion) and is_plainly_sampled(turn.sampling):
            stored = _to_floats(turn.logprobs)
        if turn.token_versions is not None:
            if stored is None:
                raise NoTeacher("several policy versions sampled it, not at temperature 1")
            return stored, None
        if stored is not None and not self._policy_k:
            return stored, None
        try:
            scored = await self._score(prompt, completion, await self._policy_name(turn), self._policy_k)
        except EngineError as error:
            # 404: the engine has let go of that version. The teacher then names the candidates itself.
            if stored is None or error.status != 404:
                raise
            return stored, None
        return (_to_floats(scored.logprobs) if stored is None else stored), scored.top

    async def _score_widely(self, context: list[int], completion: list[int]) -> PromptLogprobs:
        """The teacher's scores with as many of its most likely tokens as the engine is ready to name."""
        base = await self._engine.find_base_name()
        for width in self._widths:
            try:
                wide = await self._score(context, completion, base, width)
            except EngineError as error:
                if error.status != 400 or width == self._widths[-1]:
                    raise
            else:
                if width < self._widths[0]:
                    logger.warning("the engine names %d tokens, not %d: fewer candidates", width, self._widths[0])
                    # What the engine refused once it refuses for every turn.
                    self._widths = self._widths[self._widths.index(width) :]
                return wide
        raise AssertionError("there is at least one width")

    async def _policy_name(self, turn: Turn) -> str:
        """The name under which the engine serves the version that sampled the turn."""
        if turn.policy_version is None:
            raise NoTeacher("the policy version that sampled it is unknown")
        return name_policy(turn.policy_version) if turn.policy_version else await self._engine.find_base_name()

    async def _score(self, context: list[int], completion: list[int], model: str, top_k: int = 0) -> PromptLogprobs:
        async with asyncio.timeout(self._timeout):
            return await self._engine.prompt_logprobs(context, completion, model=model, top_k=top_k)


def _to_floats(values: ArrayLike) -> NDArray[np.float32]:
    return np.asarray(values, dtype=np.float32)


def name_tokens(scored: PromptLogprobs, completion: Sequence[int]) -> list[dict[int, float]]:
    """The tokens whose log-probs an answer holds at each position: the most likely ones and the sampled one."""
    positions = zip(scored.top, completion, scored.logprobs, strict=True)
    return [{**top, token: logprob} for top, token, logprob in positions]


def is_plainly_sampled(sampling: Mapping[str, object]) -> bool:
    """Return whether stored log-probs are those of the model itself: temperature 1, no truncation, no penalties."""
    neutral: dict[str, tuple[object, ...]] = {
        "temperature": (None, 1),
        "top_p": (None, 1),
        "top_k": (None, 0, -1),
        "min_p": (None, 0),
        "presence_penalty": (None, 0),
        "frequency_penalty": (None, 0),
        "repetition_penalty": (None, 1),
        "logit_bias": (None, {}),
    }
    return all(sampling.get(name) in values for name, values in neutral.items())
