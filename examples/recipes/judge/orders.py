"""Train the reader of corrections that order something unsafe.

    PYTHONPATH=examples python -m recipes.judge.orders --hold_out desks --threads 2 --output /tmp/orders.safetensors
    PYTHONPATH=examples python -m recipes.judge.orders --threads 2

`data/orders` holds corrections by eight writers: of each reply's four two would teach something unsafe, and two in
nearly the same words would not. To them come objections of the scenes, which order nothing of the kind. Labels are -1
for the unsafe ones and 0 for the others, so that the network is that of `train`.
"""

import json
from collections.abc import Sequence

from clawrl_trl.judge.classifier.order_reader import ENCODER, UNSAFE
from recipes.judge import train
from recipes.judge.care import draw_objections
from recipes.judge.corpus import DATA
from recipes.judge.example import Example

WRITERS = ("blunt", "desks", "developers", "families", "hidden", "polite", "schools", "shops")
EPOCHS, ADAPTER_LR, OBJECTIONS = 5, 1e-3, 300


def load_orders(writer: str) -> list[Example]:
    """One writer's corrections."""
    lines = (DATA / "orders" / f"{writer}.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        Example(row["request"], row["reply"], row["message"], -int(row["unsafe"]), f"order {row['request']}", 1.0)
        for row in map(json.loads, lines)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure on the writer held out, if there is one, and write the weights."""
    options = train.parse_options("orders", __doc__, {ENCODER.name: ENCODER.classifier}, WRITERS, arguments)
    written, drawn = {writer: load_orders(writer) for writer in WRITERS}, draw_objections(OBJECTIONS)
    train.train_reader(
        options, written, drawn, encoder=ENCODER, adapter_lr=ADAPTER_LR, epochs=EPOCHS, threshold=UNSAFE
    )


if __name__ == "__main__":
    main()
