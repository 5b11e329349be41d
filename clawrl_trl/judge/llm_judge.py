"""The judge that asks a language model: m votes in parallel, plurality, abstention.

Any OpenAI-compatible server will do. A vote that is not exactly what was asked for doesn't count; if a vote can't be
had, nothing is decided and the turn stays pending. What a server refuses (a schema of the answer, pictures) it isn't
sent again.
"""

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from clawrl_trl.engines.client import EngineClient, EngineError, EngineUnavailable
from clawrl_trl.judge.heard import collect_remarks
from clawrl_trl.judge.hints import extraction
from clawrl_trl.judge.provenance import is_grounded, list_tool_names
from clawrl_trl.judge.refusals import find_refusal
from clawrl_trl.judge.rules import judge_feedback
from clawrl_trl.judge.screens import ShownPicture, collect_screens
from clawrl_trl.judge.turn import JudgedTurn, Judgement, JudgeTimedOut, JudgeUnavailable
from clawrl_trl.judge.vote_prompt import EXCERPTS, build_prompt, draw_mark
from clawrl_trl.messages import Json

logger = logging.getLogger(__name__)

REFUSALS = frozenset({400, 413, 415, 422, 501})
PICTURE_REFUSALS = REFUSALS | {500}
"""Refusals of a prompt with pictures; some servers call it a fault of their own."""
_TOO_LONG = re.compile(r"context|too (long|large|many)|maximum|length", re.I)
ATTEMPTS = 4
"""How often a turn is tried whose votes the server refuses; then it is judged as abstained."""
MAX_RAW = 2000
RESPONSE_FORMAT: Json = {
    "type": "json_schema",
    "json_schema": {
        "name": "vote",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {
                "score": {"type": "integer", "enum": [-1, 0, 1]},
                "hint": {"type": ["string", "null"]},
            },
            "required": ["score", "hint"],
            "additionalProperties": False,
        },
    },
}


