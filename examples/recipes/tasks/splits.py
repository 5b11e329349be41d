"""Splits of generated tasks: in each some of every step of difficulty, whose makers take turns, and no task twice."""

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from clawrl_trl.messages import Json

SEED = 4
SPLITS = {"train": 40, "heldout": 20}
"""Tasks of each step in each split."""
TRIES = 1000

Maker = Callable[[random.Random], Json]
FirstFields = Callable[[str, Maker], Json]


def make_splits(
    steps: Mapping[int, Sequence[Maker]],
    identify: Callable[[Json], str],
    make_first_fields: FirstFields = lambda name, maker: {"id": name},
    *,
    seed: int = SEED,
    splits: Mapping[str, int] = SPLITS,
) -> dict[str, list[Json]]:
    """The tasks of each split.

    Args:
        steps (`Mapping`): What makes the tasks of each step.
        identify (`Callable`): What two tasks have in common that are one and the same.
        make_first_fields (`Callable`, *optional*): A task's first fields, from its name and maker. Default: `id`
            alone.
        seed (`int`, *optional*, defaults to `4`): The same seed gives the same tasks.
        splits (`Mapping`, *optional*, defaults to [`SPLITS`]): Tasks of each step in each split.

    Raises:
        ValueError: If a maker can't make as many different tasks.
    """
    rng = random.Random(seed)
    identities: set[str] = set()

    def make_new(maker: Maker) -> Json:
        for _ in range(TRIES):
            task = maker(rng)
            if identify(task) not in identities:
                identities.add(identify(task))
                return task
        raise ValueError(f"{maker.__name__} can't make as many different tasks as are asked for")

    tasks_by_split: dict[str, list[Json]] = {}
    for split, count in splits.items():
        rows = tasks_by_split[split] = []
        for step, makers in steps.items():
            for place in range(count):
                maker = makers[place % len(makers)]
                first_fields = make_first_fields(f"{split}-{step}-{place:02d}", maker)
                rows.append({**first_fields, "difficulty": step, **make_new(maker)})
    return tasks_by_split


def read_folder(description: str | None) -> Path:
    """Read the folder to write to from the command line of a generator.

    Args:
        description (`str`, *optional*): The generator's docstring; `--help` shows its first paragraph.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to write a file of tasks for each split")
    folder: Path = parser.parse_args().folder
    return folder


def write_splits(folder: Path, splits: Mapping[str, Sequence[Json]]) -> None:
    """Write a file of JSON lines for each split."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
