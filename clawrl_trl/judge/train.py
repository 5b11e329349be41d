"""Fit the head of the rules judge: `python -m clawrl_trl.judge.train`.

Multinomial logistic regression with an L2 penalty on the labelled messages of `examples`. The penalty and the
margin under which the judge abstains are chosen by cross-validation on those messages alone (examples of one
message never on both sides). The same input gives the same head.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from clawrl_trl.judge import examples
from clawrl_trl.judge.classifier import EMBEDDED, HEAD, LABELS, Embedder, decide, features

PENALTIES = (3e-3, 1e-2, 3e-2)
MARGINS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
WRONG_SIGN_LIMIT = 0.03
EMBEDDING_SCALE = 1 / 4
"""What embedding columns are divided by. They share one number, so that their geometry is kept."""

Array = NDArray[np.float32]
Labels = NDArray[np.int64]


def standardise(rows: Array) -> tuple[Array, Array]:
    """Mean and scale of the columns, each of shape `(features,)`."""
    mean, scale = rows.mean(0), np.maximum(rows.std(0), 0.1)
    scale[:EMBEDDED] = EMBEDDING_SCALE
    return mean, scale


def fit(rows: Array, labels: Labels, weights: Array, penalty: float) -> tuple[Array, Array]:
    """Weight `(3, features)` and bias `(3,)` of the regularised maximum-likelihood head (L-BFGS, float64)."""
    x, y = torch.tensor(rows, dtype=torch.float64), torch.tensor(labels)
    share = torch.tensor(weights / weights.sum(), dtype=torch.float64)
    weight = torch.zeros(3, x.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        losses = torch.nn.functional.cross_entropy(x @ weight.T + bias, y, reduction="none")
        loss: torch.Tensor = (losses * share).sum() + penalty * weight.square().sum() / 2
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach().numpy().astype(np.float32), bias.detach().numpy().astype(np.float32)


def crossvalidate(
    rows: Array, labels: Labels, weights: Array, groups: Sequence[str], penalty: float, folds: int = 5
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
        weight, bias = fit((rows[inside] - mean) / scale, labels[inside], weights[inside], penalty)
        logits[outside] = (rows[outside] - mean) / scale @ weight.T + bias
    return logits


def measure(logits: Array, labels: Labels, weights: Array, margin: float) -> dict[str, float]:
    """Accuracy (abstaining counts as 0), share of abstentions and of wrong signs, weighted."""
    scores = np.asarray([decide(row, margin).score or 0 for row in logits])
    truth = np.asarray(LABELS)[labels]
    outcomes = {"accuracy": scores == truth, "abstained": scores == 0, "wrong_sign": scores * truth == -1}
    return {name: float(np.average(value, weights=weights)) for name, value in outcomes.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Choose penalty and margin, fit on everything, write the head."""
    parser = argparse.ArgumentParser(prog="python -m clawrl_trl.judge.train", description=__doc__)
    parser.add_argument("--output", type=Path, default=HEAD, help="The .npz to write.")
    options = parser.parse_args(arguments)
    data = examples.load()
    rows = features(Embedder(), [one.texts for one in data])
    labels = np.asarray([LABELS.index(one.label) for one in data])
    weights = np.asarray([one.weight for one in data], dtype=np.float32)
    groups = [one.group for one in data]
    tried = {}
    for penalty in PENALTIES:
        logits = crossvalidate(rows, labels, weights, groups, penalty)
        for margin in MARGINS:
            tried[penalty, margin] = result = measure(logits, labels, weights, margin)
            print(f"penalty {penalty:g} margin {margin:g}", *(f"{k} {v:.3f}" for k, v in result.items()))
    allowed = [key for key, one in tried.items() if one["wrong_sign"] <= WRONG_SIGN_LIMIT] or list(tried)
    penalty, margin = max(allowed, key=lambda key: tried[key]["accuracy"])
    mean, scale = standardise(rows)
    weight, bias = fit((rows - mean) / scale, labels, weights, penalty)
    np.savez(options.output, weight=weight, bias=bias, mean=mean, scale=scale, margin=np.float32(margin))
    print(f"{len(set(groups))} messages; penalty {penalty:g}, margin {margin:g} -> {options.output}")


if __name__ == "__main__":
    main()
