"""The recipe of the judge's classifier: a training that goes on from another."""

from collections import Counter

import numpy as np
import pytest
import torch

from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM
from clawrl_trl.judge.classifier.reader import Reader
from recipes.judge import distil, examples, train
from recipes.judge.mean import compute_mean
from recipes.judge.network import Rows, load_shipped


def test_it_begins_with_the_classifier_that_the_weights_are() -> None:
    rows = examples.load()[:8]
    network, temperature = load_shipped(ENCODERS[MINILM])
    read = Reader(ENCODERS[MINILM])
    expected = np.stack([read(*example.texts) * temperature for example in rows])
    np.testing.assert_allclose(train.compute_logits(network, rows), expected, atol=1e-4)


def test_a_student_learns_what_its_teacher_finds_beside_the_label() -> None:
    rows = examples.load()[:6]
    network, temperature = load_shipped(ENCODERS[MINILM])
    found = torch.tensor(train.compute_logits(network, rows) / temperature).softmax(1)
    labels = torch.nn.functional.one_hot(torch.tensor([row.label + 1 for row in rows]), 3)
    taught = distil.teach(rows, ENCODERS[MINILM])
    expected = distil.LABEL * labels + (1 - distil.LABEL) * found
    torch.testing.assert_close(Rows.of(taught).targets, expected, atol=1e-5, rtol=0)
    assert [row.label for row in taught] == [row.label for row in rows]
    torch.testing.assert_close(Rows.of(rows).targets, labels.float())


def test_the_mean_of_two_passes_has_the_mean_of_their_products() -> None:
    torch.manual_seed(0)
    first, second = (
        {"a.down": torch.randn(2, 5), "a.up": torch.randn(4, 2), "head.bias": torch.randn(3)} for _ in range(2)
    )
    mean = compute_mean(first, second)
    products = [each["a.up"] @ each["a.down"] for each in (first, second)]
    torch.testing.assert_close(mean["a.up"].float() @ mean["a.down"], sum(products) / 2, atol=1e-2, rtol=0)
    torch.testing.assert_close(mean["head.bias"], (first["head.bias"] + second["head.bias"]) / 2)


def test_a_share_of_a_round_is_of_whole_chats() -> None:
    every, half = examples.load(5, 2), train.draw_chats(5, frozenset(), [0.0, 0.5])
    messages, drawn = (Counter((row.request, row.response) for row in rows) for rows in (every, half))
    assert all(drawn[context] == messages[context] for context in drawn)
    newest = {row.group for row in every} - {row.group for row in examples.load(5)}
    chats = {(row.request, row.response) for row in every if row.group in newest}
    assert drawn.keys() < chats and 0.35 * len(chats) < len(drawn) < 0.65 * len(chats)


@pytest.mark.slow
def test_what_was_held_out_stays_held_out() -> None:
    first, again = train.split_groups(), train.split_groups(rounds=2)
    known = {example.group for example in examples.load()}
    assert first < again
    assert not (again - first) & known
