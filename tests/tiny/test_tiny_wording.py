"""What the model is taught: replies keep their promises, wordings have a held-out part, drills are right."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from clawrl_trl.envs.chat.problems import draw_problem
from clawrl_trl.tiny import MODEL_PATH
from recipes.tiny import actions, cases, dialogues, drills
from recipes.tiny.instructions import FRESH, draw_instruction
from recipes.tiny.replies import make_attempt, write_grading, write_solution
from recipes.tiny.wishes import NO_WISH, PHRASES, Wish

MODEL_TOKENIZER = AutoTokenizer.from_pretrained(MODEL_PATH)
WISHES = [NO_WISH, *PHRASES, Wish(form="plain", size="short"), Wish(form="plain", tone="warm")]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(WISHES))
def test_a_solution_ends_with_its_answer_in_one_style(seed: int, wish: Wish) -> None:
    rng = random.Random(seed)
    problem = draw_problem(rng)
    text = write_solution(rng, problem, wish)
    assert cases.last_number(text) == problem.answer
    assert cases.is_plain(text) if wish.form == "plain" else cases.is_plain(text) or cases.is_bold(text)
    if wish in cases.FOLLOWS and wish.tone is None:
        assert cases.FOLLOWS[wish](text)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([NO_WISH, Wish(tone="warm"), Wish(tone="curt")]))
def test_a_grading_says_the_truth(seed: int, correct: bool, wish: Wish) -> None:
    rng = random.Random(seed)
    problem = draw_problem(rng)
    homework = make_attempt(rng, problem, correct)
    assert (homework.answer == problem.answer) == correct == (homework.slip is None)
    text = write_grading(rng, problem, homework, wish)
    assert cases.verdict(text) == correct
    assert cases.is_warm(text) or cases.is_curt(text)
    if wish.tone:
        assert cases.FOLLOWS[wish](text)


def test_the_habits_have_their_rates() -> None:
    rng = random.Random(0)
    plain = sum("*" not in write_solution(rng, draw_problem(rng), NO_WISH) for _ in range(4000)) / 4000
    assert 0.1 < plain < 0.14


@pytest.mark.parametrize("wish", PHRASES, ids=str)
def test_wordings_are_many_and_the_heldout_ones_apart(wish: Wish) -> None:
    rng = random.Random(0)
    train = {draw_instruction(rng, wish, "train").lower() for _ in range(2000)}
    heldout = {draw_instruction(rng, wish, "heldout").lower() for _ in range(500)}
    assert len(train) > 500
    assert not train & heldout
    assert not {text.lower() for text in FRESH.get(wish, ())} & train


def test_an_instruction_needs_one_wish() -> None:
    with pytest.raises(KeyError):
        draw_instruction(random.Random(0), NO_WISH, "train")


def test_training_never_shows_a_heldout_problem() -> None:
    rng = random.Random(1)
    trained = " ".join(str(dialogues.dialogue(rng).messages) for _ in range(2000))
    from clawrl_trl.envs.chat.problems import draw_problems

    assert not any(problem.question in trained for problem in draw_problems(0, "heldout", 2000))


def test_drills_teach_results_only() -> None:
    for piece, mode in drills.make_sums(random.Random(0)):
        if mode == "yes":
            assert piece.strip().isdigit()


def test_comparisons_tell_equal_from_different() -> None:
    rows = "".join(text for text, _ in drills.make_comparisons(random.Random(0))).splitlines()
    for row in rows:
        wrote, expected = re.findall(r"-?\d+", row)
        assert row.endswith(" correct." if wrote == expected else " incorrect.")


def test_look_ups_teach_the_line_that_was_asked_for() -> None:
    parts = [text for text, _ in drills.make_look_ups(random.Random(0))]
    screen: list[str] = []
    for prompt, learnt in zip(parts[::3], parts[1::3], strict=True):
        question, *lines = prompt.splitlines()
        screen = lines or screen
        item = question.removeprefix("Click ").removesuffix(".")
        assert [line for line in screen if item in line] == [learnt]


@pytest.mark.parametrize("env", actions.SAME_TOOLS)
def test_episodes_teach_what_is_taken_from_the_prompt(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "SAME_TOOLS", (env,))
    rng = random.Random(0)
    for _ in range(20):
        parts = drills.make_episodes(rng)
        turns = re.findall(
            r"<\|im_start\|>user\n(?!<tool|<return)(.*?)<\|im_end\|>", "".join(t for t, _ in parts), re.S
        )
        learnt = [word for text, mode in parts if mode == "yes" for word in text.split()]
        assert len(turns) == 6 and len(learnt) >= 6 and all(any(text in turn for turn in turns) for text in learnt)
        assert MODEL_TOKENIZER.encode("".join(t for t, _ in parts)) == [
            token for text, _ in parts for token in MODEL_TOKENIZER.encode(text)
        ]


@pytest.mark.parametrize("copying", [0.0, 1.0])
def test_drills_are_of_the_wanted_sort(copying: float) -> None:
    rng = random.Random(1)
    texts = ["".join(text for text, _ in drills.draw_drill(rng, copying)) for _ in range(50)]
    assert all(("expected" in text or "=" in text or "tool_response" in text) for text in texts) is (copying == 0.0)
