"""Names of TRL, transformers and PEFT that are no documented interface: imported, called and checked here alone.

Any release may rename one. What is missing ends in an error that says which package to install in which version, when
this module is imported, or at the first use of what only an instance has. A private method that a trainer of ours
overrides stays in its class; `OVERRIDDEN` declares it, so that it can't be left behind as a method that nobody calls.
Accelerate, datasets and torch are used by documented names alone.
"""

import inspect
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from transformers import Trainer
from trl import GRPOTrainer

from clawrl_trl.errors import UserError

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
        *("_finish_current_push", "_load_scaler"),
        *("_save_optimizer_and_scheduler", "_save_rng_state", "_save_scaler"),
    ),
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


def save_weights(trainer: Trainer, folder: Path) -> None:
    """Save the weights of a model that is divided among the processes; nothing is pushed."""
    trainer.save_model(str(folder), _internal_call=True)


def load_weights(trainer: Trainer, folder: Path) -> None:
    """Load a folder's weights into the trainer's model."""
    trainer._load_from_checkpoint(str(folder))


def save_training_state(trainer: Trainer, folder: Path) -> None:
    """Save optimizer, scheduler, scaler and this process's random state."""
    trainer._save_optimizer_and_scheduler(str(folder))
    trainer._save_scaler(str(folder))
    trainer._save_rng_state(str(folder))


def load_training_state(trainer: Trainer, folder: Path) -> None:
    """Load optimizer, scheduler and scaler; transformers itself restores the random state when training begins."""
    trainer._load_optimizer_and_scheduler(str(folder))
    trainer._load_scaler(str(folder))


def finish_push(trainer: Trainer) -> None:
    """Wait for a push in the background to end."""
    trainer._finish_current_push()
