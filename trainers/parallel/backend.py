"""Backends that divide a training among processes: their names, and those that are refused."""

from typing import TYPE_CHECKING

from clawrl_trl.errors import UserError

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
    """Check the backend, and let FSDP save whole states, which any number of processes can read.

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
