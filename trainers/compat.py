"""Names of TRL, transformers and PEFT that are no documented interface: imported, called and checked here alone.

Any release may rename one. What is missing ends in an error that says which package to install in which version, when
this module is imported, or at the first use of what only an instance has. A private method that a trainer of ours
overrides stays in its class; `OVERRIDDEN` declares it, so that it can't be left behind as a method that nobody calls.
Accelerate, datasets and torch are used by documented names alone.
"""

import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import save_fsdp_optimizer
from transformers import PreTrainedModel, Trainer
from trl import GRPOTrainer

from clawrl_trl.errors import UserError

OPTIMIZER, SCHEDULER = "optimizer.pt", "scheduler.pt"
"""Files in which transformers keeps their states."""

PINS = {"peft": "peft>=0.21,<0.22", "transformers": "transformers>=5.10.4,<5.18", "trl": "trl>=1.16,<1.17"}
"""Versions that have all of the names, as in `pyproject.toml`."""

OVERRIDDEN = {
    "trl.GRPOTrainer": (
        *("_compute_loss", "_get_per_token_logps_and_entropies", "_prepare_inputs", "_send_telemetry"),
        *("_name", "_paper", "_tag_names"),
    ),
    "transformers.Trainer": ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_push_from_checkpoint"),
}
"""Private names of a library's class that a class in this folder defines again."""

USED = {
    "transformers.Trainer": (
        *("_finish_current_push", "_load_scaler", "_save"),
        *("_save_optimizer_and_scheduler", "_save_rng_state", "_save_scaler"),
    ),
    "transformers.PretrainedConfig": ("_attn_implementation",),
    "transformers.PreTrainedModel": ("_no_split_modules",),
    "trl.trainer.utils": ("identity", "maybe_gather_lm_head_ctx", "pad", "selective_log_softmax", "use_adapter"),
    "peft.tuners.tuners_utils": ("BaseTunerLayer",),
}
"""Names that are called here, or imported from modules without documentation."""

PARAMETERS = {"transformers.Trainer.save_model": ("_internal_call",)}
"""Private parameters of documented functions."""


def check_names(tables: Iterable[Mapping[str, Iterable[str]]]) -> None:
    """Check that the installed libraries have every name of these tables.

    Args:
        tables: Each maps the full name of a module or class to names that it must have.

    Raises:
        UserError: For the first that is missing, with the version to install.
    """
    for table in tables:
        for owner, names in table.items():
            for name in names:
                require(owner, name)


def check_parameters(table: Mapping[str, Iterable[str]]) -> None:
    """Check that functions have these parameters; arguments and errors as in `check_names`."""
    for function, names in table.items():
        owner, _, name = function.rpartition(".")
        parameters = inspect.signature(require(owner, name)).parameters
        for parameter in names:
            if parameter not in parameters:
                raise make_missing_error(function, parameter)


def require(owner: str, name: str) -> Any:
    """Return what a module or class of a library has under a name.

    Raises:
        UserError: If there is none, with the version to install.
    """
    try:
        holder: object = import_module(owner)
    except ImportError:
        module, _, class_name = owner.rpartition(".")
        if not module:
            raise make_missing_error(owner, name) from None
        holder = require(module, class_name)
    if not hasattr(holder, name):
        raise make_missing_error(owner, name)
    return getattr(holder, name)


def make_missing_error(owner: str, name: str) -> UserError:
    """The error of a name that the installed library lacks."""
    package = owner.partition(".")[0]
    try:
        installed = version(package)
    except PackageNotFoundError:
        installed = "(not installed)"
    return UserError(
        f"{package} {installed} has no {owner}.{name}, which the trainers need: pip install '{PINS[package]}'."
    )


# On import, so that an unsuitable version is named before a model is loaded.
check_names((OVERRIDDEN, USED))
check_parameters(PARAMETERS)

identity = require("trl.trainer.utils", "identity")
maybe_gather_lm_head_ctx = require("trl.trainer.utils", "maybe_gather_lm_head_ctx")
pad = require("trl.trainer.utils", "pad")
selective_log_softmax = require("trl.trainer.utils", "selective_log_softmax")
use_adapter = require("trl.trainer.utils", "use_adapter")
BaseTunerLayer = require("peft.tuners.tuners_utils", "BaseTunerLayer")


def record_metric(trainer: GRPOTrainer, name: str, value: float) -> None:
    """Add a value to those of which the trainer logs the mean with its next training log.

    Raises:
        UserError: If the installed TRL keeps them elsewhere.
    """
    # TRL's own way (`log_metric`) is open to reward functions alone, of which nothing is asked here.
    metrics = getattr(trainer, "_metrics", None)
    if metrics is None:
        raise make_missing_error("trl.GRPOTrainer", "_metrics")
    metrics["train"][name].append(value)


