"""Published encoders with an adapter of ours: merged into a sentence encoder, beside a language model's layers."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from clawrl_trl.judge.classifier.encoders import Encoder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LORA_PREFIX = "adapter."
"""Of the names of an adapter's tensors in a file of ours."""


def load_adapted(encoder: Encoder, tensors: Mapping[str, torch.Tensor]) -> "PreTrainedModel":
    """The published encoder with the adapter that is among some tensors."""
    add = attach_adapter if encoder.is_chat_model else merge_adapter
    return add(encoder.load_model(), tensors)


def merge_adapter(encoder: "PreTrainedModel", tensors: Mapping[str, torch.Tensor]) -> "PreTrainedModel":
    """Add the adapter to the encoder's weights, in place: W + up @ down for each adapted layer."""
    for name, down, up in _list_layers(tensors):
        encoder.get_parameter(f"{name}.weight").data += up.float() @ down.float()
    return encoder


def attach_adapter(encoder: "PreTrainedModel", tensors: Mapping[str, torch.Tensor]) -> "PreTrainedModel":
    """Put each adapter beside its layer, in place."""
    dtype = next(encoder.parameters()).dtype
    for name, down, up in _list_layers(tensors):
        encoder.set_submodule(name, Adapted(encoder.get_submodule(name), down.to(dtype), up.to(dtype)))
    return encoder


def _list_layers(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """The adapted layers: name, the matrix that goes down to the rank, and the one that goes up again."""
    for key, down in tensors.items():
        stem = key.removesuffix(".down")
        if stem != key and key.startswith(LORA_PREFIX):
            yield stem.removeprefix(LORA_PREFIX), down, tensors[f"{stem}.up"]


class Adapted(nn.Module):
    """A linear layer with its adapter beside it, which would be rounded away in weights of half precision."""

    def __init__(self, layer: nn.Module, down: torch.Tensor, up: torch.Tensor) -> None:
        super().__init__()
        self.layer, self.down, self.up = layer, nn.Parameter(down, False), nn.Parameter(up, False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the layer and its adapter make of `(…, features)`."""
        added: torch.Tensor = self.layer(inputs) + inputs @ self.down.T @ self.up.T
        return added
