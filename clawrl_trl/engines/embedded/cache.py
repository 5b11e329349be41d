"""Keys and values of a running batch: rows aligned at their right edge, padded on the left.

A batch changes its members between steps. transformers' `DynamicCache` copies everything it holds at each token;
here each layer keeps room to grow, so a decoded token costs one column, and whole copies happen only when a row
joins or leaves. Aligning the right edges lets rows of any length share one cache: padding never moves a token's
position, it only stays masked.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from clawrl_trl.engines.embedded.compat import attention_name

ROOM = 256
"""Columns allocated beyond the ones in use when a buffer is full."""

GROUPED_ATTENTION = "clawrl_grouped_sdpa"


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one attention layer, each `[batch, heads, length, size]`, in a buffer with room to grow."""

    def __init__(self) -> None:
        super().__init__()
        self._key_buffer: Tensor | None = None
        self._value_buffer: Tensor | None = None

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """Hold these keys and values from now on; the next update copies them into a fresh buffer."""
        self.dtype, self.device = keys.dtype, keys.device
        self.keys, self.values = keys, values
        self._key_buffer = self._value_buffer = None
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append the new columns; returns all keys and values so far."""
        if not self.is_initialized:
            self.replace(key_states[:, :, :0], value_states[:, :, :0])
        length = self.keys.shape[-2]
        end = length + key_states.shape[-2]
        if self._key_buffer is None or self._value_buffer is None or end > self._key_buffer.shape[-2]:
            self._key_buffer = _enlarge(self.keys, end + ROOM)
            self._value_buffer = _enlarge(self.values, end + ROOM)
        self._key_buffer[:, :, length:end] = key_states
        self._value_buffer[:, :, length:end] = value_states
        self.keys, self.values = self._key_buffer[:, :, :end], self._value_buffer[:, :, :end]
        return self.keys, self.values


def _enlarge(states: Tensor, columns: int) -> Tensor:
    buffer = states.new_empty(*states.shape[:2], columns, states.shape[3])
    buffer[:, :, : states.shape[2]] = states
    return buffer


def new_cache(layers: int) -> Cache:
    """Make an empty cache for a model of so many layers."""
    return Cache(layers=[GrowingLayer() for _ in range(layers)])


def concatenate_caches(first: Cache, second: Cache) -> Cache:
    """Put the rows of two caches into one, the shorter ones padded on the left."""
    length = max(first.get_seq_length(), second.get_seq_length())
    cache = new_cache(len(first.layers))
    for layer, upper, lower in zip(cache.layers, first.layers, second.layers, strict=True):
        layer.replace(
            _pad_and_stack(upper.keys, lower.keys, length), _pad_and_stack(upper.values, lower.values, length)
        )
    return cache


def _pad_and_stack(upper: Tensor, lower: Tensor, length: int) -> Tensor:
    padded = [functional.pad(states, (0, 0, length - states.shape[-2], 0)) for states in (upper, lower)]
    return torch.cat(padded)


def select_rows(cache: Cache, rows: Tensor, columns_to_drop: int) -> Cache:
    """Copy the given rows (`[rows]` int64, repeats allowed), without the leading columns that none of them needs."""
    result = new_cache(len(cache.layers))
    for target, source in zip(result.layers, cache.layers, strict=True):
        target.replace(source.keys[:, :, columns_to_drop:][rows], source.values[:, :, columns_to_drop:][rows])
    return result


def grouped_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Scaled dot-product attention that never repeats keys and values for grouped queries while decoding.

    With one query position, the query heads of a group can stand in the place of query positions: same numbers,
    none of the copying. Everything else goes to transformers' own function.
    """
    if query.shape[2] != 1 or kwargs.get("position_bias") is not None:
        output: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return output
    batch, heads, _, size = query.shape
    groups = query.reshape(batch, key.shape[1], heads // key.shape[1], size)
    attended = functional.scaled_dot_product_attention(
        groups, key, value, attn_mask=attention_mask, scale=kwargs.get("scaling")
    )
    return attended.reshape(batch, 1, heads, -1), None


AttentionInterface.register(GROUPED_ATTENTION, grouped_attention)
# For an attention without a mask function transformers makes no mask at all.
AttentionMaskInterface.register(GROUPED_ATTENTION, sdpa_mask)


def use_grouped_attention(model: PreTrainedModel) -> None:
    """Let a model that attends through SDPA attend through `grouped_attention` instead."""
    if attention_name(model) == "sdpa":
        model.set_attn_implementation(GROUPED_ATTENTION)
