"""Record of a policy version's training: method, base model, hyper-parameters, package versions."""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from clawrl_trl.hub.files import TRAINING_RECORD
from clawrl_trl.hub.receipt import HYPER_PARAMETERS, PACKAGES

if TYPE_CHECKING:
    from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer


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
        "base_revision": (trainer.args.model_init_kwargs or {}).get("revision"),
        "hyper_parameters": {name: getattr(trainer.args, name, None) for name in HYPER_PARAMETERS},
        "packages": {name: _read_version(name) for name in PACKAGES},
    }


def write_record(trainer: "AsyncGRPOTrainer", folder: Path) -> None:
    """Write `training.json` into a policy folder."""
    (folder / TRAINING_RECORD).write_text(json.dumps(describe_training(trainer), indent=2, default=str) + "\n")


def _read_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
