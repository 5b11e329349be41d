"""Choice of the hint that a turn is taught with, where several qualify: by the teacher's gap, or by its overlap.

By the gap it is the hint that moves the teacher most. By the overlap it is the one whose teacher shares most with the
policy on the policy's most likely tokens, from which the policy learns most easily. Both leave out a hint that teaches
the opposite of the verdict, or nothing.
"""

import math
from collections.abc import Mapping, Sequence

OVERLAP_TOKENS = 4
"""Tokens of the policy at each position on which the overlap is measured."""


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


def choose_by_overlap(overlaps: Sequence[float], gains: Sequence[float], floor: float) -> int | None:
    """Choose the hint with the largest overlap among those with a gain above 0 and an overlap of at least `floor`.

    Returns:
        Position in `overlaps`, or `None` when none qualifies. Ties go to the earlier one.
    """
    allowed = [index for index, gain in enumerate(gains) if gain > 0 and overlaps[index] >= floor]
    return max(allowed, key=lambda index: overlaps[index], default=None)
