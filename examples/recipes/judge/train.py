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
A language model reads all messages after one reply at once, which takes a quarter of the time.
"""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM, Encoder
from clawrl_trl.judge.classifier.model import LABELS, Margins, decide
from recipes.judge import examples, packs
from recipes.judge.example import Example
from recipes.judge.network import RANK, Network, Rows, find_rank

BATCH, ADAPTER_LR, HEAD_LR, SMOOTHING = 32, 5e-4, 5e-3, 0.05
CHAT_ADAPTER_LR, CHAT_HEAD_LR = 3e-4, 2e-3
"""Learning rates of a language model."""
ROUNDS = 10
HELD_OUT, HELD_OUT_SEED = 1 / 12, 50
MARGINS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def fit(
    drawn: Sequence[Example],
    seed: int = 0,
    encoder: Encoder = ENCODERS[MINILM],
    *,
    with_context: bool = True,
    start: Path | None = None,
    rank: int = RANK,
    adapter_lr: float | None = None,
    epochs: int = 1,
    trainable: str = "",
) -> Network:
    """Train a network on some examples, each once an epoch.

    Args:
        drawn: The examples.
        seed: Of a new adapter and of the order.
        encoder: What it reads with.
        with_context: Whether it reads request and reply beside the message.
        start: Weights to go on from.
        rank: That of a new adapter.
        adapter_lr: The adapter's learning rate. Default: by encoder.
        epochs: Passes over the examples.
        trainable: Pattern in the names of the adapter's parameters that are trained; the others stay. Default: all.
    """
    torch.manual_seed(seed)
    network = Network(Rows.of(drawn).cues, encoder, rank if start is None else find_rank(start))
    if start is not None:
        network.load(start)
    for name, parameter in network.encoder.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and re.search(trainable, name) is not None)
    usual_lr, head_lr = (CHAT_ADAPTER_LR, CHAT_HEAD_LR) if encoder.is_chat_model else (ADAPTER_LR, HEAD_LR)
    adapter_lr = adapter_lr or usual_lr
    adapter = [parameter for parameter in network.encoder.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        [
            {"params": adapter, "lr": adapter_lr, "weight_decay": 0.01},
            {"params": network.head.parameters(), "lr": head_lr, "weight_decay": 0.05},
        ]
    )
    random = np.random.default_rng(seed)
    is_packed = encoder.is_chat_model and with_context
    plan: list[list[Example]] = []
    for _ in range(epochs):
        plan += packs.draw_packed_batches(drawn, random) if is_packed else draw_batches(drawn, random, with_context)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [adapter_lr, head_lr], total_steps=len(plan) + 1, pct_start=0.05, anneal_strategy="linear"
    )
    network.train()
    for number, batch in enumerate(plan, start=1):
        rows = Rows.of(batch, with_context)
        losses = nn.functional.cross_entropy(network(rows), rows.targets, reduction="none", label_smoothing=SMOOTHING)
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


def draw_examples(seed: int, left_out: frozenset[str], shares: Sequence[float]) -> list[Example]:
    """One pass's examples, but those of the groups left out: a share of each round's, message by message."""
    rounds = find_rounds(seed, len(shares))
    random = np.random.default_rng(seed)
    drawn = (example for example in examples.load(seed, len(shares)) if example.group not in left_out)
    return [example for example in drawn if random.random() < shares[rounds[example.group] - 1]]


def draw_chats(seed: int, left_out: frozenset[str], shares: Sequence[float]) -> list[Example]:
    """The same for a language model: with a reply all messages that may follow it, or none."""
    rounds = find_rounds(seed, len(shares))
    random = np.random.default_rng(seed)
    drawn: dict[tuple[str, str], bool] = {}
    chosen = []
    for example in examples.load(seed, len(shares)):
        context, share = (example.request, example.response), shares[rounds[example.group] - 1]
        if example.group not in left_out and drawn.setdefault(context, random.random() < share):
            chosen.append(example)
    return chosen


def find_rounds(seed: int, rounds: int) -> dict[str, int]:
    """The round of each group that a seed draws."""
    found: dict[str, int] = {}
    for number in range(1, rounds + 1):
        found |= {example.group: number for example in examples.load(seed, number) if example.group not in found}
    return found


def measure_known(network: Network, held: Sequence[Example], threshold: float) -> tuple[float, float]:
    """Share of the examples of label -1 that get at least a probability of it, and of the others."""
    found = torch.tensor(compute_logits(network, held)).softmax(1)[:, 0].numpy() >= threshold
    asked = np.array([example.label == -1 for example in held])
    return float(found[asked].mean()), float(found[~asked].mean())


def train_reader(
    options: argparse.Namespace,
    written: Mapping[str, Sequence[Example]],
    drawn: Sequence[Example],
    *,
    encoder: Encoder,
    adapter_lr: float,
    epochs: int,
    threshold: float,
) -> None:
    """Train a reader that looks for label -1, write it, and measure it on the writer held out, if there is one.

    Args:
        options: Those of `parse_options`.
        written: Each writer's examples.
        drawn: Examples that come to them.
        encoder: What it reads with.
        adapter_lr: Learning rate of its adapter.
        epochs: Passes over the examples.
        threshold: Least probability of -1 with which it has found one.
    """
    taught = [example for writer, rows in written.items() if writer != options.hold_out for example in rows]
    network = fit([*taught, *drawn], encoder=encoder, adapter_lr=adapter_lr, epochs=epochs)
    network.save(options.output, temperature=1.0)
    if options.hold_out:
        found, wrongly = measure_known(network, written[options.hold_out], threshold)
        print(f"held out {options.hold_out}: {found:.3f} of those that it looks for, {wrongly:.3f} of the others")


def parse_options(
    recipe: str,
    description: str | None,
    outputs: Mapping[str, Path],
    writers: Sequence[str],
    arguments: Sequence[str] | None,
    newest: Sequence[str] = (),
) -> argparse.Namespace:
    """The options of a recipe whose data are by several writers, one of whom may be held out; sets torch's threads.

    Args:
        recipe: Its module's name.
        description: What it does.
        outputs: The file to write for each encoder that it knows, the default one first.
        writers: Who may be held out.
        arguments: Those of the command line; `None` takes the process's.
        newest: The writers with whom alone what ships may go on.
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
    parser.set_defaults(go_on=False)
    if newest:
        parser.add_argument(
            "--go_on", action="store_true", help=f"Go on from what ships, with {', '.join(newest)} alone."
        )
    options = parser.parse_args(arguments)
    options.output = options.output or outputs[options.encoder]
    torch.set_num_threads(options.threads)
    return options


