"""What the recipes train: an encoder with a low-rank adapter, and a linear head over its embedding and the cues."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from clawrl_trl.engines.precision import has_bfloat16_products
from clawrl_trl.judge import features
from clawrl_trl.judge.classifier.adapters import LORA_PREFIX
from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM, Encoder
from clawrl_trl.judge.classifier.model import LABELS
from clawrl_trl.judge.classifier.reader import EMBEDDING_WEIGHT, embed_texts
from recipes.judge.example import Example

RANK, CUE_DROPOUT = 16, 0.2


@dataclass(frozen=True)
class Rows:
    """Some examples as arrays: cues `(n, FEATURE_COUNT)`, probabilities to be learnt `(n, 3)`, weights `(n,)`."""

    texts: list[tuple[str, str, str]]
    cues: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, batch: Sequence[Example], with_context: bool = True) -> "Rows":
        """The rows of some examples; the cues know the context in any case."""
        return cls(
            [example.texts if with_context else ("", "", example.message) for example in batch],
            torch.tensor(np.stack([features.compute_features(*example.texts) for example in batch])),
            torch.tensor([example.targets for example in batch]),
            torch.tensor([example.weight for example in batch]),
        )


def adapt(encoder: Encoder, rank: int) -> Any:
    """The published encoder with a new adapter and without dropout."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=encoder.adapted)
    adapted: Any = get_peft_model(encoder.load_model(), config)
    # Without it a pass takes little more than half the time, and none sees a message often enough to need it.
    for module in adapted.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return adapted


def list_adapted(encoder: Any) -> Iterator[tuple[str, Any]]:
    """The layers of an encoder that have an adapter, by their names in the published one."""
    modules = encoder.base_model.model.named_modules()
    return ((name, module) for name, module in modules if hasattr(module, "lora_A"))


def save_with_adapter(encoder: Any, head: dict[str, torch.Tensor], path: Path) -> None:
    """Write the tensors of a head, and the adapter in float16."""
    tensors = dict(head)
    for name, module in list_adapted(encoder):
        down, up = module.lora_A["default"].weight, module.lora_B["default"].weight
        tensors[f"{LORA_PREFIX}{name}.down"] = down.half()
        tensors[f"{LORA_PREFIX}{name}.up"] = (up * module.scaling["default"]).half()
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)


class Network(nn.Module):
    """Encoder with adapter, and the head over `[embedding, standardised cues]`."""

    def __init__(self, cues: torch.Tensor, encoder: Encoder = ENCODERS[MINILM], rank: int = RANK) -> None:
        super().__init__()
        self.tokenizer, self.limits = encoder.load_tokenizer(), encoder
        self.encoder = adapt(encoder, rank)
        self.head = nn.Linear(self.encoder.config.hidden_size + cues.shape[1], len(LABELS))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.mean, self.scale = cues.mean(0), cues.std(0).clamp(min=0.1)

    def forward(self, rows: Rows) -> torch.Tensor:
        """Logits, shape `(n, 3)`."""
        # Half precision takes two thirds of the time where the processor has it.
        with torch.autocast("cpu", torch.bfloat16, enabled=self.training and has_bfloat16_products()):
            embedding = embed_texts(self.encoder, self.tokenizer, rows.texts, self.limits)[0] * EMBEDDING_WEIGHT
        cues = nn.functional.dropout((rows.cues - self.mean) / self.scale, CUE_DROPOUT, self.training)
        logits: torch.Tensor = self.head(torch.cat([embedding, cues], 1))
        return logits

    def load(self, path: Path) -> None:
        """Take over what `save` wrote, standardisation included."""
        tensors = load_file(path)
        self.head.load_state_dict({name: tensors[f"head.{name}"] for name in ("weight", "bias")})
        self.mean, self.scale = tensors["mean"], tensors["scale"]
        with torch.no_grad():
            for name, module in list_adapted(self.encoder):
                down, up = (tensors[f"{LORA_PREFIX}{name}.{part}"].float() for part in ("down", "up"))
                module.lora_A["default"].weight.copy_(down)
                module.lora_B["default"].weight.copy_(up / module.scaling["default"])

    def save(self, path: Path, temperature: float) -> None:
        """Write adapter (float16), head, standardisation and temperature."""
        tensors = {
            "head.weight": self.head.weight,
            "head.bias": self.head.bias,
            "mean": self.mean,
            "scale": self.scale,
            "temperature": torch.tensor([temperature]),
        }
        save_with_adapter(self.encoder, tensors, path)


def load_shipped(encoder: Encoder) -> tuple[Network, float]:
    """The network that ships for an encoder, and the temperature that its logits are divided by."""
    tensors = load_file(encoder.classifier)
    network = Network(torch.zeros(2, len(tensors["mean"])), encoder, find_rank(encoder.classifier))
    network.load(encoder.classifier)
    return network.eval(), float(tensors["temperature"])


def find_rank(path: Path) -> int:
    """The rank of the adapter in a file that `Network.save` or `mean` wrote."""
    return max(len(tensor) for name, tensor in load_file(path).items() if name.endswith(".down"))
