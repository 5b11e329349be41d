"""Train the rules judge's classifier, one pass over the labelled messages of `examples` at a time.

    PYTHONPATH=examples python -m recipes.judge.train --alone --output first.safetensors --threads 2
    PYTHONPATH=examples python -m recipes.judge.train --start first.safetensors --seed 1 --threads 2

A low-rank adapter on the sentence encoder (LoRA, https://huggingface.co/papers/2106.09685), which reads the message
with reply and request behind it, and a linear head over its embedding and the cues, are fitted by cross-entropy with
label smoothing. A first pass that reads messages `--alone` is four times as fast as one with their contexts. A seed
draws the messages' contexts and the skeletons' fillers. A twelfth of the groups (scenes, skeletons, messages) is never
trained on, whatever the seed: the temperature is fitted to it, and how the classifier does on it is printed for
several margins, of which those in `model` were chosen. The same machine and seed give the same file.

`--round N` takes the scenes of the rounds up to N; a round's scenes were written after the training on those before.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import nn

from clawrl_trl.judge import features
from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM, Encoder
from clawrl_trl.judge.classifier.model import LABELS, Margins, decide
from clawrl_trl.judge.classifier.reader import (
    EMBEDDING_WEIGHT,
    LORA_PREFIX,
    embed,
    tokenise,
)
from recipes.judge import examples
from recipes.judge.example import Example
from recipes.precision import has_bfloat16_products

RANK, CUE_DROPOUT = 16, 0.2
BATCH, ADAPTER_LR, HEAD_LR, SMOOTHING = 32, 5e-4, 5e-3, 0.05
ROUNDS = 8
HELD_OUT, HELD_OUT_SEED = 1 / 12, 50
MARGINS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class Rows:
    """Some examples as arrays: cues `(n, FEATURE_COUNT)`, labels as positions in `LABELS`, weights `(n,)`."""

    texts: list[tuple[str, str, str]]
    cues: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, batch: Sequence[Example], with_context: bool = True) -> "Rows":
        """The rows of some examples; the cues know the context in any case."""
        return cls(
            [example.texts if with_context else ("", "", example.message) for example in batch],
            torch.tensor(np.stack([features.compute_features(*example.texts) for example in batch])),
            torch.tensor([LABELS.index(example.label) for example in batch]),
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
            batch = tokenise(self.tokenizer, rows.texts, self.limits)
            embedding = embed(self.encoder, batch).float() * EMBEDDING_WEIGHT
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


def fit(
    drawn: Sequence[Example],
    seed: int = 0,
    encoder: Encoder = ENCODERS[MINILM],
    *,
    with_context: bool = True,
    start: Path | None = None,
    rank: int = RANK,
    adapter_lr: float = ADAPTER_LR,
) -> Network:
    """Train a network on some examples, each once; `start` are weights to go on from."""
    torch.manual_seed(seed)
    network = Network(Rows.of(drawn).cues, encoder, rank)
    if start is not None:
        network.load(start)
    adapter = [parameter for parameter in network.encoder.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        [
            {"params": adapter, "lr": adapter_lr, "weight_decay": 0.01},
            {"params": network.head.parameters(), "lr": HEAD_LR, "weight_decay": 0.05},
        ]
    )
    plan = list(draw_batches(drawn, np.random.default_rng(seed), with_context))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [adapter_lr, HEAD_LR], total_steps=len(plan) + 1, pct_start=0.05, anneal_strategy="linear"
    )
    network.train()
    for number, batch in enumerate(plan, start=1):
        rows = Rows.of(batch, with_context)
        losses = nn.functional.cross_entropy(network(rows), rows.labels, reduction="none", label_smoothing=SMOOTHING)
        loss = (losses * rows.weights).sum() / rows.weights.sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(adapter, 1.0)
        optimizer.step()
        schedule.step()
        if number % 50 == 0:
            print(f"step {number}/{len(plan)} loss {loss.item():.3f}", flush=True)
    return network.eval()


def draw_batches(
    epoch: Sequence[Example], random: np.random.Generator, with_context: bool = True
) -> Iterator[list[Example]]:
    """One epoch of batches whose texts are of similar length."""
    order = random.permutation(len(epoch))
    for start in range(0, len(order), BATCH * 8):
        block = [epoch[int(i)] for i in order[start : start + BATCH * 8]]
        block.sort(key=lambda example: _count_characters(example, with_context))
        batches = [block[i : i + BATCH] for i in range(0, len(block), BATCH)]
        yield from (batches[int(i)] for i in random.permutation(len(batches)))


def _count_characters(example: Example, with_context: bool) -> int:
    # The encoder reads only so much of each.
    lengths = ENCODERS[MINILM]
    request, reply = (lengths.request_tokens, lengths.reply_tokens) if with_context else (0, 0)
    limits = (request, reply, lengths.message_tokens)
    return sum(min(len(text), 5 * limit) for text, limit in zip(example.texts, limits, strict=True))


def compute_logits(network: Network, held: Sequence[Example]) -> NDArray[np.float32]:
    """Logits of examples, shape `(n, 3)`."""
    with torch.inference_mode():
        parts = [network(Rows.of(held[start : start + BATCH])) for start in range(0, len(held), BATCH)]
    result: NDArray[np.float32] = torch.cat(parts).numpy()
    return result


def fit_temperature(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """The temperature with the least cross-entropy, of a grid from 0.5 to 4."""

    def compute_loss(temperature: float) -> float:
        return float(nn.functional.cross_entropy(torch.tensor(logits / temperature), torch.tensor(labels)))

    return min((float(step) for step in np.arange(0.5, 4.0, 0.05)), key=compute_loss)


def measure(logits: NDArray[np.float32], labels: Sequence[int], margin: float, temperature: float) -> dict[str, float]:
    """Share right of the decided, share of abstentions, and of wrong signs (a sign where none was meant is one)."""
    margins = Margins(margin, max(margin, Margins.objection))
    scores = [decide(row / temperature, margins).score for row in logits]
    pairs = [(score, label) for score, label in zip(scores, labels, strict=True) if score is not None]
    return {
        "right": sum(score == label for score, label in pairs) / max(1, len(pairs)),
        "abstained": 1 - len(pairs) / len(labels),
        "wrong sign": sum(score not in (0, label) for score, label in pairs) / len(labels),
    }


def split_groups(rounds: int = 1) -> frozenset[str]:
    """The groups that are never trained on, drawn of each round apart."""
    known: set[str] = set()
    left_out: frozenset[str] = frozenset()
    for number in range(1, rounds + 1):
        groups = {example.group for example in examples.load(rounds=number)}
        left_out |= _draw_groups(groups - known)
        known |= groups
    return left_out


def _draw_groups(groups: set[str]) -> frozenset[str]:
    drawn = np.random.default_rng(1).permutation(sorted(groups))[: int(HELD_OUT * len(groups))]
    return frozenset(drawn.tolist())


def draw_examples(seed: int, rounds: int, left_out: frozenset[str], earlier: float = 1.0) -> list[Example]:
    """One pass's examples, but those of the groups left out: all of the newest round, of the others a share."""
    known = {example.group for example in examples.load(rounds=rounds - 1)} if earlier < 1 else set()
    random = np.random.default_rng(seed)
    drawn = (example for example in examples.load(seed, rounds) if example.group not in left_out)
    return [example for example in drawn if example.group not in known or random.random() < earlier]


