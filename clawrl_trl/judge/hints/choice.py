"""Which of several candidate hints a turn is taught with.

The one that moves the teacher most (`choose_hint`), or whose teacher shares most with the policy
(`choose_by_overlap`), from which the policy learns most easily.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

OVERLAP_FLOOR = 0.1
"""Least overlap of the teacher's and the response's distributions with which a hint may be used."""

OVERLAP_TOKENS = 4
"""Tokens of the policy at each position on which the overlap is measured."""


def estimate_overlap(teacher: NDArray[np.float32], plain: NDArray[np.float32]) -> float:
    """Estimated overlap of two distributions from tokens sampled of the second.

    The overlap of T and S at a position, sum over tokens of min(T, S), is the mean of min(1, T(a)/S(a)) over
    tokens a drawn from S; here it is averaged over the response's tokens. In (0, 1], 1 when they agree.
    """
    # Clipped before the exponential, which overflows where the teacher likes a token far better.
    return float(np.minimum(1.0, np.exp(np.clip(teacher - plain, -50.0, 0.0))).mean())


def measure_gain(teacher: NDArray[np.float32], plain: NDArray[np.float32], score: float | None = None) -> float:
    """Gain of a hint: mean absolute log-prob gap over the response's tokens.

    Of a response that was turned down it is how much less likely the teacher finds it, below 0 if it likes it better.
    """
    gap = teacher - plain
    return float((np.abs(gap) if score is None or score >= 0 else -gap).mean())


def choose_hint(
    teachers: Sequence[NDArray[np.float32]], plain: NDArray[np.float32], score: float | None = None
) -> int | None:
    """Choose the hint with the largest gain among those whose overlap is at least `OVERLAP_FLOOR`.

    A teacher that shares almost nothing with the response talks about something else: its gap is large on every
    token and says nothing about which of them to change. One that finds a response that was turned down no less likely
    would teach the opposite of the verdict.

    Args:
        teachers: `[T]` log-probs of the response's tokens under each hint.
        plain: `[T]` the same without a hint.
        score: The verdict on the response, if there is one.

    Returns:
        Position in `teachers`, or `None` when none qualifies. Ties go to the earlier one.
    """
    allowed = [
        index
        for index, teacher in enumerate(teachers)
        if estimate_overlap(teacher, plain) >= OVERLAP_FLOOR and measure_gain(teacher, plain, score) > 0
    ]
    return max(allowed, key=lambda index: measure_gain(teachers[index], plain, score), default=None)


def measure_overlap(
    policy: Sequence[Mapping[int, float]], teacher: Sequence[Mapping[int, float]], k: int = OVERLAP_TOKENS
) -> float:
    """Probability that two models share on the policy's `k` most likely tokens, averaged over the positions.

    At a position it is the sum of min(P, T) over these tokens as a share of their sum of P: 1 where the teacher finds
    each at least as likely, 0 where it names none of them.

    Args:
        policy: For each position, token id to log-prob under the policy, at least its `k` most likely.
        teacher: The same under the teacher; a token that it does not name counts as impossible.
        k: Tokens per position.
    """
    shares = []
    for student, hinted in zip(policy, teacher, strict=True):
        likely = sorted(student, key=lambda token: (-student[token], token))[:k]
        mass = sum(math.exp(student[token]) for token in likely)
        shared = sum(math.exp(min(student[token], hinted.get(token, -math.inf))) for token in likely)
        shares.append(shared / mass if mass else 0.0)
    return sum(shares) / len(shares) if shares else 0.0


def choose_by_overlap(overlaps: Sequence[float], gains: Sequence[float]) -> int | None:
    """Choose the hint with the largest overlap, at least `OVERLAP_FLOOR`, among those with a gain above 0.

    Returns:
        Position in `overlaps`, or `None` when none qualifies. Ties go to the earlier one.
    """
    allowed = [index for index, gain in enumerate(gains) if gain > 0 and overlaps[index] >= OVERLAP_FLOOR]
    return max(allowed, key=lambda index: overlaps[index], default=None)
