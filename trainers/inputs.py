"""Tensors of a micro-batch, as TRL's GRPO loss and our own terms read them.

B rows of P prompt and T reply tokens; rows are padded, prompts on the left and replies on the right.
"""

from typing import TypedDict

import torch


class PictureInputs(TypedDict, total=False):
    """Pictures of a micro-batch's prompts; empty if there are none."""

    pixel_values: torch.Tensor
    """Patches of all pictures of all rows, one after the other; floats."""

    image_grid_thw: torch.Tensor
    """int64 [pictures, 3]: patches of each picture in time, height and width."""

    num_images: list[int]
    """[B] pictures of each row."""

    mm_token_type_ids: torch.Tensor
    """int [B, P + T]: 1 on the tokens that stand for patches."""


class CandidateInputs(TypedDict, total=False):
    """A teacher's candidates; absent where no row trains a term over them."""

    topk_ids: torch.Tensor
    """int64 [B, T, K]: token ids, -1 in an empty slot."""

    topk_logps: torch.Tensor
    """Floats [B, T, K]: the teacher's log-probabilities at temperature 1, 0 in an empty slot."""

    topk_weight: torch.Tensor
    """Floats [B, T]: weight of the term, 0 where there is none."""


class StepInputs(TypedDict, total=False):
    """Inputs that depend on the step and on the policy as it was before the step."""

    num_items_in_batch: torch.Tensor
    """[]: trained tokens of the whole step, over all processes."""

    row_share: float
    """Rows here, over the mean number of rows per process and accumulation step."""

    token_share: float
    """Trained tokens here, over their mean number per process and accumulation step."""

    sampling_per_token_logps: torch.Tensor
    """Floats [B, T]: `behaviour_logps` under TRL's name."""

    old_per_token_logps: torch.Tensor
    """Floats [B, T]: denominator of PPO's ratio; absent where that is the current policy."""

    ref_per_token_logps: torch.Tensor
    """Floats [B, T]: log-probabilities under the base model; with `kl_estimator="sampled"` and `beta` above 0."""

    base_hidden_states: torch.Tensor
    """Floats [N, H]: the base model's hidden states before each of the N trained tokens; with an exact pull."""

    gate_hidden_states: torch.Tensor
    """Floats [M, H]: the same before the M tokens that the gate looks at; absent where it asks the base itself."""


class Inputs(CandidateInputs, PictureInputs, StepInputs):
    """All inputs of a micro-batch's loss; those that are always there follow from the rows alone."""

    prompt_ids: torch.Tensor
    """int64 [B, P]."""

    prompt_mask: torch.Tensor
    """int64 [B, P]: 1 on tokens, 0 on padding."""

    completion_ids: torch.Tensor
    """int64 [B, T]."""

    completion_mask: torch.Tensor
    """int64 [B, T]: 1 on tokens, 0 on padding."""

    tool_mask: torch.Tensor
    """int64 [B, T]: 1 on the tokens to train; 0 everywhere in a micro-batch without rows."""

    advantages: torch.Tensor
    """Floats [B, T], 0 where nothing is trained; importance weights are multiplied in before the loss."""

    behaviour_logps: torch.Tensor
    """Floats [B, T]: log-probabilities under the policy that sampled, at `temperature`; 0 where nothing is trained."""

    temperature: torch.Tensor
    """Floats [B]: the temperature at which each row was sampled."""


def make_trained_mask(inputs: Inputs) -> torch.Tensor:
    """[B, T] bools: the tokens of a micro-batch that are trained."""
    mask: torch.Tensor = inputs["completion_mask"] * inputs["tool_mask"]
    return mask.bool()
