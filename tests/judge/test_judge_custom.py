"""A user's own reward: what it may return, and what becomes of its faults."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from judge_helpers import judged_turn

from clawrl_trl.errors import UserError
from clawrl_trl.judge.custom import CustomJudge, load_reward, make_texts, parse_result
from clawrl_trl.judge.turn import FeedbackItem, JudgeUnavailable

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

def stuck(turn):
    import threading
    threading.Event().wait()

def rejecting(turn):
    return -1.0

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

def texts(prompt, response, next_state):
    given = (prompt, response, next_state)
    return 1.0 if given == ("What is 5 plus 7?", "**Final answer:** 12", "no bold\\n\\nok") else 0

async def later(prompt, response, next_state, weight=1.0):
    await asyncio.sleep(0)
    return {"score": -weight, "hint": "Keep it under 50 words."}

def reordered(next_state, *, response, prompt):
    return float(next_state.startswith("no bold") and prompt.endswith("?"))

def coroutine(prompt, response, next_state):
    return later(prompt, response, next_state)

class Model:
    def score(self, prompt, response, next_state):
        return texts(prompt, response, next_state)

model = Model()

class AsyncModel:
    async def score(self, prompt, response, next_state):
        return -0.5

class ByTurn:
    def score(self, turn):
        return 0.25

class Verdict:
    def __init__(self, turn):
        self.score = -0.25

class Needy:
    def __init__(self, path):
        raise OSError("not read")
    def score(self, prompt, response, next_state):
        return 0

class Unready(Needy):
    def __init__(self):
        super().__init__("weights")

def half(prompt, response):
    return 0

def more(prompt, response, next_state, task):
    return 0

def anything(**texts):
    return 0

number = 3
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


OBJECTION = [("owner", {"role": "user", "content": "no bold"}), ("tool", {"role": "tool", "content": "ok"})]


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("texts", 1.0),
        ("later", -1.0),
        ("reordered", 1.0),
        ("coroutine", -1.0),
        ("Model", 1.0),
        ("model", 1.0),
        ("AsyncModel", -0.5),
        ("ByTurn", 0.25),
        ("Verdict", -0.25),
        ("short", 1.0),
    ],
)
async def test_the_contract_goes_by_the_names_of_the_parameters(rewards: Path, name: str, score: float) -> None:
    judgement = await CustomJudge(f"{rewards}:{name}").judge(judged_turn(OBJECTION))
    assert judgement.score == score


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("half", "it takes prompt, response and no next_state"),
        ("more", "'task'"),
        ("two", "'other'"),
        ("anything", "too many positional arguments"),
        ("number", "is a int, not a callable"),
        ("Needy", "Needy() failed: TypeError"),
        ("Unready", "Unready() failed: OSError: not read"),
        ("missing", "has no 'missing'"),
    ],
)
def test_a_wrong_signature_is_one_line_that_says_what_is_wrong(rewards: Path, name: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        CustomJudge(f"{rewards}:{name}")
    assert says in str(caught.value) and "\n" not in str(caught.value)
    if name in ("half", "more", "two", "anything"):
        assert "reward(turn) or score(prompt, response, next_state)" in str(caught.value)


def test_a_check_makes_no_model(rewards: Path) -> None:
    assert load_reward(f"{rewards}:Unready", make=False).takes_texts
    assert not load_reward(f"{rewards}:ByTurn", make=False).takes_texts
    with pytest.raises(UserError, match="has no 'missing'"):
        load_reward(f"{rewards}:missing", make=False)


def test_a_turn_without_a_next_state_has_an_empty_text() -> None:
    assert make_texts(judged_turn([])) == {
        "prompt": "What is 5 plus 7?",
        "response": "**Final answer:** 12",
        "next_state": "",
    }


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


async def test_a_reward_that_hangs_holds_its_own_threads_and_no_others(rewards: Path) -> None:
    loop, others = asyncio.get_running_loop(), ThreadPoolExecutor(1)
    loop.set_default_executor(others)
    reasons = []
    judge = CustomJudge(f"{rewards}:stuck", timeout=0.01, workers=1)
    for _ in range(2):
        with pytest.raises(JudgeUnavailable) as failure:
            await judge.judge(judged_turn("ok"))
        reasons.append(failure.value.reason)
        # A function of the loop's own executor would wait for ever behind the one that hangs.
        assert others._work_queue.qsize() == 0
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(lambda: "runs") == "runs"
    assert "all its threads are held" in reasons[1]
    thumbs = judged_turn("ok", feedback=[FeedbackItem("thumbs", 1.0, None)])
    assert (await judge.judge(thumbs)).score == 1.0


def test_a_process_whose_reward_hangs_can_end(rewards: Path) -> None:
    lines = (
        "import asyncio, contextlib, sys",
        "from clawrl_trl.judge.custom import CustomJudge",
        "from clawrl_trl.judge.turn import JudgedTurn, JudgeUnavailable",
        "turn = JudgedTurn('t', 's', (), None, {}, (), (), (), 0)",
        "with contextlib.suppress(JudgeUnavailable):",
        "    asyncio.run(CustomJudge(sys.argv[1], timeout=0.01).judge(turn))",
    )
    command = [sys.executable, "-c", "\n".join(lines), f"{rewards}:stuck"]
    assert subprocess.run(command, timeout=120).returncode == 0


@pytest.mark.parametrize(
    ("feedback", "by"),
    [
        (FeedbackItem("thumbs", 1.0, None), "feedback: value"),
        (FeedbackItem("correction", None, "It is 13."), "feedback: correction"),
        (FeedbackItem("text", None, "Wrong, that is not the sum at all."), "feedback: text"),
    ],
)
async def test_explicit_feedback_decides_before_it(rewards: Path, feedback: FeedbackItem, by: str) -> None:
    judgement = await CustomJudge(f"{rewards}:broken").judge(judged_turn("ok", feedback=[feedback]))
    assert judgement.judge == "rules" and judgement.detail["by"] == by
    assert judgement.score == (1.0 if feedback.value else -1.0)


@pytest.mark.parametrize("name", ["rejecting", "short", "nothing"])
async def test_what_it_rejects_has_the_owners_words_as_hints(rewards: Path, name: str) -> None:
    judgement = await CustomJudge(f"{rewards}:{name}").judge(judged_turn("No, wrong. Please write it without bold."))
    assert judgement.detail["by"] == "custom reward"
    assert ("Please write it without bold." in judgement.hints) == (name == "rejecting")
    assert judgement.hint_source == ("owner message" if name == "rejecting" else None)
