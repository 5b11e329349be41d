"""The shape of a model: the numbers of its architecture that decide what memory it takes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clawrl_trl.doctor.empty_model import make_empty_model
from clawrl_trl.policies.targets import VISION_MODULES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "4bit": 0.5 + 4 / 64}
"""Bytes a parameter of a linear layer takes."""


@dataclass(frozen=True)
class Shape:
    """The numbers of a model's architecture that decide its memory.

    Args:
        linear: Parameters of the linear layers, which 4 bits can hold.
        other: All other parameters: embeddings, an untied head, norms.
        adapter_width: Sum of inputs and outputs over those that an adapter goes to, of a model that sees its language
            model's; times the rank, an adapter's parameters.
        layers: Number of layers.
        hidden: Width of the residual stream.
        kept: Bytes that one layer keeps of a token for the backward pass, by the type of the base.
        passing: Bytes a token takes beside them while the layer's backward pass runs.
        vocab: Size of the vocabulary.
        kv_width: Numbers a token has in one layer's key cache; as many in its value cache.
    """

    linear: int
    other: int
    adapter_width: int
    layers: int
    hidden: int
    kept: Mapping[str, int]
    passing: Mapping[str, int]
    vocab: int
    kv_width: int

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.linear + self.other

    @classmethod
    def decoder(
        cls,
        *,
        layers: int,
        hidden: int,
        intermediate: int,
        heads: int,
        kv_heads: int,
        head_dim: int = 128,
        vocab: int = 151_936,
        tied: bool = False,
    ) -> "Shape":
        """A dense decoder of Qwen3's kind: gated MLP, grouped queries, normed queries and keys, no biases."""
        queries, keys = heads * head_dim, kv_heads * head_dim
        kept, passing = _count_layer_bytes(hidden, intermediate, queries + keys)
        matrices = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
        matrices += [(hidden, intermediate), (hidden, intermediate), (intermediate, hidden)]
        # Two norms a layer, those of its queries and keys (Qwen3's own), and one at the end.
        norms = layers * (2 * hidden + 2 * head_dim) + hidden
        return cls(
            linear=layers * sum(a * b for a, b in matrices),
            other=vocab * hidden * (1 if tied else 2) + norms,
            adapter_width=layers * sum(a + b for a, b in matrices),
            layers=layers,
            hidden=hidden,
            kept=kept,
            passing=passing,
            vocab=vocab,
            kv_width=keys,
        )

    @classmethod
    def of(cls, model: str | Path, *, revision: str | None = None, trust_remote_code: bool = False) -> "Shape":
        """The shape of any model that transformers can make, from its config alone; no weights are read.

        Args:
            model: Folder or hub id.
            revision: Of a model by its id.
            trust_remote_code: Whether the model's own code may run.

        Raises:
            OSError: If there is no such model.
            ValueError: If its architecture is unknown.
        """
        try:
            return cls._count(make_empty_model(model, revision=revision, trust_remote_code=trust_remote_code))
        except OSError:
            raise
        except Exception as error:
            # A model's own code, and configs of other kinds than ours, fail in ways of their own.
            raise ValueError(str(error) or type(error).__name__) from error

    @classmethod
    def _count(cls, model: "PreTrainedModel") -> "Shape":
        import torch

        head = model.get_output_embeddings()
        # Neither PEFT's "all-linear" nor 4-bit loading touches the head.
        linear = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and module is not head
        }
        adapted = [module for name, module in linear.items() if not re.fullmatch(VISION_MODULES, name)]
        weights = sum(module.weight.numel() for module in linear.values())
        # The configs of many architectures name only what differs from the usual.
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        keys = (getattr(config, "num_key_value_heads", None) or heads) * head_dim
        inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        widest = max(inner) if isinstance(inner, (list, tuple)) else inner  # of Gemma 3n each layer has a width
        kept, passing = _count_layer_bytes(config.hidden_size, widest, heads * head_dim + keys)
        return cls(
            linear=weights,
            other=sum(parameter.numel() for parameter in model.parameters()) - weights,
            adapter_width=sum(module.in_features + module.out_features for module in adapted),
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            kept=kept,
            passing=passing,
            vocab=config.vocab_size,
            kv_width=keys,
        )

    def weights(self, kind: str) -> float:
        """Bytes of the weights; embeddings, head and norms stay bfloat16 beside 4-bit layers."""
        return self.linear * BYTES[kind] + self.other * max(BYTES[kind], 2.0)

    def adapter(self, rank: int) -> int:
        """Parameters of a LoRA adapter on all linear layers."""
        return rank * self.adapter_width


def _count_layer_bytes(hidden: int, intermediate: int, attention: int) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes a token takes in one layer, by the type of the base: what is kept, and what passes through it."""
    # Norms, rotations, projections and a gated MLP; norms and rotations are float32 whatever the base is, so half the
    # width isn't half the bytes. Counted at three shapes of Qwen3, with LoRA on every linear layer.
    kept, passing = 12 * hidden + 8 * attention + 8 * intermediate, 6 * hidden + 4 * intermediate
    wide_kept, wide_passing = 16 * hidden + 12 * attention + 16 * intermediate, 4 * hidden + 8 * intermediate
    narrow = ("bfloat16", "float16", "4bit")
    return {"float32": wide_kept, **dict.fromkeys(narrow, kept)}, {
        "float32": wide_passing,
        **dict.fromkeys(narrow, passing),
    }