def parse_options(
    recipe: str,
    description: str | None,
    outputs: Mapping[str, Path],
    writers: Sequence[str],
    arguments: Sequence[str] | None,
) -> argparse.Namespace:
    """The options of a recipe whose data are by several writers, one of whom may be held out; sets torch's threads.

    Args:
        recipe: Its module's name.
        description: What it does.
        outputs: The file to write for each encoder that it knows, the default one first.
        writers: Who may be held out.
        arguments: Those of the command line; `None` takes the process's.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m recipes.judge.{recipe}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if len(outputs) > 1:
        parser.add_argument("--encoder", default=next(iter(outputs)), choices=tuple(outputs), help="It reads with it.")
    else:
        parser.set_defaults(encoder=next(iter(outputs)))
    parser.add_argument("--output", type=Path, help="The file to write. Default: the one that ships.")
    parser.add_argument("--hold_out", choices=writers, help="The writer to measure on. Default: train on all.")
    parser.add_argument("--threads", type=int, default=1, help="Threads of torch.")
    options = parser.parse_args(arguments)
    options.output = options.output or outputs[options.encoder]
    torch.set_num_threads(options.threads)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure on the held-out groups and write the weights."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.judge.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoder", default=MINILM, choices=tuple(ENCODERS), help="The encoder to read with.")
    parser.add_argument("--output", type=Path, help="The file to write. Default: the one that ships.")
    parser.add_argument("--threads", type=int, default=1, help="Threads of torch.")
    parser.add_argument("--start", type=Path, help="Weights to go on from.")
    parser.add_argument("--round", type=int, default=ROUNDS, choices=range(1, ROUNDS + 1), help="The newest scenes.")
    parser.add_argument("--earlier", type=float, default=1.0, help="Share of the earlier rounds' examples to take.")
    parser.add_argument("--alone", action="store_true", help="Read messages without request and reply.")
    parser.add_argument("--seed", type=int, default=0, help="Of contexts, fillers and order.")
    parser.add_argument("--rank", type=int, default=RANK, help="Rank of the adapter.")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    encoder = ENCODERS[options.encoder]
    left_out = split_groups(options.round)
    drawn = draw_examples(options.seed, options.round, left_out, options.earlier)
    network = fit(drawn, options.seed, encoder, with_context=not options.alone, start=options.start, rank=options.rank)
    held = [example for example in examples.load(HELD_OUT_SEED, options.round) if example.group in left_out]
    logits, labels = compute_logits(network, held), [example.label for example in held]
    temperature = fit_temperature(logits, np.asarray([LABELS.index(label) for label in labels]))
    network.save(options.output or encoder.classifier, temperature)
    print(f"{len(held)} held-out examples of {len(left_out)} groups; temperature {temperature:.2f}")
    for margin in MARGINS:
        shares = measure(logits, labels, margin, temperature)
        print(f"margin {margin:g}", *(f"{name} {share:.3f}" for name, share in shares.items()))


if __name__ == "__main__":
    main()
