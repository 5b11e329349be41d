"""The first forward pass under FSDP2, made with the adapter on.

FSDP2 notes in its first pass which parameters are trained, and in which type their gradients come. A pass with the
adapter off, as a KL divergence to the base begins with, would show it a model in which nothing is.
"""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer


@torch.no_grad()
def make_first_pass(trainer: "AsyncGRPOTrainer") -> None:
    """Pass one row of padding through the trainer's model; called on every process."""
    trainer.logps(trainer.model, trainer.input_builder.collate([]))
