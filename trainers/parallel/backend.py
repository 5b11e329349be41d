"""Backends that divide a training among processes: their names, those that are refused, and what FSDP2 is told."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from clawrl_trl.errors import UserError
from clawrl_trl.trainers.compat import name_layers

if TYPE_CHECKING:
    from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer


def divides_weights(trainer: "AsyncGRPOTrainer") -> bool:
    """Return whether FSDP or DeepSpeed holds the weights; else every process has a model of its own."""
    return bool(trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)


def name_backend(trainer: "AsyncGRPOTrainer") -> str:
    """Return a name that two trainings share exactly if either can read the other's training state.

    DeepSpeed divides its optimizer state by the number of processes, the others save a whole one.
    """
    if trainer.is_deepspeed_enabled:
        stage = trainer.accelerator.state.deepspeed_plugin.zero_stage
        return f"zero{stage}, {trainer.accelerator.num_processes} processes"
    return "fsdp2" if trainer.is_fsdp_enabled else "ddp"


def prepare_backend(trainer: "AsyncGRPOTrainer") -> None:
    """Check the backend, and set what FSDP2 needs before it divides a model, a reference model included.

    Whole states are saved, which any number of processes can read. Gradients are summed, and log-probabilities are
    in float32: accelerate would round both to the type of the computation; near -10 bfloat16 has steps of 0.06.

    Raises:
        UserError: If it is FSDP's first version.
    """
    if not trainer.is_fsdp_enabled:
        return
    plugin = trainer.accelerator.state.fsdp_plugin
    if plugin.fsdp_version == 1:
        raise UserError(
            "FSDP's first version can't restore a policy: set fsdp_version: 2 in accelerate's configuration, or "
            "accelerate launch --fsdp_version 2."
        )
    # What was chosen for divided states stays else, and has none of the fields that a whole one is read by.
    plugin.state_dict_config = plugin.optim_state_dict_config = None
    plugin.set_state_dict_type("FULL_STATE_DICT")
    if plugin.mixed_precision_policy:
        # Not float32 for outputs: that would widen what goes from layer to layer.
        plugin.mixed_precision_policy = replace(
            plugin.mixed_precision_policy, reduce_dtype=torch.float32, output_dtype=None
        )


def wrap_layers(trainer: "AsyncGRPOTrainer") -> None:
    """Let FSDP2 gather a layer at a time where nothing else is configured; accelerate would gather all at once."""
    if not trainer.is_fsdp_enabled:
        return
    plugin = trainer.accelerator.state.fsdp_plugin
    if plugin.auto_wrap_policy is None:
        plugin.auto_wrap_policy = transformer_auto_wrap_policy
        plugin.transformer_cls_names_to_wrap = name_layers(trainer.model)
