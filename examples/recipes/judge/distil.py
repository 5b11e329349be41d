"""Teach the small encoder's classifier what the large one's finds (https://huggingface.co/papers/1503.02531).

    PYTHONPATH=examples python -m recipes.judge.distil --seed 5 --threads 2 --output first.safetensors
    PYTHONPATH=examples python -m recipes.judge.distil --seed 6 --threads 2 --start first.safetensors

It goes on from the weights that ship to read beside the large one, or from `--start`, over a share of each round's
examples, all messages that may follow a reply or none. What is learnt are the teacher's probabilities, and the label
with a weight of `LABEL`: where the label is a matter of taste, the teacher is unsure, and says how unsure. The mean of
two such passes ships.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM, MPNET, Encoder
from recipes.judge import train
from recipes.judge.example import Example
from recipes.judge.network import load_shipped

LABEL = 0.4
"""Weight of the label beside the teacher's probabilities."""
SHARES = (0.15, 0.25, 0.25, 0.3, 0.3, 0.6, 0.6, 0.6, 0.6, 0.6)
"""Of each round's examples."""
DRAWN_SEED, ADAPTER_LR = 77, 4e-4


def teach(drawn: Sequence[Example], teacher: Encoder) -> list[Example]:
    """Examples with the probabilities that a shipped classifier finds, mixed with their labels."""
    network, temperature = load_shipped(teacher)
    found = (torch.tensor(train.compute_logits(network, drawn)) / temperature).softmax(1)
    labels = torch.tensor([example.targets for example in drawn])
    mixed = (LABEL * labels + (1 - LABEL) * found).tolist()
    return [replace(example, probabilities=tuple(row)) for example, row in zip(drawn, mixed, strict=True)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Teach, measure on the held-out groups and write the weights."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.judge.distil",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    student = ENCODERS[MINILM]
    parser.add_argument("--start", type=Path, default=student.ensemble_classifier, help="Weights to go on from.")
    parser.add_argument("--output", type=Path, default=student.classifier, help="The file to write.")
    parser.add_argument(
        "--shares", type=float, nargs="+", default=SHARES, help="Share of each round, the first first."
    )
    parser.add_argument("--seed", type=int, default=5, help="Of the order.")
    parser.add_argument("--threads", type=int, default=1, help="Threads of torch.")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    left_out = train.split_groups(len(options.shares))
    drawn = teach(train.draw_chats(DRAWN_SEED, left_out, options.shares), ENCODERS[MPNET])
    network = train.fit(drawn, options.seed, student, start=options.start, adapter_lr=ADAPTER_LR)
    train.save_calibrated(network, left_out, len(options.shares), options.output)


if __name__ == "__main__":
    main()
