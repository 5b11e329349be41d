"""From credited samples to the tensors TRL's GRPO loss reads.

Two masks keep two meanings apart: `completion_mask` says which positions hold tokens (attention), `tool_mask` which
of them are trained (loss). A token without an advantage is attended to and not trained. An empty list becomes one
row that trains nothing, so that a process without samples takes part in every collective operation.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from clawrl_trl.credit import CreditedSample, TrainingSample
from clawrl_trl.trainers.compat import pad
from clawrl_trl.trainers.inputs import Inputs


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
        The inputs that follow from the samples, pictures apart; candidates only when a term over them is trained.
    """
    if not rows:
        return _empty_inputs(pad_token_id, dtype)

    def pad_integers(arrays: Sequence[NDArray[np.generic]], side: str, value: int) -> torch.Tensor:
        tensors = [torch.as_tensor(array, dtype=torch.long) for array in arrays]
        return pad(tensors, value, side, pad_to_multiple_of)  # type: ignore[no-any-return]

    def pad_floats(arrays: Sequence[NDArray[np.float64]]) -> torch.Tensor:
        tensors = [torch.as_tensor(np.nan_to_num(array, nan=0.0), dtype=dtype) for array in arrays]
        return pad(tensors, 0.0, "right", pad_to_multiple_of)  # type: ignore[no-any-return]

    samples = [row.sample for row in rows]
    advantages = [row.effective_advantages for row in rows]
    trained = [np.isfinite(values) for values in advantages]
    # An untrained token may have a log-probability of minus infinity, and 0 times that would be NaN in the loss.
    behaviour = [np.where(mask, sample.logprobs, 0.0) for mask, sample in zip(trained, samples, strict=True)]
    inputs: Inputs = {
        "prompt_ids": pad_integers([sample.prompt_ids for sample in samples], "left", pad_token_id),
        "prompt_mask": pad_integers([np.ones_like(sample.prompt_ids) for sample in samples], "left", 0),
        "completion_ids": pad_integers([sample.completion_ids for sample in samples], "right", pad_token_id),
        "completion_mask": pad_integers([np.ones_like(sample.completion_ids) for sample in samples], "right", 0),
        "tool_mask": pad_integers(trained, "right", 0),
        "advantages": pad_floats(advantages),
        "behaviour_logps": pad_floats(behaviour),
        "temperature": torch.tensor([sample.temperature for sample in samples], dtype=dtype),
    }
    weights = pad_floats([row.effective_distilled for row in rows])
    if weights.any():
        _add_candidates(inputs, samples, weights)
    return inputs


def _add_candidates(inputs: Inputs, samples: Sequence[TrainingSample], weights: torch.Tensor) -> None:
    candidates = [(sample.topk_ids, sample.topk_logprobs) for sample in samples]
    width = max(ids.shape[1] for ids, _ in candidates if ids is not None)
    all_ids = torch.full((*weights.shape, width), -1, dtype=torch.long)
    all_logps = torch.zeros((*weights.shape, width), dtype=weights.dtype)
    for row, (ids, logps) in enumerate(candidates):
        if ids is not None and logps is not None:
            all_ids[row, : len(ids), : ids.shape[1]] = torch.from_numpy(ids)
            all_logps[row, : len(ids), : ids.shape[1]] = torch.from_numpy(np.nan_to_num(logps, nan=0.0))
    inputs["topk_ids"], inputs["topk_logps"], inputs["topk_weight"] = all_ids, all_logps, weights


def _empty_inputs(pad_token_id: int, dtype: torch.dtype) -> Inputs:
    """One row of one padding token, attended to and not trained."""
    token = torch.full((1, 1), pad_token_id, dtype=torch.long)
    # Attended to, for a row without any attention would make the softmax NaN, and its gradient with it.
    attended, zero = torch.ones((1, 1), dtype=torch.long), torch.zeros((1, 1), dtype=dtype)
    return {
        "prompt_ids": token,
        "prompt_mask": attended,
        "completion_ids": token.clone(),
        "completion_mask": attended.clone(),
        "tool_mask": torch.zeros((1, 1), dtype=torch.long),
        "advantages": zero,
        "behaviour_logps": zero.clone(),
        "temperature": torch.ones(1, dtype=dtype),
    }
