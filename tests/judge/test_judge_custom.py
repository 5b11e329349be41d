"""A user's own reward: what it may return, and what becomes of its faults."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from judge_helpers import judged_turn

from clawrl_trl.errors import UserError
from clawrl_trl.judge.custom import CustomJudge, parse_result
from clawrl_trl.judge.turn import JudgeUnavailable

SOURCE = """
import asyncio

def short(turn):
    return 1.0 if len(turn.response["content"]) < 50 else -1.0

async def slow(turn):
    await asyncio.sleep(0)
    return {"score": -1, "hint": "Keep it under 50 words."}

def nothing(turn):
    return None

def hanging(turn):
    import time
    time.sleep(1)

def links(turn):
    return {"score": -1, "hint": "See https://example.com"}

def broken(turn):
    raise RuntimeError("no model")

def tall(turn):
    return 7

def two(turn, other):
    return 0

class Scorer:
    async def __call__(self, turn):
        return 0.5

scorer = Scorer()
"""


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    path = tmp_path / "rewards.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize(
    ("name", "score", "hints"),
    [
        ("short", 1.0, ()),
        ("slow", -1.0, ("Keep it under 50 words.",)),
        ("nothing", None, ()),
        ("links", -1.0, ()),
        ("scorer", 0.5, ()),
    ],
)
async def test_what_it_returns_is_the_judgement(rewards: Path, name: str, score: Any, hints: tuple[str, ...]) -> None:
    judgement = await CustomJudge(f"{rewards}:{name}").judge(judged_turn("ok"))
    assert (judgement.score, judgement.hints) == (score, hints)
    assert judgement.judge == f"custom:{name}"


@pytest.mark.parametrize(
    ("name", "message"), [("broken", "no model"), ("tall", "not in"), ("hanging", "TimeoutError")]
)
async def test_its_faults_leave_the_turn_pending_a_few_times(rewards: Path, name: str, message: str) -> None:
    with pytest.raises(JudgeUnavailable, match=message) as failure:
        await CustomJudge(f"{rewards}:{name}", timeout=0.2).judge(judged_turn("ok"))
    assert failure.value.patience is not None


@pytest.mark.parametrize("name", ["missing", "two"])
def test_a_wrong_name_or_signature_is_the_users_error_before_anything_starts(rewards: Path, name: str) -> None:
    with pytest.raises(UserError):
        CustomJudge(f"{rewards}:{name}")


@pytest.mark.parametrize("value", ["good", float("nan"), 2, {"score": -3}, {"score": 1, "hint": 4}])
def test_nonsense_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_result(value)


def test_anything_with_a_score_will_do() -> None:
    assert parse_result(SimpleNamespace(score=1, hint="Be brief.")) == (1.0, "Be brief.")
    assert parse_result(True) == (1.0, None)
