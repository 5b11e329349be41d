"""Advantages as pure functions of scores and log-probabilities.

One convention holds throughout: NaN means "no term here", never zero. A trainer turns NaN into a masked token, so
an absent term can't pull on the weights, can't count in a mean, and can't be mistaken for a neutral verdict.
Formulas: OpenClaw-RL (arXiv 2603.10165), with the group normalisation of GRPO (arXiv 2402.03300).
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from clawrl_trl.credit.sample import BoolArray, FloatArray

EPSILON = 1e-6


def binary(
    scores: Sequence[float | None],
    groups: Sequence[Hashable | None] | None = None,
    measures: Sequence[tuple[float, float] | None] | None = None,
) -> tuple[FloatArray, BoolArray]:
    """Scalar advantages of one batch from its scores.

    A group of one, and a sample without a group, keeps its raw score: `A = r`. In a group of n scored samples
    `A = (r - mean) / (std + 1e-6)` with the sample standard deviation (n - 1 in the denominator, as TRL does).

    Args:
        scores: One score per sample; `None` or NaN where there is none.
        groups: One key per sample, `None` for a group of its own. Default: all groups of one.
        measures: One `(mean, std)` per sample where its whole group has been measured already, `None` where the
            batch itself is measured. Default: the batch is.

    Returns:
        `([N] advantages, [N] flags)`: NaN where there is no score; the flag is true in a group of two or more whose
        scores are all equal, which teaches nothing (advantage 0).
    """
    values = np.array([np.nan if score is None else score for score in scores], dtype=np.float64)
    keys = [None] * len(values) if groups is None else list(groups)
    if len(keys) != len(values):
        raise ValueError(f"{len(values)} scores but {len(keys)} groups")
    advantages = values.copy()
    constant = np.zeros(len(values), dtype=np.bool_)
    members: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        if measures is not None and (measured := measures[index]) is not None:
            mean, std = measured
            advantages[index] = (values[index] - mean) / (std + EPSILON)
        # An abstention is no member: counted as one it would shift the mean of those with a score.
        elif key is not None and np.isfinite(values[index]):
            members.setdefault(key, []).append(index)
    for indices in members.values():
        if len(indices) < 2:
            continue
        group = values[indices]
        if np.all(group == group[0]):
            advantages[indices], constant[indices] = 0.0, True
        else:
            advantages[indices] = (group - group.mean()) / (group.std(ddof=1) + EPSILON)
    return advantages, constant


def opd(teacher: ArrayLike | None, student: ArrayLike | None, clip: float) -> FloatArray | None:
    """Per-token advantages of on-policy distillation: `A_t = clip(T_t - S_t, -clip, clip)`.

    Args:
        teacher: `[T]` log-probabilities under the teacher, in nats at temperature 1; NaN where unknown.
        student: `[T]` log-probabilities of the same tokens under the sampling policy, at temperature 1.
        clip: Bound c on the gap, in nats, above 0.

    Returns:
        `[T]` advantages, NaN where either side is not finite; `None` when either side is absent as a whole.
    """
    if not clip > 0:
        raise ValueError(f"the bound on the teacher's gap must be above 0, got {clip}")
    if teacher is None or student is None:
        return None
    t, s = np.asarray(teacher, dtype=np.float64), np.asarray(student, dtype=np.float64)
    if t.shape != s.shape:
        raise ValueError(f"teacher has shape {t.shape}, student {s.shape}")
    finite = np.isfinite(t) & np.isfinite(s)
    gap = np.full(t.shape, np.nan)
    gap[finite] = np.clip(t[finite] - s[finite], -clip, clip)
    return gap


def accepted_prefix(teacher: ArrayLike | None, student: ArrayLike | None, length: int) -> FloatArray:
    """Probability that the teacher accepts all tokens before each: `prod_{i<t} min(1, exp(T_i - S_i))`.

    It is the rule by which speculative sampling ([Leviathan et al., 2023](https://huggingface.co/papers/2211.17192))
    accepts what a draft model, here the policy, proposes. Behind a token that the teacher would not have written it is
    asked about a text of another's, and knows little.

    Args:
        teacher: `[T]` log-probabilities under the teacher, in nats at temperature 1; NaN where unknown.
        student: `[T]` log-probabilities of the same tokens under the sampling policy, at temperature 1.
        length: T, in tokens.

    Returns:
        `[T]` weights in [0, 1], the first one 1; tokens of which either side is unknown count as accepted.
    """
    if teacher is None or student is None:
        return np.ones(length)
    gap = np.nan_to_num(np.asarray(teacher, dtype=np.float64) - np.asarray(student, dtype=np.float64), nan=0.0)
    before: FloatArray = np.concatenate([[0.0], np.cumsum(np.minimum(gap, 0.0))[:-1]])
    return np.exp(before)


def combine(
    rl: ArrayLike | None, distilled: ArrayLike | None, *, w_rl: float, w_opd: float, length: int
) -> FloatArray:
    """Weighted sum `A_t = w_rl A^rl_t + w_opd A^opd_t` in which either term may be absent, also token by token.

    Args:
        rl: Scalar or `[T]` advantages from scores; `None` or NaN where absent.
        distilled: `[T]` advantages from the teacher; `None` or NaN where absent.
        w_rl: Weight of the score term. A term of weight 0 counts as absent.
        w_opd: Weight of the teacher term.
        length: T, in tokens.

    Returns:
        `[T]` advantages, NaN where both terms are absent.
    """
    total = np.zeros(length)
    present = np.zeros(length, dtype=np.bool_)
    for weight, term in ((w_rl, rl), (w_opd, distilled)):
        if term is None or weight == 0:
            continue
        values = np.broadcast_to(np.asarray(term, dtype=np.float64), (length,))
        finite = np.isfinite(values)
        total[finite] += weight * values[finite]
        present |= finite
    return np.where(present, total, np.nan)
