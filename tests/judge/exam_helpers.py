"""A scripted base model that answers the exam by looking it up, right or as it is told."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from clawrl_trl.judge.evaluation.cases import JudgeCase
from clawrl_trl.judge.exam.questions import load_questions

Answer = Callable[[dict[str, Any], int], str]
"""Answers a chat request by its body and number, as `Scripted.votes` does."""


def write_vote(score: int) -> str:
    return f'{{"score": {score}, "hint": null}}'


def find_case(prompt: str, cases: Iterable[JudgeCase]) -> JudgeCase | None:
    """The case that a vote's prompt is about, known by its request and its reply."""
    return next((case for case in cases if case.turn.request in prompt and case.turn.reply in prompt), None)


def make_examinee(
    *,
    wrong_in: Iterable[str] = (),
    more: Mapping[str, int] | None = None,
    otherwise: int = 0,
) -> Answer:
    """Make a base model that passes the exam: its vote on a question is the label.

    Args:
        wrong_in: Languages in which its votes have the opposite sign.
        more: Scores of prompts about something else, by a text that they hold.
        otherwise: Its vote where nothing is known.
    """
    cases = [question.case for question in load_questions()]
    languages = frozenset(wrong_in)

    def answer(body: dict[str, Any], number: int) -> str:
        prompt = str(body["messages"][-1]["content"])
        case = find_case(prompt, cases)
        if case is None:
            return write_vote(next((score for text, score in (more or {}).items() if text in prompt), otherwise))
        return write_vote((-case.label or 1) if case.language in languages else case.label)

    return answer
