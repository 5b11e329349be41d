"""What the model is taught: replies keep their promises, wordings have a held-out part, drills are right."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawrl_trl.tiny import cases, dialogues, drills
from clawrl_trl.tiny.instructions import FRESH, instruction
from clawrl_trl.tiny.problems import draw
from clawrl_trl.tiny.replies import attempt, grading, solution
from clawrl_trl.tiny.wishes import NO_WISH, PHRASES, Wish

WISHES = [NO_WISH, *PHRASES, Wish(form="plain", size="short"), Wish(form="plain", tone="warm")]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(WISHES))
def test_a_solution_ends_with_its_answer_in_one_style(seed: int, wish: Wish) -> None:
    rng = random.Random(seed)
    problem = draw(rng)
    text = solution(rng, problem, wish)
    assert cases.last_number(text) == problem.answer
    assert cases.is_plain(text) if wish.form == "plain" else cases.is_plain(text) or cases.is_bold(text)
    if wish in cases.FOLLOWS and wish.tone is None:
        assert cases.FOLLOWS[wish](text)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([NO_WISH, Wish(tone="warm"), Wish(tone="curt")]))
def test_a_grading_says_the_truth(seed: int, correct: bool, wish: Wish) -> None:
    rng = random.Random(seed)
    problem = draw(rng)
    done = attempt(rng, problem, correct)
    assert (done.answer == problem.answer) == correct == (done.slip is None)
    text = grading(rng, problem, done, wish)
    assert cases.verdict(text) == correct
    assert cases.is_warm(text) or cases.is_curt(text)
    if wish.tone:
        assert cases.FOLLOWS[wish](text)


def test_the_habits_have_their_rates() -> None:
    rng = random.Random(0)
    plain = sum("*" not in solution(rng, draw(rng), NO_WISH) for _ in range(4000)) / 4000
    assert 0.1 < plain < 0.14


@pytest.mark.parametrize("wish", PHRASES, ids=str)
def test_wordings_are_many_and_the_heldout_ones_apart(wish: Wish) -> None:
    rng = random.Random(0)
    train = {instruction(rng, wish, "train").lower() for _ in range(2000)}
    heldout = {instruction(rng, wish, "heldout").lower() for _ in range(500)}
    assert len(train) > 500
    assert not train & heldout
    assert not {text.lower() for text in FRESH.get(wish, ())} & train


def test_an_instruction_needs_one_wish() -> None:
    with pytest.raises(KeyError):
        instruction(random.Random(0), NO_WISH, "train")


def test_training_never_shows_a_heldout_problem() -> None:
    rng = random.Random(1)
    trained = " ".join(str(dialogues.dialogue(rng).messages) for _ in range(2000))
    from clawrl_trl.tiny.problems import problems

    assert not any(problem.question in trained for problem in problems(0, "heldout", 2000))


def test_drills_teach_results_only() -> None:
    for piece, mode in drills.sums(random.Random(0)):
        if mode == "yes":
            assert piece.strip().isdigit()


def test_comparisons_tell_equal_from_different() -> None:
    rows = "".join(text for text, _ in drills.comparisons(random.Random(0))).splitlines()
    for row in rows:
        wrote, expected = re.findall(r"-?\d+", row)
        assert row.endswith(" correct." if wrote == expected else " incorrect.")
