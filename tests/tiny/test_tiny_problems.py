"""The word problems: right answers, short questions, splits that share nothing, the same seed the same list."""

import operator
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawrl_trl.envs.chat.problems import assign_split, draw_problems

_SIGNS = {"+": operator.add, "-": operator.sub, "x": operator.mul, "/": operator.floordiv}


def test_same_seed_same_problems() -> None:
    assert draw_problems(3, "train", 50) == draw_problems(3, "train", 50)
    assert draw_problems(3, "train", 50) != draw_problems(4, "train", 50)


def test_splits_share_no_question() -> None:
    train = {problem.question for problem in draw_problems(0, "train", 3000)}
    heldout = {problem.question for problem in draw_problems(0, "heldout", 3000)}
    assert len(train) == len(heldout) == 3000
    assert not train & heldout
    assert all(assign_split(question) == "heldout" for question in heldout)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_steps_lead_to_the_answer(seed: int) -> None:
    (problem,) = draw_problems(seed, "heldout", 1)
    results = []
    for step in problem.steps:
        assert f"{step.sentence}." in problem.question
        if step.equation:
            a, sign, b, _, c = step.equation.split()
            assert _SIGNS[sign](int(a), int(b)) == int(c)
            assert not results or int(a) == results[-1]
            results.append(int(c))
    assert results[-1] == problem.answer
    assert 0 < problem.answer <= 100
    assert len(problem.question.split()) <= 40


@pytest.mark.parametrize(("split", "count"), [("test", 1), ("train", -1)])
def test_wrong_arguments_are_refused(split: str, count: int) -> None:
    with pytest.raises(ValueError, match="must"):
        draw_problems(0, split, count)  # type: ignore[arg-type]


def test_problems_need_no_torch() -> None:
    code = (
        "import sys, clawrl_trl.envs.chat.problems; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
