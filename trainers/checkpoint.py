"""Contents of a policy folder, written and read.

The weights lie at the top, in the form engines and PEFT load; everything else that training needs to go on exactly
as if it had never stopped (optimizer, scheduler, random state, step count) lies in `training_state/`. Writing and
reading the state go through `transformers.Trainer`, so sharded optimizers are handled by who knows them.

An adapter that the engine can't serve as one is also merged into a whole model, in a folder of its own inside. The
adapter stays what is trained and what a checkpoint is. `training.json` beside the weights is the record of the
training: method, base model, hyper-parameters and package versions.
"""

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from accelerate.utils import is_peft_model
from peft import PeftConfig, PeftModel
from safetensors import SafetensorError, safe_open
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedModel

from clawrl_trl.engines.kinds import MERGED
from clawrl_trl.errors import UserError
from clawrl_trl.hub.files import TRAINING_RECORD
from clawrl_trl.hub.receipt import HYPER_PARAMETERS, PACKAGES
from clawrl_trl.policies.checksums import TRAINING_STATE
from clawrl_trl.trainers.compat import (
    BaseTunerLayer,
    load_training_state,
    load_weights,
    save_training_state,
)
from clawrl_trl.trainers.parallel.backend import divides_weights
from clawrl_trl.trainers.parallel.weights import gather_weights, name_saved_weights, scatter_weights
from clawrl_trl.trainers.parallel.zero import hold_weights, load_undivided

if TYPE_CHECKING:
    from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer

FACTS = "policy.json"
LOGS_KEPT = 1000
"""Newest entries of the trainer's log that are kept in memory and with each version."""


def write_policy(trainer: "AsyncGRPOTrainer", folder: Path, facts: dict[str, object], *, merged: bool = False) -> None:
    """Fill a policy folder; called on every process.

    Args:
        trainer: The trainer.
        folder: An empty folder with an empty `training_state/`.
        facts: What to note beside the state, as JSON.
        merged: Whether to merge the adapter into a whole model for the engine, too.

    Raises:
        UserError: If the disk is full, or the adapter can't be merged.
    """
    state = folder / TRAINING_STATE
    with _explain_disk_errors(folder):
        _write_weights(trainer, folder)
    merged_model = _merge(trainer, folder) if merged and trainer.accelerator.is_main_process else None
    with _explain_disk_errors(folder):
        if merged_model is not None:
            merged_model.save_pretrained(folder / MERGED)
            trainer.processing_class.save_pretrained(folder / MERGED)
        save_training_state(trainer, state)
        # All of them would make each version of a long run slower to write than the one before, and its memory grow.
        del trainer.state.log_history[:-LOGS_KEPT]
        if trainer.accelerator.is_main_process:
            _write_record(trainer, folder)
            (state / FACTS).write_text(json.dumps(facts))
            trainer.state.save_to_json(str(state / "trainer_state.json"))


def _write_weights(trainer: "AsyncGRPOTrainer", folder: Path) -> None:
    model = trainer.accelerator.unwrap_model(trainer.model)
    # All processes collect divided weights together, so none may return earlier.
    main = bool(trainer.accelerator.is_main_process)
    weights = gather_weights(model, keep=main) if divides_weights(trainer) else None
    if not main:
        return
    if is_peft_model(model):
        model.save_pretrained(
            folder, state_dict=weights, selected_adapters=[model.active_adapter], save_embedding_layers=False
        )
        # PEFT writes a model card of its own, which names the path of the base model.
        (folder / "README.md").unlink(missing_ok=True)
    else:
        model.save_pretrained(folder, state_dict=weights)
        trainer.processing_class.save_pretrained(folder)


def _merge(trainer: "AsyncGRPOTrainer", folder: Path) -> PreTrainedModel:
    """The adapter that lies in a folder, merged into its base model.

    Both are read from disk: the model that is being trained is left alone, and what the engine will serve is what was
    saved.
    """
    config = PeftConfig.from_pretrained(str(folder))
    source = config.base_model_name_or_path
    if not source:
        raise UserError("The base model came from memory, so the adapter can't be merged for vLLM: load it by name.")
    base_class = type(trainer.accelerator.unwrap_model(trainer.model).get_base_model())
    base = base_class.from_pretrained(source, revision=_get_revision(trainer), dtype=trainer.model.dtype)
    model = PeftModel.from_pretrained(base, str(folder), config=config).merge_and_unload()
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if model.config.get_text_config().tie_word_embeddings and not torch.equal(head.weight, embeddings.weight):
        raise UserError(
            "The adapter changes one of two tied layers (embeddings, lm_head), which vLLM can't serve: leave both out "
            "of its target modules and modules to save."
        )
    return model


def describe_training(trainer: "AsyncGRPOTrainer") -> dict[str, object]:
    """Collect what `training.json` says; the base model may be a path, which no publication repeats.

    Args:
        trainer: An [`AsyncGRPOTrainer`].
    """
    own = next(base for base in type(trainer).__mro__ if base.__module__.startswith("clawrl_trl."))
    config = trainer.accelerator.unwrap_model(trainer.model).config
    base = str(getattr(config, "name_or_path", None) or "")
    return {
        "method": trainer.method,
        "trainer": own.__name__,
        "base_model": str(Path(base).absolute()) if base and Path(base).is_dir() else base or None,
        "base_revision": _get_revision(trainer),
        "hyper_parameters": {name: getattr(trainer.args, name, None) for name in HYPER_PARAMETERS},
        "packages": {name: _read_version(name) for name in PACKAGES},
    }


