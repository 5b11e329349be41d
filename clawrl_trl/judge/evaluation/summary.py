"""Summaries of outcomes: shares with confidence intervals, calibration, hints' precision and recall.

A case is *decided* when the judge gave a score, 0 included. *Right* are the scores that the case accepts, as a share
of the decided; *wrong sign* are -1 and +1 where the case accepts no such score, as a share of all cases, as are the
*abstained*. Cases that could not be judged count nowhere but in `failed`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from clawrl_trl.judge.evaluation.cases import JudgeCase
from clawrl_trl.judge.evaluation.outcomes import CaseOutcome
from clawrl_trl.messages import Json

CONFIDENCE_LEVEL = 0.95
BINS = 10
"""Bins of equal width over which the calibration error is taken."""

Pair = tuple[JudgeCase, CaseOutcome]


@dataclass(frozen=True)
class Share:
    """A share of cases: `count` of `total`."""

    count: int
    total: int

    @property
    def value(self) -> float | None:
        """The share in [0, 1]; `None` of no cases."""
        return self.count / self.total if self.total else None

    def find_interval(self, level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Find Wilson's score interval (https://doi.org/10.1080/01621459.1927.10502953); (0, 1) of no cases."""
        if not self.total:
            return 0.0, 1.0
        z = NormalDist().inv_cdf((1 + level) / 2)
        p, n = self.count / self.total, self.total
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)

    def describe(self) -> Json:
        """The share for programs."""
        low, high = self.find_interval()
        return {"count": self.count, "of": self.total, "share": self.value, "low": low, "high": high}


@dataclass(frozen=True)
class Summary:
    """Summary of a judge's outcomes on some cases.

    Attributes:
        cases: Number of cases that were judged.
        failed: Number of cases that could not be.
        right: Of the decided.
        wrong_sign: Of all.
        abstained: Of all.
        hint_precision: Right hints, of those written.
        hint_recall: Right hints, of the cases whose words hold one.
        calibration_error: Expected calibration error over 10 bins of the decided cases with a confidence
            (https://huggingface.co/papers/1706.04599); `None` without any.
    """

    cases: int
    failed: int
    right: Share
    wrong_sign: Share
    abstained: Share
    hint_precision: Share
    hint_recall: Share
    calibration_error: float | None

    def describe(self) -> Json:
        """The summary for programs."""
        shares = ("right", "wrong_sign", "abstained", "hint_precision", "hint_recall")
        return {
            "cases": self.cases,
            "failed": self.failed,
            **{name: getattr(self, name).describe() for name in shares},
            "calibration_error": self.calibration_error,
        }


def summarise(pairs: Iterable[Pair]) -> Summary:
    """Summarise the outcomes of some cases."""
    every = list(pairs)
    judged = [(case, outcome) for case, outcome in every if not outcome.failure]
    decided = [(case, outcome.score) for case, outcome in judged if outcome.score is not None]
    hints = sum(outcome.has_hint for _, outcome in judged)
    right_hints = sum(outcome.is_right_hint for _, outcome in judged)
    return Summary(
        cases=len(judged),
        failed=len(every) - len(judged),
        right=Share(sum(case.is_right(score) for case, score in decided), len(decided)),
        wrong_sign=Share(sum(case.is_wrong_sign(score) for case, score in decided), len(judged)),
        abstained=Share(len(judged) - len(decided), len(judged)),
        hint_precision=Share(right_hints, hints),
        hint_recall=Share(right_hints, sum(case.has_hint for case, _ in judged)),
        calibration_error=measure_calibration_error(judged),
    )


def group(pairs: Iterable[Pair], key: Callable[[JudgeCase], str]) -> dict[str, list[Pair]]:
    """Group pairs by a property of their case, in alphabetical order."""
    groups: dict[str, list[Pair]] = {}
    for case, outcome in pairs:
        groups.setdefault(key(case), []).append((case, outcome))
    return dict(sorted(groups.items()))


def measure_calibration_error(pairs: Sequence[Pair]) -> float | None:
    """Measure the mean gap between confidence and accuracy over bins, each weighted by its number of cases."""
    sure = [
        (outcome.confidence, case.is_right(outcome.score))
        for case, outcome in pairs
        if outcome.score is not None and outcome.confidence is not None
    ]
    if not sure:
        return None
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for confidence, is_right in sure:
        bins[min(int(confidence * BINS), BINS - 1)].append((confidence, is_right))
    gaps = [abs(sum(confidence - is_right for confidence, is_right in members)) for members in bins]
    return sum(gaps) / len(sure)
