"""From credited samples to the tensors TRL's GRPO loss reads.

Two masks keep two meanings apart: `completion_mask` says which positions hold tokens (attention), `tool_mask` which
of them are trained (loss). A token without an advantage is attended to and not trained. An empty list becomes one
row that trains nothing, so that a process without samples takes part in every collective operation.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from trl.trainer.utils import pad

from clawrl_trl.credit import CreditedSample, TrainingSample

Inputs = dict[str, Any]


def trained(inputs: Inputs) -> torch.Tensor:
    """[B, T] bools: the tokens of a micro-batch that are trained."""
    mask: torch.Tensor = inputs["completion_mask"] * inputs["tool_mask"]
    return mask.bool()


def collate(
    rows: Sequence[CreditedSample],
    *,
    pad_token_id: int,
    dtype: torch.dtype = torch.float32,
    pad_to_multiple_of: int | None = None,
) -> Inputs:
    """Pad samples into one micro-batch.

    Args:
        rows: B credited samples; may be empty.
        pad_token_id: Token on padded positions.
        dtype: Type of the floating-point tensors.
        pad_to_multiple_of: Widths become multiples of it.

    Returns:
        `prompt_ids`, `prompt_mask` (int64 [B, P], padded left), `completion_ids`, `completion_mask`, `tool_mask`
        (int64 [B, T], padded right), `advantages`, `behaviour_logps` (floats [B, T], 0 where not trained) and
        `temperature` (floats [B]). When a teacher's term is to be trained, also `topk_ids` (int64 [B, T, K], -1 in an
        empty slot), `topk_logps` (floats [B, T, K]) and `topk_weight` (floats [B, T], 0 where there is no term).
    """
    if not rows:
        return _nothing(pad_token_id, dtype)

    def integers(arrays: Sequence[Any], side: str, value: int) -> torch.Tensor:
        tensors = [torch.as_tensor(np.asarray(array), dtype=torch.long) for array in arrays]
        return pad(tensors, value, side, pad_to_multiple_of)  # type: ignore[no-any-return]

    def floats(arrays: Sequence[Any]) -> torch.Tensor:
        tensors = [torch.as_tensor(np.nan_to_num(array, nan=0.0), dtype=dtype) for array in arrays]
        return pad(tensors, 0.0, "right", pad_to_multiple_of)  # type: ignore[no-any-return]

    samples = [row.sample for row in rows]
    advantages = [row.effective_advantages for row in rows]
    finite = [np.isfinite(one) for one in advantages]
    inputs = {
        "prompt_ids": integers([one.prompt_ids for one in samples], "left", pad_token_id),
        "prompt_mask": integers([np.ones_like(one.prompt_ids) for one in samples], "left", 0),
        "completion_ids": integers([one.completion_ids for one in samples], "right", pad_token_id),
        "completion_mask": integers([np.ones_like(one.completion_ids) for one in samples], "right", 0),
        "tool_mask": integers(finite, "right", 0),
        "advantages": floats(advantages),
        "behaviour_logps": floats([np.where(m, one.logprobs, 0.0) for m, one in zip(finite, samples, strict=True)]),
        "temperature": torch.tensor([one.temperature for one in samples], dtype=dtype),
    }
    weights = floats([row.effective_distilled for row in rows])
    return inputs | _candidates(samples, weights) if weights.any() else inputs


def _candidates(samples: Sequence[TrainingSample], weights: torch.Tensor) -> Inputs:
    given = [(one.topk_ids, one.topk_logprobs) for one in samples]
    width = max(ids.shape[1] for ids, _ in given if ids is not None)
    all_ids = torch.full((*weights.shape, width), -1, dtype=torch.long)
    all_logps = torch.zeros((*weights.shape, width), dtype=weights.dtype)
    for row, (ids, logps) in enumerate(given):
        if ids is not None and logps is not None:
            all_ids[row, : len(ids), : ids.shape[1]] = torch.from_numpy(ids)
            all_logps[row, : len(ids), : ids.shape[1]] = torch.from_numpy(np.nan_to_num(logps, nan=0.0))
    return {"topk_ids": all_ids, "topk_logps": all_logps, "topk_weight": weights}


def _nothing(pad_token_id: int, dtype: torch.dtype) -> Inputs:
    token = torch.full((1, 1), pad_token_id, dtype=torch.long)
    seen, zero = torch.ones((1, 1), dtype=torch.long), torch.zeros((1, 1), dtype=dtype)
    return {
        "prompt_ids": token,
        "prompt_mask": seen,
        "completion_ids": token.clone(),
        "completion_mask": seen.clone(),
        "tool_mask": torch.zeros((1, 1), dtype=torch.long),
        "advantages": zero,
        "behaviour_logps": zero.clone(),
        "temperature": torch.ones(1, dtype=dtype),
    }
