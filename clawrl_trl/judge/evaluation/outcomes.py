"""Outcomes: what a judge said of each labelled case, and how sure it was.

They are stored without any text of a case, so that results of a set that nobody may look into can be kept.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from clawrl_trl.errors import UserError
from clawrl_trl.judge.evaluation.cases import JudgeCase
from clawrl_trl.judge.turn import Judge, Judgement, JudgeUnavailable

ATTEMPTS = 3
"""How often a case is put to a judge that is not available; then the case counts as failed."""


@dataclass(frozen=True)
class CaseOutcome:
    """A judge's outcome on one case.

    Attributes:
        id: The case's.
        score: -1, 0 or 1; `None` when the judge abstained or failed.
        confidence: Probability that the judge itself gives its score, in [0, 1]; `None` if it gives none.
        has_hint: It wrote a hint.
        is_right_hint: It wrote one, which was to be written and says what it should.
        failure: Why the case could not be judged; empty if it was.
    """

    id: str
    score: int | None
    confidence: float | None = None
    has_hint: bool = False
    is_right_hint: bool = False
    failure: str = ""


@dataclass(frozen=True)
class StoredOutcomes:
    """Content of a file of outcomes: the judge's name, and its outcomes."""

    judge: str
    outcomes: list[CaseOutcome]


_STORED = TypeAdapter(StoredOutcomes)


async def judge_cases(judge: Judge, cases: Sequence[JudgeCase], workers: int = 4) -> list[CaseOutcome]:
    """Put each case to a judge, `workers` at once; the outcomes are in the cases' order."""
    free = asyncio.Semaphore(workers)

    async def judge_one(case: JudgeCase) -> CaseOutcome:
        async with free:
            return await _judge_case(judge, case)

    return list(await asyncio.gather(*map(judge_one, cases)))


async def _judge_case(judge: Judge, case: JudgeCase) -> CaseOutcome:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return make_outcome(case, await judge.judge(case.turn))
        except JudgeUnavailable as failure:
            if attempt == ATTEMPTS:
                return CaseOutcome(case.id, None, failure=failure.reason)
    raise AssertionError("unreachable")


def make_outcome(case: JudgeCase, judgement: Judgement) -> CaseOutcome:
    """Make the outcome of a judgement. The first hint counts: the others are second choices."""
    score = None if judgement.score is None else (judgement.score > 0) - (judgement.score < 0)
    hint = next(iter(judgement.hints), None)
    return CaseOutcome(
        id=case.id,
        score=score,
        confidence=read_confidence(judgement, score),
        has_hint=hint is not None,
        is_right_hint=hint is not None and case.is_right_hint(hint),
    )


def read_confidence(judgement: Judgement, score: int | None) -> float | None:
    """Read how sure a judge is of its score.

    Of the rules judge it is the classifier's probability of that score, of a judge that votes the share of its valid
    votes; others give none.
    """
    if score is None:
        return None
    if rows := judgement.detail.get("probabilities"):
        # The most critical message decides where there are several.
        minus, zero, plus = min(rows, key=lambda row: row[2] - row[0])
        return float((minus, zero, plus)[score + 1])
    votes = [vote.get("score") for vote in judgement.votes]
    valid = [vote for vote in votes if vote is not None]
    return valid.count(score) / len(valid) if len(valid) > 1 else None


def write_outcomes(path: Path, judge: str, outcomes: Sequence[CaseOutcome]) -> None:
    """Store a judge's outcomes."""
    path.write_bytes(_STORED.dump_json(StoredOutcomes(judge, list(outcomes)), indent=1))


def read_outcomes(path: Path) -> tuple[str, dict[str, CaseOutcome]]:
    """Read the judge's name and its outcomes by case.

    Raises:
        UserError: If the file can't be read or holds something else.
    """
    try:
        stored = _STORED.validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} holds no stored outcomes: write some with 'clawrl judge eval … --save'.") from error
    return stored.judge, {outcome.id: outcome for outcome in stored.outcomes}
