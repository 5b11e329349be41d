"""How three logits become an opinion, and the data it was trained on."""

import numpy as np
import pytest

from clawrl_trl.judge import features
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
    assert decide(logits).score == -1
    assert decide(logits / 5).score is None


@pytest.mark.parametrize(
    ("said", "score", "contradicted"),
    [
        ("You're right, I misread it.", -1, True),
        ("Almost, the date is off.", 1, True),
        ("Not quite what I meant.", 1, True),
        ("You're right, I misread it.", 1, False),
        ("The date is off.", -1, False),
        ("Almost, the date is off.", None, False),
        ("Scrap that, we go by train.", -1, True),
        ("Actually let's go for the yellow one", 1, True),
        ("I changed my mind, no raisins", -1, True),
        ("He had to cancel his trip because the form was wrong", -1, False),
        ("Haven't looked at it myself yet, but the office is thrilled", 1, True),
        ("I didn't have time to read it yet, thanks anyway", 1, False),
        ("haven't tried it yet. looks wrong though", -1, True),
        ("You haven't read it yet, have you", -1, False),
        ("I've tried it twice and it fails", -1, False),
        ("Thanks for trying, I'll ask my sister.", 1, True),
        ("It was kind of you to try.", 1, True),
        ("thanks, trying it now", 1, False),
    ],
)
def test_words_that_speak_against_a_sign(said: str, score: int | None, contradicted: bool) -> None:
    assert doubts.contradicts(said, score) is contradicted


@pytest.mark.parametrize(
    ("said", "takes"),
    [
        ("oh no, that's on me, I typed the wrong year", True),
        ("Rats, my own fault for asking so late.", True),
        ("my bad!! meant the blue one", True),
        ("it was entirely on me", True),
        ("I told you B and it's C. Sorry, that was all me.", True),
        ("that was just me who opened it", False),
        ("put the blame on me in the second paragraph", False),
        ("find my mistake, I said, not fix it", False),
        ("My mistake was hoping for the other half", False),
        ("That's your fault", False),
        ("It's not my fault you can't count", False),
        ("that isn't my mistake, look again", False),
        ("and how is that my fault", False),
    ],
)
def test_an_owner_who_takes_the_blame(said: str, takes: bool) -> None:
    assert doubts.takes_blame(said) is takes


@pytest.mark.parametrize(
    ("reply", "asks"),
    [
        ("Which year group is it for?", True),
        ("By which rule? And shall I do it **per category?**", True),
        ("Added. Shall I check out?", False),
        ("It is no. 5.", False),
        ("", False),
    ],
)
def test_a_reply_that_only_asks(reply: str, asks: bool) -> None:
    assert doubts.only_asks(reply) is asks
    doubt = doubts.find_doubt("Plan the lesson.", reply, "year 5, not fifty minutes", 1, 0.1)
    assert (doubt == "it may answer the question") is asks
    # A sure objection stands: "I told you twice".
    assert doubts.find_doubt("Plan the lesson.", reply, "you didn't read it", -1, 0.99) == ""


@pytest.mark.parametrize(
    ("said", "reply", "doubted"),
    [
        ("drop the headings and write a normal paragraph", "## Solution\nTwelve.", True),
        ("could the points be sentences, not bullets", "- one\n- two", True),
        ("i never asked for numbered steps", "1. Weigh it.\n2. Sieve it.", True),
        ("write them as plain sentences, minus the asterisks", "It is **twelve**.", True),
        ("drop the headings and write a normal paragraph", "Twelve.", False),
        ("thanks, the bullets fit on a slide", "- one\n- two", False),
        ("five stars from me", "It is **twelve**.", False),
        ("next one: ten pears and four more", "- one\n- two", False),
    ],
)
def test_who_names_the_markup_of_a_reply_without_praise_does_not_approve(said: str, reply: str, doubted: bool) -> None:
    assert bool(doubts.find_doubt("Add them up.", reply, said, 1, 0.1)) == doubted
    assert doubts.find_doubt("Add them up.", reply, said, -1, 0.9) == ""


def test_an_abbreviation_ends_no_sentence() -> None:
    text = "Only no. 5 is about trees, e.g. oak vs. beech. Mr. Hill said no. Then he left."
    assert features.split_sentences(text) == [
        "Only no. 5 is about trees, e.g. oak vs. beech.",
        "Mr. Hill said no.",
        "Then he left.",
    ]


def test_the_examples_are_thousands_and_the_same_for_a_seed() -> None:
    drawn = examples.load(3)
    assert drawn == examples.load(3) != examples.load(4)
    assert len({example.message for example in drawn}) >= 3000
    assert {example.label for example in drawn} == {-1, 0, 1}