class _VoteShape(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    score: Literal[-1, 0, 1]
    hint: str | None = None


@dataclass(frozen=True)
class Vote:
    """One answer of the model: `score` is `None` when it is not a valid vote."""

    score: int | None
    raw: str
    hint: str | None = None


class LLMJudge:
    """Judges with a language model.

    Args:
        client: Client of an OpenAI-compatible server.
        model: Name of the model there; `None` for the server's base model.
        votes: How many votes a turn gets.
        majority: Share of the valid votes that suffices to decide.
        temperature: Sampling temperature.
        max_tokens: Longest vote.
        timeout: Longest wait for a vote, seconds.
        any_score: Write hints also where the owner approves or is undecided.
    """

    def __init__(
        self,
        client: EngineClient,
        *,
        model: str | None = None,
        votes: int = 3,
        majority: float = 0.5,
        temperature: float = 0.6,
        max_tokens: int = 1024,
        timeout: float = 60.0,
        any_score: bool = False,
    ) -> None:
        self._client, self._model = client, model
        self._votes, self._majority = max(1, votes), majority
        self._sampling = {"temperature": temperature, "max_tokens": max_tokens}
        self._timeout = timeout
        self._any_score = any_score
        self._structured = True
        self._takes_pictures = True

    async def judge(self, turn: JudgedTurn) -> Judgement:
        """The judgement of one turn; explicit feedback decides without a vote.

        Raises:
            JudgeTimedOut: If a vote took too long.
            JudgeUnavailable: If any vote could not be had for another reason.
        """
        by_feedback = judge_feedback(turn, any_score=self._any_score)
        if by_feedback is not None:
            return by_feedback
        model = await self.find_model()
        votes = await self._collect_votes(turn, model)
        score, reason = find_plurality([vote.score for vote in votes], self._majority)
        candidates = collect_hints(turn, votes, score) if score == -1 or self._any_score else []
        return Judgement(
            f"llm:{model}",
            score,
            tuple(candidates),
            "owner words" if candidates else None,
            votes=tuple({"score": vote.score, "raw": vote.raw, "hint": vote.hint} for vote in votes),
            detail={"by": "votes", **({"reason": reason} if reason else {})},
        )

    @property
    def votes(self) -> int:
        """How many votes a turn gets."""
        return self._votes

    def describe_settings(self) -> Json:
        """What a vote depends on beside model and prompt."""
        settings = {"votes": self._votes, "majority": self._majority, "any_score": self._any_score}
        return {**settings, **self._sampling}

    async def find_model(self) -> str:
        """The model's name at the server.

        Raises:
            JudgeUnavailable: If the server does not say.
        """
        try:
            return self._model or await self._client.find_base_name()
        except EngineError as error:
            reason = f"the server does not name its model: {error}"[:300]
            raise JudgeUnavailable(reason, is_attempt=not error.away) from error

    async def _collect_votes(self, turn: JudgedTurn, model: str) -> list[Vote]:
        """All votes, on shorter excerpts if the server finds the prompt too long."""
        screens = await asyncio.to_thread(collect_screens, turn) if self._takes_pictures else []
        mark = draw_mark()
        for limit in EXCERPTS:
            request = partial(self._request_vote, turn, mark, limit, screens, model)
            votes = [asyncio.create_task(request()) for _ in range(self._votes)]
            try:
                return await asyncio.gather(*votes)
            except (EngineError, TimeoutError) as error:
                failure = error
                if not isinstance(error, EngineError) or error.status not in REFUSALS:
                    break
            finally:
                # One vote that can't be had decides nothing: the others would keep the server busy for nothing.
                for vote in votes:
                    vote.cancel()
        reason = f"vote failed: {type(failure).__name__}: {failure}"[:300]
        if not isinstance(failure, EngineError) or (isinstance(failure, EngineUnavailable) and failure.timed_out):
            raise JudgeTimedOut(reason) from failure
        patience = ATTEMPTS if failure.status in REFUSALS else None
        raise JudgeUnavailable(reason, patience, is_attempt=not failure.away) from failure

    async def _request_vote(
        self, turn: JudgedTurn, mark: str, limit: int, screens: Sequence[ShownPicture], model: str
    ) -> Vote:
        """One vote, on fewer pictures if the server finds them too many, and on the texts alone if it takes none."""
        # Some servers take one picture and no more: the last shows what the reply led to.
        counts = sorted({len(screens), min(len(screens), 1), 0}, reverse=True)
        refused = False
        for shown in [screens[len(screens) - count :] for count in counts]:
            messages = build_prompt(turn, limit, mark=mark, any_score=self._any_score, screens=shown)
            try:
                vote = await self._request_text({"model": model, "messages": messages, **self._sampling})
            except EngineError as error:
                if not shown or error.status not in PICTURE_REFUSALS:
                    raise
                # A server's own fault may pass, and another turn may be shorter.
                refused = error.status in REFUSALS and not _TOO_LONG.search(str(error))
            else:
                if refused and not shown and self._takes_pictures:
                    self._takes_pictures = False
                    logger.warning("the judge's server takes no pictures: it votes on the texts alone")
                return vote
        raise AssertionError("the last choice has no picture")

    async def _request_text(self, body: Json) -> Vote:
        async with asyncio.timeout(self._timeout):
            if not self._structured:
                return parse_vote(await self._client.chat(body))
            try:
                return parse_vote(await self._client.chat({**body, "response_format": RESPONSE_FORMAT}))
            except EngineError as error:
                if error.status not in REFUSALS:
                    raise
            # Not every server constrains its output; the fixed last line does without. It is remembered only once the
            # plain request was answered: a prompt that is too long is refused either way.
            vote = parse_vote(await self._client.chat(body))
            self._structured = False
            return vote


def parse_vote(reply: Json) -> Vote:
    """The vote in a chat completion: what follows its thoughts, or its last line, is the JSON object."""
    try:
        content = str(reply["choices"][0]["message"].get("content") or "")
    except (KeyError, IndexError, TypeError, AttributeError):
        return Vote(None, json.dumps(reply)[:MAX_RAW])
    answer = content.rpartition("</think>")[2].strip()
    lines = [line.strip() for line in answer.splitlines() if line.strip(" `\t")]
    for text in (answer, lines[-1] if lines else ""):
        try:
            shape = _VoteShape.model_validate_json(text)
        except ValidationError:
            continue
        return Vote(shape.score, content[:MAX_RAW], (shape.hint or "").strip() or None)
    return Vote(None, content[:MAX_RAW])


def find_plurality(scores: Sequence[int | None], majority: float = 0.5) -> tuple[int | None, str | None]:
    """Decided score of m votes (`None` is an invalid one), or `None` and why nothing is decided.

    More than half of the votes must be valid, one score must be ahead of the others, and its share of the valid
    votes must be at least `majority`.
    """
    valid = [score for score in scores if score is not None]
    if 2 * len(valid) <= len(scores):
        return None, f"{len(valid)} of {len(scores)} votes are valid"
    (winner, count), *others = Counter(valid).most_common()
    if others and others[0][1] == count:
        return None, "tie"
    # The share as it was written: 14 of 25 are 0.56, though 0.56 * 25 is above 14 as floats.
    if count < Fraction(str(majority)) * len(valid):
        return None, f"{count} of {len(valid)} votes are no majority"
    return winner, None


def collect_hints(turn: JudgedTurn, votes: Sequence[Vote], score: float | None = -1) -> list[str]:
    """Candidate hints: those of the votes that repeat what the owner said, then the owner's own sentences.

    Args:
        turn: The turn.
        votes: Its votes; where they decided, the hints of those that were outvoted are left out.
        score: What they decided.
    """
    texts = collect_remarks(turn)
    texts += [item.text for item in turn.feedback if item.text]
    names = list_tool_names(turn.tools)
    agreeing = [vote for vote in votes if vote.score is not None and score in (None, vote.score)]
    proposed = [extraction.clean_sentence(vote.hint) for vote in agreeing if vote.hint]
    # The model may have been talked into a hint: only one in the owner's own words is used.
    allowed = [
        hint
        for hint in proposed
        if hint and is_grounded(hint, texts) and find_refusal(hint, names, turn.reply) is None
    ]
    return list(dict.fromkeys([*allowed, *extraction.extract_hints(texts, turn.request, names, score, turn.reply)]))
