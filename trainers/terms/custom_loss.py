"""A user's loss in place of the trainer's, as a mean over the rows of a step however they are divided."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from clawrl_trl.trainers.inputs import Inputs

if TYPE_CHECKING:
    from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer

ROW_MEAN_LOSSES = ("grpo", "sapo", "luspo", "dr_grpo")
"""Types of TRL's loss that average over a micro-batch's rows; the others count tokens over the whole step."""

Loss = Callable[[torch.nn.Module, Inputs], torch.Tensor]
CustomLoss = Callable[["AsyncGRPOTrainer", torch.nn.Module, Inputs, Loss], torch.Tensor]


def apply_custom_loss(
    function: CustomLoss, trainer: "AsyncGRPOTrainer", model: torch.nn.Module, inputs: Inputs
) -> torch.Tensor:
    """Return a micro-batch's share of the step's loss by a user's function.

    A process without rows calls it all the same, for other processes may wait for its forward passes.

    Args:
        function: Called as `function(trainer, model, inputs, default_loss)`; returns a mean over the rows.
        trainer: The trainer.
        model: The policy, wrapped as the trainer trains it.
        inputs: The micro-batch.
    """
    share: float = inputs["row_share"]
    steps: int = trainer.current_gradient_accumulation_steps
    # TRL's own loss is a share of the step's already, which is undone before the function sees it; bnpo's is none yet.
    counted = share if share and trainer.loss_type not in ROW_MEAN_LOSSES else 1.0
    if trainer.loss_type == "bnpo" and inputs["token_share"]:
        counted /= inputs["token_share"]

    def default_loss(model: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        return trainer.default_loss(model, inputs) * (steps / counted)

    return function(trainer, model, inputs, default_loss) * (share / steps)
