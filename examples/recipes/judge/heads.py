"""Heads over the language model's embeddings, for the recipes of its readers.

Each is a logistic regression over the embedding of one layer, as the shipped classifier's adapter makes it: train them
anew after that adapter.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from clawrl_trl.judge.classifier.adapters import load_adapted
from clawrl_trl.judge.classifier.encoders import ENCODERS, QWEN
from clawrl_trl.judge.classifier.layer_head import LayerHead
from clawrl_trl.judge.classifier.reader import EMBEDDING_WEIGHT, embed_texts
from recipes.judge import train
from recipes.judge.corpus import DATA

BATCH, PENALTY, STEPS = 24, 0.5, 100
"""Texts embedded at once, what the squares of the weights' distances add to the summed loss, and steps to fit it."""

Row = Mapping[str, Any]
"""One message with its request, its reply and a label."""
Labelled = tuple[list[tuple[str, str, str]], torch.Tensor]
"""Texts (request, reply, message), and the answer of each, 0 or 1."""


def read_rows(folder: str, writer: str) -> list[Row]:
    """What one writer wrote."""
    lines = (DATA / folder / f"{writer}.jsonl").read_text(encoding="utf-8").splitlines()
    return list(map(json.loads, lines))


def label_rows(rows: Sequence[Row], is_yes: Callable[[Row], bool]) -> Labelled:
    """Their texts, with the answers."""
    texts = [(row["request"], row["reply"], row["message"]) for row in rows]
    return texts, torch.tensor([float(is_yes(row)) for row in rows])


@torch.no_grad()
def embed(texts: Sequence[tuple[str, str, str]], layer: int) -> torch.Tensor:
    """The embeddings of a layer of the language model's, shape `(n, hidden size)`."""
    limits = ENCODERS[QWEN]
    tokenizer, encoder = limits.load_tokenizer(), load_adapted(limits, load_file(limits.classifier))
    parts = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    return torch.cat([embed_texts(encoder, tokenizer, part, limits, (layer,))[0] for part in parts]) * EMBEDDING_WEIGHT


def fit(inputs: torch.Tensor, answers: torch.Tensor, start: Mapping[str, torch.Tensor] | None = None) -> nn.Linear:
    """The logistic regression of answers, 0 or 1, on embeddings.

    Args:
        inputs: Embeddings, shape `(n, hidden size)`.
        answers: Shape `(n,)`.
        start: Tensors of a head to go on from, from which the weights are kept near. Default: zeros.
    """
    head = nn.Linear(inputs.shape[1], 1)
    head.load_state_dict(start or {name: torch.zeros_like(tensor) for name, tensor in head.state_dict().items()})
    before = head.weight.detach().clone()
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=STEPS, line_search_fn="strong_wolfe")

    def compute_loss() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(head(inputs)[:, 0], answers, reduction="sum")
        loss = loss + PENALTY * (head.weight - before).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(compute_loss)  # type: ignore[no-untyped-call]
    return head


def run_recipe(
    recipe: str,
    description: str | None,
    head: LayerHead,
    loaded: Mapping[str, Labelled],
    threshold: float,
    arguments: Sequence[str] | None,
    newest: Sequence[str] = (),
) -> None:
    """Train a head, measure it on the writer held out, if there is one, and write it.

    Args:
        recipe: The recipe's module.
        description: What it does, for `--help`.
        head: The head that ships.
        loaded: Each writer's texts and answers.
        threshold: Least probability of a yes.
        arguments: Those of the command line; `None` takes the process's.
        newest: The writers with whom alone a head may go on.
    """
    options = train.parse_options(recipe, description, {QWEN: head.weights}, tuple(loaded), arguments, newest)
    start = load_file(head.weights) if options.go_on else None
    if options.go_on:
        loaded = {name: labelled for name, labelled in loaded.items() if name in (*newest, options.hold_out)}
    inputs = embed([text for texts, _ in loaded.values() for text in texts], head.layer)
    answers = torch.cat([labels for _, labels in loaded.values()])
    is_held = torch.cat([torch.full((len(labels),), name == options.hold_out) for name, (_, labels) in loaded.items()])
    fitted = fit(inputs[~is_held], answers[~is_held], start)
    save_file({name: tensor.detach().contiguous() for name, tensor in fitted.state_dict().items()}, options.output)
    if options.hold_out:
        found = fitted(inputs[is_held])[:, 0].sigmoid() >= threshold
        yes = answers[is_held].bool()
        shares = found[yes].float().mean(), found[~yes].float().mean()
        print("held out {}: {:.3f} of the yeses, {:.3f} of the noes".format(options.hold_out, *shares))
