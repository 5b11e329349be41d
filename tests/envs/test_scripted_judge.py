"""The scripted language model of the benchmarks, asked by the real llm judge over HTTP."""

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from student_replies import FAULTY, PLAIN, REQUEST

from clawrl_trl.engines.client import EngineAddress, EngineClient
from clawrl_trl.envs.chat.persona_file import persona
from clawrl_trl.envs.chat.students import NoisyStudent
from clawrl_trl.judge.exam.questions import load_questions
from clawrl_trl.judge.llm_judge import LLMJudge
from clawrl_trl.judge.turn import JudgedTurn, Judgement
from clawrl_trl.judge.vote_prompt import build_prompt

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
import scripted_judge  # noqa: E402


def make_turn(reply: str, *texts: str, source: str = "owner") -> JudgedTurn:
    role = "user" if source == "owner" else "tool"
    messages = tuple({"role": role, "content": text} for text in texts)
    response = {"role": "assistant", "content": reply}
    request = ({"role": "user", "content": REQUEST},)
    return JudgedTurn("t", "s", request, None, response, messages, (source,) * len(texts), (), 0)


def vote(turn: JudgedTurn, table: dict[str, int] | None = None) -> tuple[int, str | None]:
    answer = json.loads(scripted_judge.ScriptedJudge(table).vote(build_prompt(turn)))
    return answer["score"], answer["hint"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["student", "noisy_student", "curt", "bilingual"])
def test_it_knows_what_the_personas_mean(name: str) -> None:
    user = NoisyStudent(0.0) if name == "noisy_student" else persona(name)
    task = user.tasks(0, "train", 1)[0]
    judge = scripted_judge.ScriptedJudge()
    for reply in (PLAIN, *FAULTY.values()):
        meant = 1 if reply == PLAIN else -1
        texts = {user.react(task, reply, 1 + seed % 2, random.Random(seed)).text for seed in range(300)}
        assert [text for text in texts if judge.read_words(text) != meant] == []
        prompts = [build_prompt(make_turn(reply, text)) for text in texts]
        assert {json.loads(judge.vote(prompt))["score"] for prompt in prompts} == {meant}


def test_it_knows_the_exam() -> None:
    table = scripted_judge.read_exam()
    assert [
        question.case.id for question in load_questions() if vote(question.case.turn, table)[0] != question.case.label
    ] == []


def test_the_teacher_is_known_too() -> None:
    user, judge = persona("teacher"), scripted_judge.ScriptedJudge()
    task = user.tasks(0, "train", 1)[0]
    texts = {user.react(task, "**Grade:** correct.", 1 + seed % 2, random.Random(seed)).text for seed in range(300)}
    assert {judge.read_words(text) for text in texts} == {-1}


def test_others_are_not_heard() -> None:
    assert vote(make_turn(PLAIN, "Please no bold.", source="tool")) == (0, None)
    assert vote(make_turn(PLAIN, "And what is 7 times 8?")) == (0, None)
    assert vote(make_turn("please don't use bold", "ok")) == (1, None)


def test_hints_are_in_the_owners_words() -> None:
    assert vote(make_turn(FAULTY["bold"], "Please don't use bold.")) == (-1, "Please don't use bold.")


def test_a_table_decides_first(tmp_path: Path) -> None:
    path = tmp_path / "more.jsonl"
    rows = [
        {"text": "Ran 3 tests, 1 failed", "score": -1},
        {"text": "Thanks!", "score": 0},
        {"text": "好", "score": 1},
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    table = scripted_judge.read_table(path)
    assert vote(make_turn(PLAIN, "Ran 3 tests, 1 failed", source="tool"), table) == (-1, None)
    assert vote(make_turn(PLAIN, "thanks"), table) == (0, None)
    assert vote(make_turn(PLAIN, "好"), table) == (1, None)


def ask(base_url: str, turn: JudgedTurn) -> Judgement:
    async def judge_once() -> Judgement:
        async with EngineClient(lambda: EngineAddress.of(base_url, None), timeout=20) as client:
            return await LLMJudge(client, timeout=20).judge(turn)

    return asyncio.run(judge_once())


def test_the_llm_judge_takes_its_votes() -> None:
    with scripted_judge.serve_judge(scripted_judge.ScriptedJudge()) as base_url:
        objection = ask(base_url, make_turn(FAULTY["bold"], "Bitte ohne Fettdruck."))
        approval = ask(base_url, make_turn(PLAIN, "¡Genial, justo así!"))
        undecided = ask(base_url, make_turn(PLAIN, "What is the capital of Peru?"))
        refused = httpx.post(f"{base_url}/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]})
    assert [judgement.score for judgement in (objection, approval, undecided)] == [-1, 1, 0]
    assert objection.judge == f"llm:{scripted_judge.MODEL}"
    assert len(objection.votes) == 3
    assert refused.status_code == 400


def test_it_runs_as_a_process(tmp_path: Path) -> None:
    table = tmp_path / "more.jsonl"
    table.write_text(json.dumps({"text": "spot on", "score": 1}) + "\n")
    command = [sys.executable, str(BENCHMARKS / "scripted_judge.py"), "--table", str(table)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        base_url = process.stdout.readline().strip()
        assert ask(base_url, make_turn(PLAIN, "Spot on!")).score == 1
    finally:
        process.terminate()
        process.communicate(timeout=20)
