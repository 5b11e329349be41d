"""Merging turns of one conversation into one training sequence.

When a turn's prompt begins with the whole of an earlier turn, its prompt and its reply token by token, both can be
trained in one forward pass: attention is causal, so each reply token sees exactly what it saw when it was sampled.
The tokens in between belong to nobody: they are attended to, never trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from clawrl_trl.credit.sample import BoolArray, FloatArray, TrainingSample

Number = TypeVar("Number", np.float64, np.int64)


@dataclass(frozen=True, eq=False)
class CreditedSample:
    """A sample with its advantages.

    Args:
        sample: The reply or, after a merge, the sequence of replies.
        advantages: `[T]`, NaN on tokens that get no credit and are left out of the loss.
        distilled: `[T]` weight of the teacher's term over the sample's candidates, 0 where there is none. Default:
            none anywhere.
    """

    sample: TrainingSample
    advantages: FloatArray
    distilled: FloatArray | None = None

    @property
    def trained_tokens(self) -> int:
        """Number of tokens the loss counts."""
        return int(np.isfinite(self.effective_advantages).sum())

    @property
    def effective_advantages(self) -> FloatArray:
        """`[T]` advantages with NaN on tokens that the completion mask excludes."""
        mask = self.sample.completion_mask
        return self.advantages if mask is None else np.where(mask, self.advantages, np.nan)

    @property
    def effective_distilled(self) -> FloatArray:
        """`[T]` weights of the teacher's term, 0 on tokens that are not trained."""
        if self.distilled is None:
            return np.zeros(len(self.advantages))
        return np.where(np.isfinite(self.effective_advantages), self.distilled, 0.0)


def merge(samples: Sequence[CreditedSample]) -> list[CreditedSample]:
    """Join samples whose prompt extends another sample of the batch, repeatedly.

    Every token keeps its advantage, its behaviour log-probability and so its importance ratio, and the teacher's
    candidates, which depend on nothing but the token's own context; only samples of the
    same temperature are joined, since the loss divides a sequence's logits by one temperature, and only those that
    show the same pictures as far as they go. The joined sequence carries the first sample's prompt and the last one's
    pictures, id and policy version.

    Args:
        samples: Credited samples in any order.

    Returns:
        The joined and the remaining samples, ordered by prompt length.
    """
    merged: list[CreditedSample] = []
    # Shortest prompts first: what extends another has the longer prompt, and meets it here already joined.
    for item in sorted(samples, key=lambda row: len(row.sample.prompt_ids)):
        for index, earlier in enumerate(merged):
            if _extends(item.sample, earlier.sample):
                merged[index] = _join(earlier, item)
                break
        else:
            merged.append(item)
    return merged


def _extends(later: TrainingSample, earlier: TrainingSample) -> bool:
    sequence = np.concatenate([earlier.prompt_ids, earlier.completion_ids])
    return (
        later.temperature == earlier.temperature
        and len(later.prompt_ids) >= len(sequence)
        and np.array_equal(later.prompt_ids[: len(sequence)], sequence)
        and later.images[: len(earlier.images)] == earlier.images
    )


def _join(earlier: CreditedSample, later: CreditedSample) -> CreditedSample:
    first, last = earlier.sample, later.sample
    between = last.prompt_ids[len(first.prompt_ids) + len(first.completion_ids) :]
    gap = len(between)
    lengths = (len(first.completion_ids), gap, len(last.completion_ids))

    def mask(sample: TrainingSample) -> BoolArray:
        if sample.completion_mask is None:
            return np.ones(len(sample.completion_ids), dtype=np.bool_)
        return sample.completion_mask

    joined = replace(
        last,
        prompt_ids=first.prompt_ids,
        completion_ids=np.concatenate([first.completion_ids, between, last.completion_ids]),
        completion_mask=np.concatenate([mask(first), np.zeros(gap, dtype=np.bool_), mask(last)]),
        # Zeros are never read: the mask excludes the tokens in between.
        logprobs=np.concatenate([first.logprobs, np.zeros(gap), last.logprobs]),
        teacher_logprobs=None,  # in the advantages already, which is all that is read from here on
        plain_logprobs=None,
        topk_ids=_stack(first.topk_ids, last.topk_ids, lengths, -1),
        topk_logprobs=_stack(first.topk_logprobs, last.topk_logprobs, lengths, np.nan),
    )
    return CreditedSample(
        joined,
        np.concatenate([earlier.advantages, np.full(gap, np.nan), later.advantages]),
        np.concatenate([earlier.effective_distilled, np.zeros(gap), later.effective_distilled]),
    )


def _stack(
    first: NDArray[Number] | None, last: NDArray[Number] | None, lengths: tuple[int, int, int], empty: float
) -> NDArray[Number] | None:
    """`[T, K]` of three stretches of tokens, the middle one and missing ones without candidates."""
    present = [rows for rows in (first, last) if rows is not None]
    if not present:
        return None
    width = max(rows.shape[1] for rows in present)
    stretches = []
    for rows, length in zip((first, None, last), lengths, strict=True):
        stretch = np.full((length, width), empty, dtype=present[0].dtype)
        if rows is not None:
            stretch[:, : rows.shape[1]] = rows
        stretches.append(stretch)
    return np.concatenate(stretches)
