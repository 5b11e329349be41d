"""What a policy folder holds, written and read.

The weights lie at the top, in the form engines and PEFT load; everything else that training needs to go on exactly
as if it had never stopped (optimizer, scheduler, random state, step count) lies in `training_state/`. Writing and
reading the state go through `transformers.Trainer`, so sharded optimizers are handled by who knows them.
"""

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from safetensors import SafetensorError

from clawrl_trl.errors import UserError
from clawrl_trl.policies.versions import TRAINING_STATE

FACTS = "policy.json"


def write_policy(trainer: Any, folder: Path, facts: dict[str, Any]) -> None:
    """Fill a policy folder; called on every process.

    Args:
        trainer: The trainer.
        folder: An empty folder with an empty `training_state/`.
        facts: What to note beside the state, as JSON.

    Raises:
        UserError: If the disk is full.
    """
    state = folder / TRAINING_STATE
    with _disk_errors(folder):
        _write_weights(trainer, folder)
        trainer._save_optimizer_and_scheduler(str(state))
        trainer._save_scaler(str(state))
        trainer._save_rng_state(str(state))
        if trainer.accelerator.is_main_process:
            (state / FACTS).write_text(json.dumps(facts))
            trainer.state.save_to_json(str(state / "trainer_state.json"))


def _write_weights(trainer: Any, folder: Path) -> None:
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        trainer.save_model(str(folder), _internal_call=True)
        return
    if not trainer.accelerator.is_main_process:
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    if is_peft_model(model):
        model.save_pretrained(folder, selected_adapters=[model.active_adapter], save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)
    else:
        model.save_pretrained(folder)
        trainer.processing_class.save_pretrained(folder)


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        at_fault = isinstance(error, (OSError, SafetensorError)) or "PytorchStreamWriter" in str(error)
        if not at_fault:
            raise
        shutil.rmtree(folder, ignore_errors=True)
        raise UserError(
            f"{folder.parent} can't be written to ({str(error).splitlines()[0]}): free some space and start again."
        ) from error


def read_weights(trainer: Any, folder: Path) -> None:
    """Load a policy folder's weights into the trainer's model."""
    trainer._load_from_checkpoint(str(folder))


def read_training_state(trainer: Any, state: Path | None) -> None:
    """Load optimizer, scheduler and scaler in mid-training; without a state the optimizer starts afresh."""
    if state is None:
        inner = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        inner.state = defaultdict(dict)
        return
    trainer._load_optimizer_and_scheduler(str(state))
    trainer._load_scaler(str(state))


class InitialWeights:
    """The weights that training began with: version 0, to which a rollback may lead.

    For an adapter they are kept in memory; all weights of a model are read again from where it came from.

    Args:
        model: The model, before its first step.
    """

    def __init__(self, model: Any) -> None:
        self._adapter: dict[str, torch.Tensor] | None = None
        self._source = str(getattr(model.config, "_name_or_path", ""))
        if is_peft_model(model):
            self._adapter = {
                name: parameter.detach().cpu().clone()
                for name, parameter in model.named_parameters()
                if parameter.requires_grad
            }

    @torch.no_grad()
    def restore(self, model: Any) -> None:
        """Give the model its first weights back.

        Raises:
            UserError: If the model came from no folder or hub repository.
        """
        if self._adapter is not None:
            parameters = dict(model.named_parameters())
            for name, value in self._adapter.items():
                parameters[name].copy_(value)
            return
        if not self._source:
            raise UserError("The base model came from memory, so version 0 can't be restored: choose another version.")
        fresh = type(model).from_pretrained(self._source, dtype=model.dtype)
        model.load_state_dict(fresh.state_dict(), strict=False)
