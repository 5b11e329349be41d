"""The result of an exam: which groups of turns the examined judge may judge, and why not the others.

A group is passed by a judge that decides it with hardly a wrong sign: in four to six questions not one is allowed. A
judge with many wrong signs overall, or whose votes are often none, fails whatever its groups say.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from clawrl_trl.judge.evaluation.outcomes import CaseOutcome
from clawrl_trl.judge.evaluation.summary import Share, summarise
from clawrl_trl.judge.exam.groups import GROUPS
from clawrl_trl.judge.exam.questions import Question

MOST_WRONG = 0.15
"""Largest share of wrong signs in a group that is passed, and of all questions in an exam that is."""
LEAST_RIGHT = 0.6
"""Least share of a group's questions with a right score: a judge that always says 0 is never wrong, and of no use."""
MOST_INVALID = 0.2
"""Largest share of votes that are none, of all votes."""


@dataclass(frozen=True)
class GroupResult:
    """Result in one group: how many questions it has, and the right, wrong and undecided among them.

    The rest were given a 0 that is not right, which is no wrong sign.
    """

    questions: int
    right: int
    wrong_sign: int
    abstained: int

    @property
    def is_passed(self) -> bool:
        """Return whether turns of this group may be judged."""
        return (
            self.questions > 0
            and self.wrong_sign <= MOST_WRONG * self.questions
            and self.right >= LEAST_RIGHT * self.questions
        )


@dataclass(frozen=True)
class ExamResult:
    """Result of an exam.

    Attributes:
        key: What identifies the exam (`questions.find_key`).
        model: The examined model's name, for people.
        sat_at: When it ended, seconds since 1970.
        asked: Questions that were asked: fewer than there are where it could not be passed any more.
        wrong_sign: Wrong signs among them.
        votes: Votes that were cast.
        invalid: Votes among them that were none.
        groups: Result by group.
        no_exam: Why the model sat none; empty if it did.
    """

    key: str
    model: str
    sat_at: float
    asked: int
    wrong_sign: int
    votes: int
    invalid: int
    groups: Mapping[str, GroupResult]
    no_exam: str = ""

    @classmethod
    def without_exam(cls, key: str, model: str, reason: str) -> "ExamResult":
        """The result of a model that is left out without an exam, for a reason that follows its name."""
        return cls(key, model, time.time(), asked=0, wrong_sign=0, votes=0, invalid=0, groups={}, no_exam=reason)

    @property
    def failure(self) -> str:
        """Why the judge is not used at all; empty if it is."""
        if self.no_exam:
            return self.no_exam
        if self.invalid > MOST_INVALID * self.votes:
            return f"failed its exam ({self.invalid / self.votes:.0%} of its votes are none)"
        if self.wrong_sign > MOST_WRONG * self.asked:
            return f"failed its exam ({self.wrong_sign / self.asked:.0%} wrong signs)"
        if not any(group.is_passed for group in self.groups.values()):
            return f"passed none of {len(self.groups)} groups"
        return ""

    @property
    def passed(self) -> tuple[str, ...]:
        """The groups that the judge may judge, in the order of `GROUPS`; none if it failed."""
        return () if self.failure else tuple(name for name in self._in_order() if self.groups[name].is_passed)

    @property
    def refused(self) -> tuple[str, ...]:
        """The groups that it may not judge."""
        return tuple(name for name in self._in_order() if name not in self.passed)

    def admits(self, groups: Iterable[str]) -> bool:
        """Return whether a turn of these groups may be judged: all of them must be passed."""
        required = set(groups)
        return bool(required) and required <= set(self.passed)

    def explain(self, groups: Iterable[str]) -> str:
        """Explain in a few words who judges a turn of these groups, for its verdict."""
        if self.failure:
            return f"{self.model} {self.failure}"
        failed = sorted(set(groups) - set(self.passed))
        return f"{self.model} {'did not pass' if failed else 'passed'}: {', '.join(failed or sorted(groups))}"

    def describe(self) -> str:
        """Describe the result in one line."""
        if self.failure:
            return f"{self.model} {self.failure}: not used, the embedded judge alone decides"
        line = f"{self.model} passed {len(self.passed)} of {len(self.groups)} groups"
        return f"{line}; the embedded judge takes {_join(self.refused)}" if self.refused else line

    def describe_dated(self) -> str:
        """Describe the result in one line, with the day of the exam in UTC."""
        if self.no_exam:
            return self.describe()
        return f"{self.describe()} (exam of {datetime.fromtimestamp(self.sat_at, UTC).date().isoformat()})"

    def _in_order(self) -> list[str]:
        return sorted(self.groups, key=lambda name: (GROUPS.index(name) if name in GROUPS else len(GROUPS), name))


def grade_group(pairs: Iterable[tuple[Question, CaseOutcome]]) -> GroupResult:
    """Grade the outcomes of one group's questions."""
    summary = summarise((question.case, outcome) for question, outcome in pairs)
    return GroupResult(summary.cases, summary.right.count, summary.wrong_sign.count, summary.abstained.count)


def count_wrong_signs(pairs: Iterable[tuple[Question, CaseOutcome]]) -> Share:
    """Count the wrong signs among outcomes."""
    return summarise((question.case, outcome) for question, outcome in pairs).wrong_sign


def _join(names: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
