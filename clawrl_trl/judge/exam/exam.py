"""The exam itself: the questions are put to the judge in small lots, until it is over or can't be passed any more."""

import logging
import time
from collections.abc import Sequence

from clawrl_trl.engines.client import EngineError
from clawrl_trl.judge.evaluation.outcomes import CaseOutcome, judge_cases
from clawrl_trl.judge.exam.groups import GROUPS
from clawrl_trl.judge.exam.questions import Question, load_questions
from clawrl_trl.judge.exam.result import MOST_INVALID, MOST_WRONG, ExamResult, count_wrong_signs, grade_group
from clawrl_trl.judge.turn import Judge, JudgedTurn, Judgement, JudgeTimedOut, JudgeUnavailable

logger = logging.getLogger(__name__)

LOT = 12
"""Questions after which it is looked whether the exam can still be passed."""
MOST_TIMEOUTS = 3
"""Time-outs that end a sitting: a server that is too slow is not asked all questions to see it."""

REFUSALS = frozenset({401, 403, 404})
"""Statuses of a server that refuses the key or the model, and will again."""


def find_refusal(failure: JudgeUnavailable) -> str | None:
    """What a server said that refuses the key or the model; `None` of any other failure."""
    error = failure.__cause__
    return str(error)[:200] if isinstance(error, EngineError) and error.status in REFUSALS else None


class Examinee:
    """The judge under examination, its votes counted.

    Args:
        judge: The judge; it must vote.
        votes: How many votes it takes on a turn.
    """

    def __init__(self, judge: Judge, votes: int) -> None:
        self._judge, self._votes_each = judge, votes
        self.votes = 0
        self.invalid = 0
        self.timeouts = 0
        self.refusal: JudgeUnavailable | None = None

    async def judge(self, turn: JudgedTurn) -> Judgement:
        """The judgement of one turn. A question that the server refuses for good counts as answered with no vote."""
        if self.refusal is not None:
            raise self.refusal
        if self.is_too_slow:
            raise JudgeTimedOut(f"{self.timeouts} of its votes timed out")
        try:
            judgement = await self._judge.judge(turn)
        except JudgeTimedOut:
            self.timeouts += 1
            raise
        except JudgeUnavailable as failure:
            self.refusal = failure if find_refusal(failure) else self.refusal
            if failure.patience is None:
                raise
            judgement = Judgement("exam", None, votes=({"score": None, "raw": failure.reason},) * self._votes_each)
        self.votes += len(judgement.votes)
        self.invalid += sum(vote.get("score") is None for vote in judgement.votes)
        return judgement

    @property
    def is_too_slow(self) -> bool:
        """True once so many votes have timed out that no more is asked."""
        return self.timeouts >= MOST_TIMEOUTS


async def sit_exam(judge: Judge, key: str, model: str, *, votes: int, workers: int = 4) -> ExamResult:
    """Put the questions to a judge.

    Args:
        judge: The judge.
        key: What identifies this exam.
        model: The judge's name, for people.
        votes: How many votes it takes on a turn.
        workers: Questions put to it at once.

    Raises:
        JudgeTimedOut: If the judge was too slow.
        JudgeUnavailable: If a question could not be judged: such an exam says nothing.
    """
    questions = load_questions()
    examinee = Examinee(judge, votes)
    outcomes: list[CaseOutcome] = []
    for start in range(0, len(questions), LOT):
        lot = [question.case for question in questions[start : start + LOT]]
        outcomes += await judge_cases(examinee, lot, workers)
        if examinee.refusal is not None:
            raise examinee.refusal
        if failure := next((outcome.failure for outcome in outcomes if outcome.failure), None):
            raise JudgeTimedOut(failure) if examinee.is_too_slow else JudgeUnavailable(failure)
        logger.info("exam: %d of %d questions answered", len(outcomes), len(questions))
        if is_lost(questions, outcomes, examinee.invalid, votes):
            break
    pairs = list(zip(questions, outcomes, strict=False))
    groups = {name: grade_group(pair for pair in pairs if name in pair[0].groups) for name in GROUPS}
    wrong = count_wrong_signs(pairs).count
    return ExamResult(key, model, time.time(), len(pairs), wrong, examinee.votes, examinee.invalid, groups)


def is_lost(questions: Sequence[Question], outcomes: Sequence[CaseOutcome], invalid: int, votes: int) -> bool:
    """Return whether an exam is failed even if all further answers are right."""
    wrong = count_wrong_signs(zip(questions, outcomes, strict=False)).count
    return wrong > MOST_WRONG * len(questions) or invalid > MOST_INVALID * len(questions) * votes
