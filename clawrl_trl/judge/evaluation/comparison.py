"""Comparison of two judges on the same cases."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clawrl_trl.judge.evaluation.cases import JudgeCase
from clawrl_trl.judge.evaluation.outcomes import CaseOutcome
from clawrl_trl.messages import Json


@dataclass(frozen=True)
class PairedCount:
    """Cases on which two judges differ in a property.

    Attributes:
        first: Cases that have it with the first judge alone.
        second: Cases that have it with the second alone.
    """

    first: int
    second: int

    @property
    def p_value(self) -> float:
        """Exact McNemar test (https://doi.org/10.1007/BF02295996): how likely so uneven a split is by chance."""
        total = self.first + self.second
        tail = sum(math.comb(total, count) for count in range(min(self.first, self.second) + 1))
        return min(1.0, 2 * float(tail / 2**total))

    def describe(self) -> Json:
        """The counts for programs."""
        return {"first": self.first, "second": self.second, "p": self.p_value}


@dataclass(frozen=True)
class JudgeComparison:
    """Comparison of two judges, over the cases that both have judged."""

    cases: int
    right: PairedCount
    wrong_sign: PairedCount

    def describe(self) -> Json:
        """The comparison for programs."""
        return {"cases": self.cases, "right": self.right.describe(), "wrong_sign": self.wrong_sign.describe()}


def compare(
    cases: Sequence[JudgeCase], first: Sequence[CaseOutcome], second: Sequence[CaseOutcome]
) -> JudgeComparison:
    """Compare the outcomes of two judges, which are in the order of the cases."""
    triples = [
        (case, one, other)
        for case, one, other in zip(cases, first, second, strict=True)
        if not one.failure and not other.failure
    ]

    def count(holds: Callable[[JudgeCase, int], bool]) -> PairedCount:
        pairs = [
            (one.score is not None and holds(case, one.score), other.score is not None and holds(case, other.score))
            for case, one, other in triples
        ]
        return PairedCount(pairs.count((True, False)), pairs.count((False, True)))

    return JudgeComparison(len(triples), count(JudgeCase.is_right), count(JudgeCase.is_wrong_sign))
