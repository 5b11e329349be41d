"""A model without memory for its weights, made of its config alone: what a shape is counted on."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


def make_empty_model(
    model: str | Path, *, revision: str | None = None, trust_remote_code: bool = False
) -> "PreTrainedModel":
    """Make a model on the device "meta", where tensors have a shape and take no memory.

    Args:
        model: Folder or hub id.
        revision: Of a model by its id.
        trust_remote_code: Whether the model's own code may run.

    Raises:
        OSError: If there is no such model.
        ValueError: If neither transformers nor the model itself has code for its architecture.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    if Path(model).is_dir() and not (Path(model) / "config.json").is_file():
        raise FileNotFoundError(f"{model} has no config.json")
    # Stated even where it is false: transformers would ask the terminal else.
    config = AutoConfig.from_pretrained(str(model), revision=revision, trust_remote_code=trust_remote_code)
    kinds = [AutoModelForCausalLM, AutoModelForImageTextToText]
    if hasattr(config, "vision_config"):
        kinds.reverse()  # some that see are known as a language model too, without what sees
    with torch.device("meta"):
        for kind in kinds:
            if own := _find_own_class(kind.__name__, config, model, revision) if trust_remote_code else None:
                return own(config)
            try:
                return kind.from_config(config, trust_remote_code=trust_remote_code)
            except ValueError as error:
                refusal = error
    raise refusal


def _find_own_class(kind: str, config: "PreTrainedConfig", model: str | Path, revision: str | None) -> Any:
    """The class that the model brings for itself, of the revision that was asked for; `None` without one."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    reference = (getattr(config, "auto_map", None) or {}).get(kind)
    return get_class_from_dynamic_module(reference, str(model), revision=revision) if reference else None
