"""Averaging of per-token terms into one loss, as TRL's loss types do it."""

from typing import TYPE_CHECKING

import torch

from clawrl_trl.trainers.inputs import Inputs, make_trained_mask

if TYPE_CHECKING:
    from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer


def average(trainer: "AsyncGRPOTrainer", per_token: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """A scalar out of [B, T] terms, as TRL's loss of the trainer's type averages its own."""
    mask = make_trained_mask(inputs)
    training = trainer.model.training
    steps: int = trainer.current_gradient_accumulation_steps if training else 1
    totals, tokens = (per_token * mask).sum(-1), mask.sum(-1)
    # A micro-batch without rows trains no token: its term must be 0 and not NaN, hence the bounds on the counts below.
    if trainer.loss_type in ("grpo", "sapo"):
        return (totals / tokens.clamp(min=1)).mean() / steps
    if trainer.loss_type == "luspo":
        return totals.mean() / steps
    if trainer.loss_type == "bnpo":
        return totals.sum() / tokens.sum().clamp(min=1) / steps
    if trainer.loss_type == "dr_grpo":
        longest: int = trainer.max_completion_length
        return totals.sum() / (mask.size(0) * longest) / steps
    share: torch.Tensor = inputs["num_items_in_batch"].clamp(min=1) / trainer.accelerator.num_processes
    return totals.sum() / (share * steps / trainer.args.steps_per_generation if training else share)
