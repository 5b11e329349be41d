"""Train the reader of lessons, a head over the language model's embedding.

    PYTHONPATH=examples python -m recipes.judge.lessons --hold_out voices --threads 2 --output /tmp/lessons.safetensors
    PYTHONPATH=examples python -m recipes.judge.lessons --threads 2

`data/lessons` holds what owners said after replies, by four writers: half of it teaches how the reply should have
been, half reports, pastes, mocks or gives up, most of it in near-twins after the same reply. The head is a logistic
regression over the embedding as the shipped classifier's adapter makes it: train it anew after that adapter.
"""

import json
from collections.abc import Sequence

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from clawrl_trl.judge.classifier.adapters import load_adapted
from clawrl_trl.judge.classifier.encoders import ENCODERS, QWEN
from clawrl_trl.judge.classifier.lesson_reader import LEAST_LESSON, WEIGHTS
from clawrl_trl.judge.classifier.reader import EMBEDDING_WEIGHT, embed_texts
from recipes.judge import train
from recipes.judge.corpus import DATA

WRITERS = ("home", "office", "voices", "work")
BATCH, PENALTY, STEPS = 24, 0.5, 100
"""Texts embedded at once, what the squares of the head's weights add to the summed loss, and steps to fit it."""


def load_lessons(writer: str) -> tuple[list[tuple[str, str, str]], torch.Tensor]:
    """One writer's texts (request, reply, message), and 1 where there is a lesson, shape `(n,)`."""
    lines = (DATA / "lessons" / f"{writer}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    texts = [(row["request"], row["reply"], row["message"]) for row in rows]
    return texts, torch.tensor([float(row["lesson"]) for row in rows])


@torch.no_grad()
def embed(texts: Sequence[tuple[str, str, str]]) -> torch.Tensor:
    """The embeddings that the classifier reads by, shape `(n, hidden size)`."""
    limits = ENCODERS[QWEN]
    tokenizer, encoder = limits.load_tokenizer(), load_adapted(limits, load_file(limits.classifier))
    parts = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    return torch.cat([embed_texts(encoder, tokenizer, part, limits) for part in parts]) * EMBEDDING_WEIGHT


def fit(inputs: torch.Tensor, lessons: torch.Tensor) -> nn.Linear:
    """The logistic regression of lessons, 0 or 1, on embeddings."""
    head = nn.Linear(inputs.shape[1], 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=STEPS, line_search_fn="strong_wolfe")

    def compute_loss() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(head(inputs)[:, 0], lessons, reduction="sum")
        loss = loss + PENALTY * head.weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(compute_loss)  # type: ignore[no-untyped-call]
    return head


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure on the writer held out, if there is one, and write the head."""
    options = train.parse_options("lessons", __doc__, {QWEN: WEIGHTS}, WRITERS, arguments)
    loaded = {writer: load_lessons(writer) for writer in WRITERS}
    inputs = embed([text for texts, _ in loaded.values() for text in texts])
    lessons = torch.cat([labels for _, labels in loaded.values()])
    is_held = torch.cat([torch.full((len(labels),), name == options.hold_out) for name, (_, labels) in loaded.items()])
    head = fit(inputs[~is_held], lessons[~is_held])
    save_file({name: tensor.detach().contiguous() for name, tensor in head.state_dict().items()}, options.output)
    if options.hold_out:
        found = head(inputs[is_held])[:, 0].sigmoid() >= LEAST_LESSON
        taught = lessons[is_held].bool()
        shares = found[taught].float().mean(), found[~taught].float().mean()
        print("held out {}: {:.3f} of those with a lesson, {:.3f} of the others".format(options.hold_out, *shares))


if __name__ == "__main__":
    main()