def save_calibrated(network: Network, left_out: frozenset[str], rounds: int, output: Path) -> None:
    """Fit the temperature to the groups left out, write the weights and print how the network does on these groups."""
    held = [example for example in examples.load(HELD_OUT_SEED, rounds) if example.group in left_out]
    logits, labels = compute_logits(network, held), [example.label for example in held]
    temperature = fit_temperature(logits, np.asarray([LABELS.index(label) for label in labels]))
    network.save(output, temperature)
    print(f"{len(held)} held-out examples of {len(left_out)} groups; temperature {temperature:.2f}")
    for margin in MARGINS:
        shares = measure(logits, labels, margin, temperature)
        print(f"margin {margin:g}", *(f"{name} {share:.3f}" for name, share in shares.items()))


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
    parser.add_argument("--shares", type=float, nargs="+", help="Share of each round instead, the first round first.")
    parser.add_argument("--alone", action="store_true", help="Read messages without request and reply.")
    parser.add_argument("--seed", type=int, default=0, help="Of contexts, fillers and order.")
    parser.add_argument("--rate", type=float, help="Learning rate of the adapter. Default: by encoder.")
    parser.add_argument("--rank", type=int, default=RANK, help="Rank of a new adapter.")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    encoder = ENCODERS[options.encoder]
    shares = options.shares or [*[options.earlier] * (options.round - 1), 1.0]
    left_out = split_groups(len(shares))
    draw = draw_chats if encoder.is_chat_model and not options.alone else draw_examples
    drawn = draw(options.seed, left_out, shares)
    network = fit(
        drawn,
        options.seed,
        encoder,
        with_context=not options.alone,
        start=options.start,
        rank=options.rank,
        adapter_lr=options.rate,
    )
    save_calibrated(network, left_out, len(shares), options.output or encoder.classifier)


if __name__ == "__main__":
    main()
