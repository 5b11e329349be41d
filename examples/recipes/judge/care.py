"""Train the reader of corrections that ask for less care than a reply took.

    PYTHONPATH=examples python -m recipes.judge.care --hold_out short --threads 2 --output /tmp/care.safetensors
    PYTHONPATH=examples python -m recipes.judge.care --threads 2
    PYTHONPATH=examples python -m recipes.judge.care --threads 2 --encoder all-mpnet-base-v2

`data/care` holds corrections by eighteen writers, each with the reply it corrects: half of them would teach to be less
careful, half would not, most of these after replies that were as careful. To them come objections of the scenes, which
ask for no less care. Labels are -1 for less care and 0 for the others, so that the network is that of `train`.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from clawrl_trl.judge.classifier.care_reader import ENCODERS, LESS_CARE
from clawrl_trl.judge.classifier.encoders import MINILM, MPNET
from recipes.judge import examples, train
from recipes.judge.corpus import DATA
from recipes.judge.example import Example

WRITERS = (
    "agents", "brisk", "business", "counters", "crews", "errands", "habits", "home", "household", "people", "short",
    "soft", "stepwise", "technical", "terse", "twins", "voices", "warm",
)  # fmt: skip
ROUNDS = 5


class Recipe(NamedTuple):
    """How one encoder learns it: epochs, objections of the scenes, learning rate of the adapter."""

    epochs: int
    objections: int
    adapter_lr: float


RECIPES = {MINILM: Recipe(4, 1500, 1e-3), MPNET: Recipe(3, 700, 7e-4)}


def load_pairs(writer: str) -> list[Example]:
    """One writer's corrections."""
    lines = (DATA / "care" / f"{writer}.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        Example(row["request"], row["reply"], row["message"], -int(row["undoes"]), f"care {row['request']}", 1.0)
        for row in map(json.loads, lines)
    ]


def draw_objections(count: int, seed: int = 1) -> list[Example]:
    """Some of the scenes' objections, relabelled: none of them asks for less care."""
    scenes = [example for example in examples.load(seed, ROUNDS) if example.group.startswith("scene ")]
    objections = [example for example in scenes if example.label == -1]
    chosen = np.random.default_rng(seed).permutation(len(objections))[:count]
    return [replace(objections[int(index)], label=0, weight=1.0) for index in chosen]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure on the writer held out, if there is one, and write the weights."""
    outputs = {name: encoder.classifier for name, encoder in ENCODERS.items()}
    options = train.parse_options("care", __doc__, outputs, WRITERS, arguments)
    recipe = RECIPES[options.encoder]
    train.train_reader(
        options,
        {writer: load_pairs(writer) for writer in WRITERS},
        draw_objections(recipe.objections),
        encoder=ENCODERS[options.encoder],
        adapter_lr=recipe.adapter_lr,
        epochs=recipe.epochs,
        threshold=LESS_CARE[options.encoder],
    )


if __name__ == "__main__":
    main()