@contextmanager
def collect_metrics(trainer: GRPOTrainer) -> Iterator[dict[str, list[float]]]:
    """Keep what is recorded in the block out of the trainer's metrics; yields it.

    Raises:
        UserError: If the installed TRL keeps them elsewhere.
    """
    metrics = getattr(trainer, "_metrics", None)
    if metrics is None:
        raise make_missing_error("trl.GRPOTrainer", "_metrics")
    recorded, metrics["train"] = metrics["train"], defaultdict(list)
    try:
        yield metrics["train"]
    finally:
        metrics["train"] = recorded


def get_attention_name(model: PreTrainedModel) -> str:
    """The name of the attention implementation that a model uses."""
    return str(model.config._attn_implementation)


def name_layers(model: torch.nn.Module) -> list[str]:
    """Names of the classes of a model's layers, those that it has of all that its family names."""
    present = {type(module).__name__ for module in model.modules()}
    return sorted(present & set(model._no_split_modules or ()))  # type: ignore[arg-type]


def save_weights(trainer: Trainer, folder: Path) -> None:
    """Save the trainer's weights; nothing is pushed."""
    trainer.save_model(str(folder), _internal_call=True)


def save_collected_weights(trainer: Trainer, folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Save weights that were collected from all processes as the trainer saves a model; on the main process."""
    trainer._save(str(folder), state_dict=weights)


def load_weights(trainer: Trainer, folder: Path) -> None:
    """Load a folder's weights into the trainer's model."""
    trainer._load_from_checkpoint(str(folder))


def save_training_state(trainer: Trainer, folder: Path) -> None:
    """Save optimizer, scheduler, scaler and this process's random state."""
    if trainer.is_fsdp_enabled:
        # Without the model, which transformers would add: a policy folder has its weights already.
        plugin = trainer.accelerator.state.fsdp_plugin
        save_fsdp_optimizer(plugin, trainer.accelerator, trainer.optimizer, trainer.model, str(folder))
        if trainer.args.should_save:
            torch.save(trainer.lr_scheduler.state_dict(), folder / SCHEDULER)
    else:
        trainer._save_optimizer_and_scheduler(str(folder))
    trainer._save_scaler(str(folder))
    trainer._save_rng_state(str(folder))


def load_training_state(trainer: Trainer, folder: Path) -> None:
    """Load optimizer, scheduler and scaler; transformers itself restores the random state when training begins."""
    if trainer.is_deepspeed_enabled:
        # The optimizer's copies of the weights are part of its state.
        trainer.deepspeed.load_checkpoint(str(folder), load_module_strict=False)
    trainer._load_optimizer_and_scheduler(str(folder))
    trainer._load_scaler(str(folder))


def load_undivided_optimizer(trainer: Trainer, folder: Path) -> None:
    """Load optimizer and scheduler of a training whose processes have a whole model each."""
    # To the CPU: torch knows no "cpu:0", which transformers asks for where several processes train without a GPU.
    for target, name in ((trainer.optimizer, OPTIMIZER), (trainer.lr_scheduler, SCHEDULER)):
        target.load_state_dict(torch.load(folder / name, map_location="cpu", weights_only=True))


def finish_push(trainer: Trainer) -> None:
    """Wait for a push in the background to end."""
    trainer._finish_current_push()


def widen_adapter(model: torch.nn.Module) -> None:
    """Make the trained parameters beside quantized weights float32.

    TRL casts them to bfloat16, whose numbers have 8 bits: a step of 1e-5 on a weight of 0.01 is less than half of the
    distance to the next one, and rounding takes it away (80 % of an adapter's A never changes in 200 such steps).

    Args:
        model: The model before its optimizer is made.
    """
    if not (getattr(model, "is_loaded_in_4bit", False) or getattr(model, "is_loaded_in_8bit", False)):
        return
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def keep_input_dtype(model: torch.nn.Module) -> None:
    """Let the adapters' layers take their inputs as they are wherever autocast is on.

    PEFT makes a copy in the adapter's type, float32, which is kept for the backward pass; autocast then casts that
    copy back, so that the products are the same without it. Outside autocast PEFT's cast stays.

    Args:
        model: The model with its adapter.
    """
    for layer in model.modules():
        if isinstance(layer, BaseTunerLayer):
            # At each call, the one that recomputes an activation included.
            layer.register_forward_pre_hook(_choose_input_cast)


def _choose_input_cast(layer: Any, inputs: tuple[object, ...]) -> None:
    states = inputs[0] if inputs else None
    device = states.device.type if isinstance(states, torch.Tensor) else "cpu"
    layer.cast_input_dtype_enabled = not torch.is_autocast_enabled(device)
