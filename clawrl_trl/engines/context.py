"""The default context length: what the model takes and the memory holds, 32,768 tokens at most.

Both engines ask here, and what an engine then really takes is what it says under `max_model_len` on `/v1/models`:
the gateway, the provider block and `clawrl doctor` repeat that, never a setting.
"""

from collections.abc import Mapping
from typing import Any

from clawrl_trl.config.serving import AGENT_CONTEXT, DEFAULT_CONTEXT, ServeSettings
from clawrl_trl.engines.families import read_json

STEP = 1024
"""Contexts that memory cuts short are a multiple of this."""
CACHE_SHARE = 0.5
"""Share of the free memory that one conversation's keys and values may take."""


def read_own_context(model: str) -> int | None:
    """Read the longest context that a model's `config.json` states, in tokens; `None` if it states none.

    Args:
        model (`str`): Folder or hub id.
    """
    config = read_json(model, "config.json")
    # Models that see keep the figures of their language model one level down.
    for part in (config, config.get("text_config")):
        limit = part.get("max_position_embeddings") if isinstance(part, Mapping) else None
        if isinstance(limit, int) and limit > 0:
            return limit
    return None


def choose_vllm_context(settings: ServeSettings, model: str, *, fit_memory: bool) -> str:
    """Choose the value of vLLM's `--max-model-len`.

    `auto` is the model's own limit, cut to what the KV cache holds. It has no upper bound of its own, so a model that
    takes more than the default is started with the default first, and with `auto` once that has not fitted.

    Args:
        settings (`ServeSettings`): The run's settings.
        model (`str`): Folder or hub id.
        fit_memory (`bool`): The default was tried and the memory did not hold it.
    """
    if settings.max_model_len is not None:
        return str(settings.max_model_len)
    own = read_own_context(model)
    return "auto" if fit_memory or own is None or own <= DEFAULT_CONTEXT else str(DEFAULT_CONTEXT)


def choose_embedded_context(config: Any, requested: int | None, *, itemsize: int, free: int) -> int:
    """Choose the longest context of the embedded engine, in tokens.

    Args:
        config: The decoder's transformers config.
        requested (`int`, *optional*): The length asked for, cut short by the model's own limit, not by memory.
        itemsize (`int`): Bytes of a number in the cache.
        free (`int`): Bytes of memory that are free beside the weights.
    """
    own = getattr(config, "max_position_embeddings", None)
    length = min(limit for limit in (requested or DEFAULT_CONTEXT, own) if limit)
    if requested is not None:
        return length
    return cut_context(length, count_cached_numbers(config) * itemsize, free)


def cut_context(length: int, token: float, free: float) -> int:
    """Cut a context to what the memory beside the weights holds, in tokens.

    Args:
        length (`int`): The context, uncut.
        token (`float`): Bytes of a token's keys and values.
        free (`float`): Bytes of memory that are free beside the weights.
    """
    capacity = int(CACHE_SHARE * free / token)
    return length if capacity >= length else max(STEP, capacity // STEP * STEP)


def read_window(config: Any) -> int | None:
    """Read how many tokens, its own included, a token attends to in a layer with a sliding window; `None` without one.

    Args:
        config: The decoder's transformers config.
    """
    kinds = getattr(config, "layer_types", None)
    # A model that names no kinds of layers has a window in all or none of them.
    has_window = "sliding_attention" in kinds if kinds else True
    return getattr(config, "sliding_window", None) if has_window else None


def count_cached_numbers(config: Any) -> int:
    """Count the numbers of a token's keys and values, over all layers."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * key_heads * head_dim)


def find_shortage(context: int | None, model: str | None) -> tuple[str, str] | None:
    """Why an agent does not fit into a context and what to do about it; `None` if it fits, or the context is unknown.

    Args:
        context (`int`, *optional*): What the engine takes, in tokens.
        model (`str`, *optional*): The model that is named; `None` is the bundled one.
    """
    if context is None or context >= AGENT_CONTEXT:
        return None
    fault = (
        f"The engine takes {context:,} tokens; agents such as OpenClaw send 7,000 to 30,000 and stop with "
        f'"Context overflow"'
    )
    if model is None:
        return fault, "the bundled model is for the tour, name a model of your own with --model_name_or_path"
    return fault, "raise --max_model_len, or name a model with a longer context"
