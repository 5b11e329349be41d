"""Train the rules judge's classifier: `PYTHONPATH=examples python -m recipes.judge.train` (five minutes on one core).

A low-rank adapter on the sentence encoder (LoRA, https://huggingface.co/papers/2106.09685) and a linear head over
its embedding and the cues, fitted to the labelled messages of `examples` by cross-entropy with label smoothing, so
that its probabilities stay usable for abstaining. `--held_out 0.2` keeps a fifth of the messages out and prints how
it does on them for several margins; `classifier.MARGIN` was chosen so. The same machine and seed give the same file.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn

from clawrl_trl.judge import features
from clawrl_trl.judge.classifier.model import (
    EMBEDDING_WEIGHT,
    LABELS,
    LORA_PREFIX,
    WEIGHTS,
    decide,
    embed,
    load_encoder,
    load_tokenizer,
    tokenise,
)
from recipes.judge import examples

RANK, ALPHA, DROPOUT = 8, 16, 0.1
TARGETS = ["query", "key", "value", "attention.output.dense", "intermediate.dense"]
EPOCHS, BATCH, ADAPTER_LR, HEAD_LR, SMOOTHING = 5, 32, 1e-3, 1e-2, 0.05
MARGINS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


@dataclass
class Data:
    """The examples as tensors. Each message is encoded once, whatever the number of contexts it stands in."""

    messages: list[str]
    places: torch.Tensor
    """Position in `messages` of each example's message."""
    cues: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, data: Sequence[examples.Example]) -> "Data":
        messages = list(dict.fromkeys(example.message for example in data))
        place = {message: number for number, message in enumerate(messages)}
        return cls(
            messages,
            torch.tensor([place[example.message] for example in data]),
            torch.tensor(np.stack([features.compute_features(*example.texts) for example in data])),
            torch.tensor([LABELS.index(example.label) for example in data]),
            torch.tensor([example.weight for example in data]),
        )

    def rows(self, batch: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The examples of a batch of messages, and which message of the batch each one is about."""
        where = torch.full((len(self.messages),), -1)
        where[list(batch)] = torch.arange(len(batch))
        places = torch.nonzero(where[self.places] >= 0).squeeze(1)
        return places, where[self.places[places]]


class Network(nn.Module):
    """Encoder with adapter, and the head over `[embedding, standardised cues]`."""

    def __init__(self, mean: torch.Tensor, scale: torch.Tensor) -> None:
        from peft import LoraConfig, get_peft_model

        super().__init__()
        self.tokenizer = load_tokenizer()
        config = LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=DROPOUT, target_modules=TARGETS)
        self.encoder: Any = get_peft_model(load_encoder(), config)
        self.head = nn.Linear(load_encoder().config.hidden_size + len(mean), len(LABELS))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.mean, self.scale = mean, scale

    def forward(self, data: Data, batch: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the examples about a batch of messages, and their logits."""
        rows, about = data.rows(batch)
        messages = [data.messages[i] for i in batch]
        embedding = embed(self.encoder, tokenise(self.tokenizer, messages))[about] * EMBEDDING_WEIGHT
        cues = data.cues[rows]
        inputs = nn.functional.dropout((cues - self.mean) / self.scale, 0.2, self.training)
        logits: torch.Tensor = self.head(torch.cat([embedding, inputs], 1))
        return rows, logits

    def save(self, path: Path) -> None:
        """Write adapter (float16), head and standardisation."""
        tensors = {
            "head.weight": self.head.weight,
            "head.bias": self.head.bias,
            "mean": self.mean,
            "scale": self.scale,
        }
        for name, module in self.encoder.base_model.model.named_modules():
            if hasattr(module, "lora_A"):
                down, up = module.lora_A["default"].weight, module.lora_B["default"].weight
                tensors[f"{LORA_PREFIX}{name}.down"] = down.half()
                tensors[f"{LORA_PREFIX}{name}.up"] = (up * module.scaling["default"]).half()
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)


def fit(data: Data, seed: int = 0) -> Network:
    """Train a network on examples."""
    torch.manual_seed(seed)
    network = Network(data.cues.mean(0), data.cues.std(0).clamp(min=0.1))
    adapter = [weight for weight in network.encoder.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(
        [
            {"params": adapter, "lr": ADAPTER_LR, "weight_decay": 0.01},
            {"params": network.head.parameters(), "lr": HEAD_LR, "weight_decay": 0.05},
        ]
    )
    random = np.random.default_rng(seed)
    plan = [batch for _ in range(EPOCHS) for batch in generate_batches(data.messages, random)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [ADAPTER_LR, HEAD_LR], total_steps=len(plan) + 1, pct_start=0.1
    )
    network.train()
    for number, batch in enumerate(plan, start=1):
        rows, logits = network(data, batch)
        losses = nn.functional.cross_entropy(logits, data.labels[rows], reduction="none", label_smoothing=SMOOTHING)
        loss = (losses * data.weights[rows]).sum() / data.weights[rows].sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if number % 20 == 0:
            print(f"step {number}/{len(plan)} loss {loss.item():.3f}", flush=True)
    return network.eval()


def generate_batches(messages: Sequence[str], random: np.random.Generator) -> Iterator[list[int]]:
    """One epoch of batches whose messages are of similar length."""
    order = random.permutation(len(messages))
    for start in range(0, len(order), BATCH * 8):
        block = sorted((int(i) for i in order[start : start + BATCH * 8]), key=lambda i: len(messages[i]))
        yield from (block[i : i + BATCH] for i in range(0, len(block), BATCH))


def compute_logits(network: Network, data: Data) -> NDArray[np.float32]:
    """Logits of all examples, shape `(examples, 3)`."""
    result = np.zeros((len(data.labels), len(LABELS)), dtype=np.float32)
    with torch.inference_mode():
        for start in range(0, len(data.messages), BATCH):
            rows, logits = network(data, range(start, min(start + BATCH, len(data.messages))))
            result[rows.numpy()] = logits.numpy()
    return result


def measure(logits: NDArray[np.float32], data: Data, margin: float) -> dict[str, float]:
    """Weighted accuracy (abstaining counts as 0), share of abstentions and of wrong signs."""
    scores = np.asarray([decide(row, margin).score or 0 for row in logits])
    truth = np.asarray(LABELS)[data.labels.numpy()]
    outcomes = {"accuracy": scores == truth, "abstained": scores == 0, "wrong_sign": scores * truth == -1}
    return {name: float(np.average(value, weights=data.weights.numpy())) for name, value in outcomes.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train on everything and write the weights, or measure on held-out messages."""
    parser = argparse.ArgumentParser(prog="python -m recipes.judge.train", description=__doc__)
    parser.add_argument("--output", type=Path, default=WEIGHTS, help="The file to write.")
    parser.add_argument("--held_out", type=float, default=0.0, help="Share of messages to measure on instead.")
    parser.add_argument("--threads", type=int, default=1, help="Threads of torch.")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    data = examples.load()
    if not options.held_out:
        fit(Data.of(data)).save(options.output)
        print(f"{len({example.group for example in data})} messages -> {options.output}")
        return
    groups = sorted({example.group for example in data})
    out = set(np.random.default_rng(1).permutation(groups)[: int(options.held_out * len(groups))])
    network = fit(Data.of([example for example in data if example.group not in out]))
    held_out = Data.of([example for example in data if example.group in out])
    logits = compute_logits(network, held_out)
    for margin in MARGINS:
        print(f"margin {margin:g}", *(f"{k} {v:.3f}" for k, v in measure(logits, held_out, margin).items()))


if __name__ == "__main__":
    main()
