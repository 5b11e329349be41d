"""The recipe of the judge's classifier: a training that goes on from another."""

import numpy as np
import pytest

from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM
from clawrl_trl.judge.classifier.reader import Reader
from recipes.judge import examples, train


def test_it_begins_with_the_classifier_that_the_weights_are() -> None:
    rows = examples.load()[:8]
    network = train.Network(train.Rows.of(rows).cues)
    network.load(ENCODERS[MINILM].classifier)
    read = Reader(ENCODERS[MINILM])
    expected = np.stack([read(*example.texts) * read._head["temperature"] for example in rows])
    np.testing.assert_allclose(train.compute_logits(network.eval(), rows), expected, atol=1e-4)


@pytest.mark.slow
def test_what_was_held_out_stays_held_out() -> None:
    first, again = train.split_groups(), train.split_groups(rounds=2)
    known = {example.group for example in examples.load()}
    assert first < again
    assert not (again - first) & known
