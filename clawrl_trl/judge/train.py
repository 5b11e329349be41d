"""Fit the head of the rules judge: `python -m clawrl_trl.judge.train`.

Multinomial logistic regression with an L2 penalty on the labelled messages of `training.json`; the penalty and the
margin under which the judge abstains are chosen by cross-validation on those messages alone (grouped by text, so
that a message paired with several contexts is never on both sides). The same input gives the same head.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from clawrl_trl.judge.classifier import HEAD, LABELS, Embedder, decide, features

TRAINING = Path(__file__).with_name("training.json")
CONTEXTS_PER_MESSAGE = 3
PENALTIES = (3e-3, 1e-2, 3e-2, 1e-1)
MARGINS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
WRONG_SIGN_LIMIT = 0.03
EMBEDDING_WEIGHT = 12.0

Array = NDArray[np.float32]


def examples(path: Path = TRAINING, seed: int = 0) -> tuple[list[tuple[str, str, str]], NDArray[np.int64], list[str]]:
    """`(request, response, message)` triples, labels as positions in `LABELS`, and the group (text) of each."""
    data = json.loads(path.read_text())
    contexts: dict[str, list[list[str]]] = data["contexts"]
    everywhere = [pair for pairs in contexts.values() for pair in pairs]
    random = np.random.default_rng(seed)
    triples, labels, groups = [], [], []
    for message in data["messages"]:
        pairs = contexts[message["context"]] if message["context"] != "general" else everywhere
        chosen = random.permutation(len(pairs))[:CONTEXTS_PER_MESSAGE]
        for index in chosen:
            request, response = pairs[int(index)]
            triples.append((request, response, message["text"]))
            labels.append(LABELS.index(message["label"]))
            groups.append(message["text"])
    return triples, np.asarray(labels), groups


def standardise(rows: Array) -> tuple[Array, Array]:
    """Mean and scale of the columns. Embedding columns share one scale, so that their geometry is kept."""
    mean = rows.mean(0)
    scale = np.maximum(rows.std(0), 0.1)
    scale[: 2 * 384] = 1.0 / EMBEDDING_WEIGHT
    return mean, scale


def fit(rows: Array, labels: NDArray[np.int64], weights: Array, penalty: float) -> tuple[Array, Array]:
    """Weight `(3, features)` and bias `(3,)` of the regularised maximum-likelihood head (L-BFGS, float64)."""
    x, y = torch.tensor(rows, dtype=torch.float64), torch.tensor(labels)
    w = torch.tensor(weights / weights.sum(), dtype=torch.float64)
    weight = torch.zeros(3, x.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        losses = torch.nn.functional.cross_entropy(x @ weight.T + bias, y, reduction="none")
        loss: torch.Tensor = (losses * w).sum() + penalty * weight.square().sum() / 2
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach().numpy().astype(np.float32), bias.detach().numpy().astype(np.float32)


def crossvalidate(
    rows: Array, labels: NDArray[np.int64], groups: Sequence[str], penalty: float, folds: int = 5
) -> Array:
    """Out-of-fold logits, shape `(len(rows), 3)`; all rows of a group are in one fold."""
    names = sorted(set(groups))
    order = np.random.default_rng(1).permutation(len(names))
    fold = {names[int(index)]: place % folds for place, index in enumerate(order)}
    where = np.asarray([fold[group] for group in groups])
    logits = np.zeros((len(rows), 3), dtype=np.float32)
    for number in range(folds):
        inside, outside = where != number, where == number
        mean, scale = standardise(rows[inside])
        weight, bias = fit((rows[inside] - mean) / scale, labels[inside], _weights(groups, inside), penalty)
        logits[outside] = (rows[outside] - mean) / scale @ weight.T + bias
    return logits


def _weights(groups: Sequence[str], inside: NDArray[np.bool_]) -> Array:
    count = {group: groups.count(group) for group in set(groups)}
    return np.asarray([1 / count[group] for group, one in zip(groups, inside, strict=True) if one], dtype=np.float32)


def measure(logits: Array, labels: NDArray[np.int64], margin: float) -> dict[str, float]:
    """Accuracy (abstaining counts as 0), share of abstentions and of wrong signs, all over all rows."""
    scores = np.asarray([decide(row, margin).score or 0 for row in logits])
    truth = np.asarray(LABELS)[labels]
    return {
        "accuracy": float((scores == truth).mean()),
        "abstained": float((scores == 0).mean()),
        "wrong_sign": float((scores * truth == -1).mean()),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Choose penalty and margin, fit on everything, write `head.npz`."""
    parser = argparse.ArgumentParser(prog="python -m clawrl_trl.judge.train", description=__doc__)
    parser.add_argument("--output", type=Path, default=HEAD)
    options = parser.parse_args(arguments)
    triples, labels, groups = examples()
    rows = features(Embedder(), triples)
    logits = {penalty: crossvalidate(rows, labels, groups, penalty) for penalty in PENALTIES}
    tried = {(p, m): measure(logits[p], labels, m) for p in PENALTIES for m in MARGINS}
    for (penalty, margin), result in tried.items():
        print(
            f"penalty {penalty:g} margin {margin:g}",
            {name: round(value, 4) for name, value in result.items()},
        )
    allowed = [key for key, result in tried.items() if result["wrong_sign"] <= WRONG_SIGN_LIMIT] or list(tried)
    penalty, margin = max(allowed, key=lambda key: tried[key]["accuracy"] - tried[key]["wrong_sign"])
    mean, scale = standardise(rows)
    weight, bias = fit((rows - mean) / scale, labels, _weights(groups, np.ones(len(rows), bool)), penalty)
    np.savez(options.output, weight=weight, bias=bias, mean=mean, scale=scale, margin=np.float32(margin))
    print(f"{len(set(groups))} messages; penalty {penalty:g}, margin {margin:g} -> {options.output}")


if __name__ == "__main__":
    main()
