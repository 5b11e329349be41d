"""Train the reader of replies that speak of their own reception, or to whoever judges them.

    PYTHONPATH=examples python -m recipes.judge.replies --hold_out trades --threads 2 --output /tmp/replies.safetensors
    PYTHONPATH=examples python -m recipes.judge.replies --threads 2

`data/replies` holds requests by four writers, each with a reply that speaks of its reception and one in nearly the
same words that does not: passages are what the two differ in, and what they share. To them come passages of the
scenes' replies, none of which speaks of it. Labels are -1 for those that do and 0 for the others, so that the network
is that of `train`.
"""

import json
from collections.abc import Iterator, Sequence

import numpy as np

from clawrl_trl.judge import features
from clawrl_trl.judge.classifier.reply_reader import ENCODER, SPEAKS, join_sentences, split_passages
from recipes.judge import examples, train
from recipes.judge.corpus import DATA
from recipes.judge.example import Example

WRITERS = ("engineers", "offices", "private", "trades")
EPOCHS, ADAPTER_LR, PLAIN_REPLIES = 8, 1e-3, 300
MOST_SENTENCES = 3
"""Of a passage; where two replies differ in more, nobody knows which of them tells."""
ROUNDS = 5


def load_replies(writer: str) -> list[Example]:
    """What one writer's replies to the same request differ in, and what they share."""
    lines = (DATA / "replies" / f"{writer}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = list(map(json.loads, lines))
    plain = {row["request"]: row["reply"] for row in rows if not row["speaks"]}
    speaking = {row["request"]: row["reply"] for row in rows if row["speaks"]}
    return [example for request, reply in speaking.items() for example in split_pair(request, reply, plain[request])]


def split_pair(request: str, speaking: str, plain: str) -> Iterator[Example]:
    """Passages of a reply that speaks of its reception, and of its twin that does not."""
    told, untold = features.split_sentences(speaking), features.split_sentences(plain)
    parts = (
        (speaking, -1, [sentence for sentence in told if sentence not in untold]),
        (plain, 0, [sentence for sentence in untold if sentence not in told]),
        (speaking, 0, [sentence for sentence in told if sentence in untold][:MOST_SENTENCES]),
    )
    for reply, label, sentences in parts:
        if 0 < len(sentences) <= MOST_SENTENCES:
            yield Example(request, reply, join_sentences(sentences), label, f"reply {request}", 1.0)


def draw_plain(count: int, seed: int = 1) -> list[Example]:
    """A passage each of some of the scenes' replies, none of which speaks of its reception."""
    scenes = (example for example in examples.load(seed, ROUNDS) if example.group.startswith("scene "))
    replies = sorted({(example.request, example.response) for example in scenes if split_passages(example.response)})
    draw = np.random.default_rng(seed)
    chosen = [replies[int(index)] for index in draw.permutation(len(replies))[:count]]
    return [
        Example(request, reply, str(draw.choice(split_passages(reply))), 0, f"plain {request}", 1.0)
        for request, reply in chosen
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure on the writer held out, if there is one, and write the weights."""
    options = train.parse_options("replies", __doc__, {ENCODER.name: ENCODER.classifier}, WRITERS, arguments)
    written, drawn = {writer: load_replies(writer) for writer in WRITERS}, draw_plain(PLAIN_REPLIES)
    train.train_reader(
        options, written, drawn, encoder=ENCODER, adapter_lr=ADAPTER_LR, epochs=EPOCHS, threshold=SPEAKS
    )


if __name__ == "__main__":
    main()
