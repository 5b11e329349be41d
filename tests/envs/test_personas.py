"""Personas: repeatable from a seed, never twice the same words, and honest about what they were shown."""

import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawrl_trl.envs.chat.answers import extract_answer
from clawrl_trl.envs.chat.persona_file import persona
from clawrl_trl.envs.chat.personas import PERSONAS, Student, Teacher, make_homework
from clawrl_trl.envs.chat.problems import draw_problems
from clawrl_trl.errors import UserError

BOLD = "**Step 1:** Tom has 5 apples.\n**Step 2:** 5 + 7 = 12.\n\n**Final answer:** 12"
PLAIN = "Tom has 5 apples. He buys 7 more, so 5 + 7 = 12. The answer is 12."
CURT = "**Grade:** incorrect. The answer is 12."
KIND = "Good try! You set it up well, but the slip is in the last step: 5 + 7 = 12. You will get it next time!"
REPLIES = {"student": (PLAIN, BOLD), "teacher": (KIND, CURT)}


@pytest.mark.parametrize("name", PERSONAS)
def test_objections_vary(name: str) -> None:
    user = persona(name)
    task = user.tasks(0, "train", 1)[0]
    texts = {user.react(task, REPLIES[name][1], 1, random.Random(seed)).text for seed in range(1500)}
    assert len(texts) >= 200
    again = {user.react(task, REPLIES[name][1], 2, random.Random(seed)).text for seed in range(500)}
    assert len(again) >= 200
    approving = {user.react(task, REPLIES[name][0], 1, random.Random(seed)).text for seed in range(500)}
    assert len(approving) >= 100
    assert not texts & approving


@pytest.mark.parametrize("name", PERSONAS)
def test_openings_vary_and_hold_the_problem(name: str) -> None:
    user = persona(name)
    tasks = user.tasks(5, "train", 200)
    openings = [user.opening(task, random.Random(seed)) for seed, task in enumerate(tasks)]
    assert len({text.replace(task.question, "") for text, task in zip(openings, tasks, strict=True)}) >= 60
    assert all(task.question in text for text, task in zip(openings, tasks, strict=True))


@pytest.mark.parametrize("name", PERSONAS)
@given(seed=st.integers(0, 10**9))
def test_a_seed_says_it_all(name: str, seed: int) -> None:
    first, second = persona(name), persona(name)
    assert first.tasks(seed, "train", 3) == second.tasks(seed, "train", 5)[:3]
    task = first.tasks(seed, "train", 1)[0]
    for reply in REPLIES[name]:
        assert first.react(task, reply, 1, random.Random(seed)) == second.react(task, reply, 1, random.Random(seed))
    assert first.opening(task, random.Random(seed)) == second.opening(task, random.Random(seed))


@pytest.mark.parametrize("name", PERSONAS)
def test_moods_follow_the_style(name: str) -> None:
    user = persona(name)
    task = user.tasks(0, "train", 1)[0]
    good_reply, bad_reply = REPLIES[name]
    approving = [user.react(task, good_reply, turn, random.Random(turn)) for turn in range(1, 9)]
    objecting = [user.react(task, bad_reply, turn, random.Random(turn)) for turn in range(1, 9)]
    assert {(reaction.mood, reaction.satisfied) for reaction in approving} == {("pleased", True)}
    assert not any(reaction.satisfied for reaction in objecting)
    assert [reaction.mood for reaction in objecting] == ["patient"] + ["annoyed"] * 7


def test_student_asks_for_missing_steps() -> None:
    user = Student()
    reactions = [
        user.react(user.tasks(0, "train", 1)[0], "The answer is 12.", 1, random.Random(seed)) for seed in range(50)
    ]
    assert not any(reaction.satisfied for reaction in reactions)
    assert all(
        "step" in text or "calculation" in text or "working" in text
        for text in (reaction.text for reaction in reactions)
    )


def test_messages_are_tidy() -> None:
    for name, replies in REPLIES.items():
        user = persona(name)
        for seed in range(400):
            task = user.tasks(0, "train", 1)[0]
            text = user.react(task, replies[seed % 2], 1 + seed % 2, random.Random(seed)).text
            assert text[0].isupper()
            assert text.endswith((".", "!", "?"))
            assert "  " not in text
            assert " ." not in text


def test_splits_share_no_problem() -> None:
    chats = {task.question for seed in range(5) for task in Student().tasks(seed, "train", 60)}
    held_out = {task.question for seed in range(5) for task in Student().tasks(seed, "heldout", 60)}
    assert not chats & held_out


@given(seed=st.integers(0, 10**6), slip=st.booleans())
def test_homework_is_right_unless_there_is_a_slip(seed: int, slip: bool) -> None:
    problem = draw_problems(seed, "train", 1)[0]
    task = make_homework(problem, random.Random(seed), slip=slip)
    assert (task.claimed != task.answer) is slip
    assert task.answer == problem.answer
    assert task.claimed > 0
    assert extract_answer(task.work) == task.claimed


def test_teacher_knows_right_from_wrong() -> None:
    user = Teacher()
    tasks = user.tasks(0, "heldout", 100)
    right = [task for task in tasks if task.claimed == task.answer]
    assert 30 <= len(right) <= 70
    for task in tasks:
        assert user.correct(task, "**Grade:** correct.") is (task in right)
        assert user.correct(task, "**Grade:** incorrect.") is (task not in right)


def test_unknown_persona_is_a_clear_error() -> None:
    with pytest.raises(UserError, match="student or teacher"):
        persona("parrot")


def test_importing_personas_costs_no_torch() -> None:
    code = "import sys, clawrl_trl.envs.chat.personas, clawrl_trl.envs.base.actor, clawrl_trl.envs.chat.evaluation\n"
    code += "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