def _get_revision(trainer: "AsyncGRPOTrainer") -> str | None:
    """The revision of the base model, where it came from the Hub; a folder has none."""
    revision: str | None = (trainer.args.model_init_kwargs or {}).get("revision")
    return revision


def _write_record(trainer: "AsyncGRPOTrainer", folder: Path) -> None:
    """Write `training.json` into a policy folder."""
    (folder / TRAINING_RECORD).write_text(json.dumps(describe_training(trainer), indent=2, default=str) + "\n")


def _read_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def list_adapted_modules(model: PreTrainedModel) -> list[str]:
    """Paths of the modules that a PEFT model's adapter changes."""
    return [name for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)]


@contextmanager
def _explain_disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        # torch.save reports a full disk as a plain RuntimeError of its writer.
        disk_is_full = isinstance(error, (OSError, SafetensorError)) or "PytorchStreamWriter" in str(error)
        if not disk_is_full:
            raise
        shutil.rmtree(folder, ignore_errors=True)
        raise UserError(
            f"{folder.parent} can't be written to ({str(error).splitlines()[0]}): free some space and start again."
        ) from error


def read_weights(trainer: "AsyncGRPOTrainer", folder: Path) -> None:
    """Load a policy folder's weights into the trainer's model; called on every process."""
    if not divides_weights(trainer):
        load_weights(trainer, folder)
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not trainer.accelerator.is_main_process:
        scatter_weights(model, None)
    elif is_peft_model(model):
        names = name_saved_weights(model)
        with safe_open(folder / "adapter_model.safetensors", framework="pt") as file:
            scatter_weights(model, lambda name: file.get_tensor(names[name]))
    else:
        scatter_weights(model, load_model(trainer, str(folder)).get_parameter)


def load_model(trainer: "AsyncGRPOTrainer", source: str, revision: str | None = None) -> PreTrainedModel:
    """Load a whole model like the one in training, on this process alone."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    with load_undivided(getattr(trainer.args, "hf_deepspeed_config", None)):
        return type(model).from_pretrained(source, revision=revision, dtype=model.dtype)


def read_training_state(trainer: "AsyncGRPOTrainer", state: Path | None) -> None:
    """Load optimizer, scheduler and scaler in mid-training; without a state the optimizer starts afresh."""
    if state is None:
        inner = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        if inner is not None and trainer.is_deepspeed_enabled:
            hold_weights(inner)
        elif inner is not None:
            # Emptied in place: accelerate and the scheduler hold this very optimizer.
            inner.state = defaultdict(dict)
        return
    load_training_state(trainer, state)


def find_other_backend(state: Path, own: str) -> str | None:
    """Return what wrote a training state, as a reason not to read it, if it is another backend than `own`."""
    facts = state / FACTS
    written_by = json.loads(facts.read_text()).get("backend", own) if facts.is_file() else own
    return None if written_by == own else f"it was written under {written_by}, this is {own}"


@contextmanager
def keep_learning_rates(optimizer: torch.optim.Optimizer, scheduler: LRScheduler) -> Iterator[None]:
    """Let the learning rates of an optimizer's groups win over those that are loaded inside the block.

    The scheduler's factor on a rate, as it was saved, is kept.
    """
    configured = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
    yield
    for group, rate in zip(optimizer.param_groups, configured, strict=True):
        saved = group.get("initial_lr", group["lr"])
        if saved != rate:
            group["lr"] = rate * (group["lr"] / saved if saved else 1.0)
        group["initial_lr"] = rate
    # Schedulers that are functions of the step multiply these; others have none.
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = configured


class InitialWeights:
    """The weights that training began with: version 0, to which a rollback may lead.

    For an adapter the main process keeps them in memory; all weights of a model are read again from where it came
    from.

    Args:
        trainer: The trainer with the model, before its first step; every process makes one of these.
    """

    def __init__(self, trainer: "AsyncGRPOTrainer") -> None:
        self._trainer = trainer
        self._main = bool(trainer.accelerator.is_main_process)
        model = trainer.accelerator.unwrap_model(trainer.model)
        self._source = str(getattr(model.config, "name_or_path", None) or "")
        # On the CPU: a second copy would take memory of the GPU for a rollback that may never come.
        self._adapter = gather_weights(model, keep=self._main) if is_peft_model(model) else None

    def restore(self) -> None:
        """Give the model its first weights back; called on every process.

        Raises:
            UserError: If the model came from no folder or hub repository.
        """
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        if self._adapter is None and not self._source:
            raise UserError("The base model came from memory, so version 0 can't be restored: choose another version.")
        if not self._main:
            scatter_weights(model, None)
        elif self._adapter is not None:
            scatter_weights(model, self._adapter.__getitem__)
        else:
            scatter_weights(model, load_model(self._trainer, self._source, _get_revision(self._trainer)).get_parameter)
