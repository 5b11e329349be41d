"""The exam's questions: 60 labelled cases in the form of `clawrl judge eval`, and what identifies an exam."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from clawrl_trl.judge.evaluation.cases import JudgeCase, read_cases
from clawrl_trl.judge.exam.groups import find_groups
from clawrl_trl.judge.vote_prompt import build_prompt

QUESTIONS = Path(__file__).with_name("questions.jsonl")
_MARK = "0" * 24
"""The marks of prompts are drawn and identify nothing."""


@dataclass(frozen=True)
class Question:
    """One question of the exam.

    Attributes:
        case: The labelled case.
        groups: The groups that its answer counts in.
    """

    case: JudgeCase
    groups: frozenset[str]


@lru_cache(maxsize=1)
def load_questions() -> tuple[Question, ...]:
    """Load the questions, in an order in which the groups take turns."""
    return tuple(Question(case, find_groups(case.turn)) for case in read_cases([QUESTIONS]))


def find_key(model: str, settings: Mapping[str, object]) -> str:
    """Find what identifies an exam: another model, prompt, setting, question, label or group gives another key.

    Args:
        model: What the server has loaded.
        settings: The settings of a vote (`LLMJudge.describe_settings`).
    """
    any_score = bool(settings.get("any_score"))
    questions = [
        (
            json.dumps(build_prompt(question.case.turn, mark=_MARK, any_score=any_score)),
            sorted(question.case.accept),
            sorted(question.groups),
        )
        for question in load_questions()
    ]
    content = json.dumps([model, settings, questions], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()
