"""How three logits become an opinion, and the data it was trained on."""

import numpy as np
import pytest

from clawrl_trl.judge.classifier import doubts
from clawrl_trl.judge.classifier.model import decide
from recipes.judge import examples


@pytest.mark.parametrize(
    ("logits", "score"),
    [((4, 0, 0), -1), ((0, 4, 0), 0), ((0, 0, 4), 1), ((0.2, 0, 0), None), ((3, 0, 2.5), None), ((0, 1.1, 1), None)],
)
def test_a_sign_or_a_zero_needs_a_clear_lead(logits: tuple[float, ...], score: int | None) -> None:
    assert decide(np.asarray(logits, dtype=np.float32)).score == score


def test_a_higher_temperature_makes_it_less_sure() -> None:
    logits = np.asarray((2, 0, 0), dtype=np.float32)
    assert decide(logits, temperature=1.0).score == -1
    assert decide(logits, temperature=5.0).score is None


@pytest.mark.parametrize(
    ("said", "score", "contradicted"),
    [
        ("You're right, I misread it.", -1, True),
        ("Almost, the date is off.", 1, True),
        ("Not quite what I meant.", 1, True),
        ("You're right, I misread it.", 1, False),
        ("The date is off.", -1, False),
        ("Almost, the date is off.", None, False),
    ],
)
def test_words_that_speak_against_a_sign(said: str, score: int | None, contradicted: bool) -> None:
    assert doubts.contradicts(said, score) is contradicted


def test_the_examples_are_thousands_and_the_same_for_a_seed() -> None:
    drawn = examples.load(3)
    assert drawn == examples.load(3) != examples.load(4)
    assert len({example.message for example in drawn}) >= 3000
    assert {example.label for example in drawn} == {-1, 0, 1}
