"""Mathematical answers: found in a text, compared as mathematics."""

import threading
from pathlib import Path

import pytest
from child_processes import living_children

from clawrl_trl.envs.base.agent import WorldBroken
from clawrl_trl.envs.sandbox.worker import Worker
from clawrl_trl.envs.toolcall import math_answer
from clawrl_trl.envs.toolcall.math_answer import extract_final_answer, is_right
from clawrl_trl.messages import Json


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So \boxed{7}.", "7"),
        (r"\boxed{1} no, \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{ \sqrt{2} } and 9 apples", r"\sqrt{2}"),
        ("3 + 4 = 7.", "7"),
        ("It costs 1,234.50 in all", "1234.50"),
        ("minus: -3", "-3"),
        (r"open \boxed{7", "7"),
        ("none", None),
        ("", None),
    ],
)
def test_the_answer_of_a_text(text: str, answer: str | None) -> None:
    assert extract_final_answer(text) == answer


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        ("7", "7", True),
        ("7.0", "7", True),
        ("1,000", "1000", True),
        ("-1,234,567.5", "-1234567.5", True),
        ("10 000", "10000", True),
        ("$ 7. $", "7", True),
        ("0.5", "1/2", True),
        ("8", "7", False),
        ("-7", "7", False),
        (None, "7", False),
        ("1" * 501, "1" * 501, False),
        ("1/0", "7", False),
    ],
)
def test_plain_numbers(answer: str | None, truth: str, right: bool) -> None:
    assert is_right(answer, truth) is right


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        (r"\frac{14}{2}", "7", True),
        (r"\sqrt{8}", r"2\sqrt{2}", True),
        ("x + 1", "1 + x", True),
        ("x + 2", "1 + x", False),
        ("2^{10}", "1024", True),
        (r"\{1, 2\}", r"\{2, 1\}", True),
        ("1,2", "12", False),
        ("1, 2", "12", False),
        ("1 2", "12", False),
        ("12", "1,2", False),
        ("12,34", "1234", False),
        ("1, 2", "1,2", True),
        ("- 3", "-3", True),
        ("1 / 2", "0.5", True),
        ("__import__('os').system('true')", "7", False),
        (r"\frac{", "7", False),
    ],
)
def test_mathematics(answer: str, truth: str, right: bool) -> None:
    assert is_right(answer, truth) is right


def test_an_answer_that_runs_away_is_wrong_and_the_next_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_right(r"\frac{14}{2}", "7")  # the process is up
    monkeypatch.setattr(math_answer, "TIMEOUT", 3.0)
    assert not is_right(r"9^{9^{9^{9}}}", "8^{8^{8^{8}}}")
    monkeypatch.undo()
    assert is_right(r"\frac{14}{2}", "7")


def test_no_answer_is_wrong_because_the_checker_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    math_answer.close()
    (tmp_path / "broken.py").write_text("import no_such_module")
    monkeypatch.setattr(math_answer, "Worker", lambda sandbox, source: Worker(sandbox, tmp_path / "broken.py"))
    with pytest.raises(WorldBroken, match="math-verify does not start"):
        is_right(r"\frac{14}{2}", "7")
    monkeypatch.undo()
    assert is_right(r"\frac{14}{2}", "7")


def test_the_time_to_start_is_not_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    math_answer.close()
    timeouts: list[float] = []

    class Timed(Worker):
        def ask(self, question: Json, timeout: float) -> Json:
            timeouts.append(timeout)
            return super().ask(question, timeout)

    monkeypatch.setattr(math_answer, "Worker", Timed)
    assert is_right(r"\frac{14}{2}", "7") and is_right(r"\frac{16}{2}", "8")
    assert timeouts == [math_answer.START, math_answer.TIMEOUT, math_answer.TIMEOUT]
    math_answer.close()


def test_it_works_from_many_threads_in_one_process_and_leaves_none() -> None:
    right: list[bool] = []
    threads = [
        threading.Thread(target=lambda n=n: right.append(is_right(rf"\frac{{{2 * n}}}{{2}}", str(n))))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert right == [True] * 4
    math_answer.close()
    assert not living_children("math_verify")
