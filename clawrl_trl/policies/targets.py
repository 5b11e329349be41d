"""Modules that "all-linear" means for an adapter: those that every engine serves by name.

Of a model that sees, engines adapt the language model alone. Of a mixture of experts, transformers keeps a layer's
experts in one parameter, which is no linear layer; PEFT turns "all-linear" into an adapter on them for some families
(Qwen, Mixtral, DeepSeek) and not for others (gpt-oss). Such an adapter computes the difference to every expert at each
pass, and vLLM serves it only merged into a whole model, so here `target_parameters` has to ask for it.
"""

import copy
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedConfig, PreTrainedModel

logger = logging.getLogger(__name__)

VISION_MODULES = r"(.*\.)?(visual|vision_tower|vision_model|multi_modal_projector)(\..*)?"
"""Modules that see, as a pattern."""

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Fields of a config under which families count their experts."""

EXPERT_NAMES = frozenset({"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Layers that PEFT takes for those of the experts and of the router, wherever they stand."""


def choose_targets(
    peft_config: "PeftConfig | None",
    model: "PreTrainedModel | str",
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> "PeftConfig | None":
    """An adapter config whose "all-linear" leaves out the modules that see and the experts.

    Args:
        peft_config (`PeftConfig`, *optional*): The config; one with other targets is returned as it is.
        model (`PreTrainedModel` or `str`): The model that is to be adapted, or its folder or hub id.
        revision (`str`, *optional*): Of a model by its id.
        trust_remote_code (`bool`, defaults to `False`): Whether the model's own code may run.
    """
    if peft_config is None or getattr(peft_config, "target_modules", None) != "all-linear":
        return peft_config
    if isinstance(model, str):
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=trust_remote_code)
    else:
        config = model.config
    changes: dict[str, Any] = {}
    if hasattr(config, "vision_config") and not peft_config.exclude_modules:
        changes["exclude_modules"] = VISION_MODULES
    if _counts_experts(config):
        layers = list_layers_beside_experts(_make_empty(config) if isinstance(model, str) else model)
        if layers:
            changes["target_modules"] = layers
            logger.warning(
                "The adapter changes %s and no experts: --lora_target_parameters trains those as well.",
                ", ".join(layers),
            )
    if not changes:
        return peft_config
    adapted = copy.copy(peft_config)
    for name, value in changes.items():
        setattr(adapted, name, value)
    return adapted


def list_layers_beside_experts(model: "PreTrainedModel | None") -> list[str] | None:
    """The names of a model's linear layers without those of its experts, sorted.

    Args:
        model (`PreTrainedModel`, *optional*): Without an adapter; it may be on the device "meta".

    Returns:
        `list[str]` or `None`: For `target_modules`; `None` if no layer keeps its experts in one parameter.
    """
    import torch

    if model is None or not any(weight.ndim == 3 and ".experts." in name for name, weight in model.named_parameters()):
        return None
    head = model.get_output_embeddings()
    linear = [
        name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and module is not head
    ]
    return sorted({name.rpartition(".")[2] for name in linear} - EXPERT_NAMES)


def _counts_experts(config: "PreTrainedConfig") -> bool:
    text = config.get_text_config(decoder=True)
    return any(getattr(text, name, None) for name in EXPERT_COUNTS)


def _make_empty(config: "PreTrainedConfig") -> "PreTrainedModel | None":
    """A model of a config without memory for its weights; `None` if its code is its own."""
    import torch
    import transformers

    kind: Any = getattr(transformers, (config.architectures or [""])[0], None)
    if kind is None:
        return None
    with torch.device("meta"):
        model: PreTrainedModel = kind(config)
    return model
