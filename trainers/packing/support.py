"""Models whose samples can share tokens in a pass."""

from transformers import PreTrainedModel

from clawrl_trl.trainers.compat import get_attention_name

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Model types whose layers hand a pass's arguments on to a registered attention function."""


def find_obstacle(model: PreTrainedModel) -> str | None:
    """Return why samples can't share tokens in this model's passes, or `None` if they can.

    Args:
        model: The causal language model itself, without PEFT or distributed wrappers.
    """
    config = model.config
    if config.model_type not in FAMILIES:
        return f"models of type {config.model_type} are not supported"
    if (attention := get_attention_name(model)) != "sdpa":
        return f"its attention is {attention}, not sdpa"
    kinds = getattr(config, "layer_types", None)
    sliding = any(kind != "full_attention" for kind in kinds) if kinds else getattr(config, "sliding_window", None)
    if sliding:
        return "some of its layers don't see all tokens"
    if getattr(config, "attention_dropout", 0.0):
        return "its attention has dropout"
    return None
