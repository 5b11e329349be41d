"""Against the real embedded engine: teacher and plain log-probs are those that transformers computes."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.judge.hints.template import append_hint
from clawrl_trl.judge.llm_judge import LLMJudge
from clawrl_trl.judge.loop import JudgeLoop
from clawrl_trl.judge.rules import RulesJudge
from clawrl_trl.judge.teacher import HintTeacher, NoTeacher
from clawrl_trl.judge.turn import Judge
from clawrl_trl.ledger import Ledger, samples, schema, turns
from clawrl_trl.run import RunFolder
from clawrl_trl.tiny import MODEL_PATH

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("judge engine")]

MODEL = os.environ.get("CLAWRL_TEST_MODEL", str(MODEL_PATH))
ASKED = [{"role": "user", "content": "Tom has 5 apples and buys 7 more. How many apples does he have?"}]
OBJECTION = "Please write it without bold, in plain sentences, but keep the steps."
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Works out an expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFolder]:
    folder = RunFolder(tmp_path_factory.mktemp("judge-run")).make()
    ServeSettings(run=str(folder.path), model_name_or_path=MODEL, max_model_len=4096).save()
    log = (folder.logs / "engine.log").open("wb")
    command = [sys.executable, "-m", "clawrl_trl.engines.embedded", "--run", str(folder.path)]
    process = subprocess.Popen(command, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while folder.read_announced("engine") is None:
        if process.poll() is not None:
            raise RuntimeError((folder.logs / "engine.log").read_text())
        time.sleep(0.05)
    yield folder
    process.terminate()
    process.wait(30)


def client(run: RunFolder) -> EngineClient:
    return EngineClient.of_run(run, ServeSettings.load(run.path), timeout=120)


async def chat(engine: EngineClient, **options: Any) -> schema.Turn:
    """A turn sampled by the engine, with what the gateway would store of it."""
    body = {"model": "base", "messages": ASKED, "max_tokens": 60, "seed": 1, "temperature": 1.0} | options
    reply = await engine.chat({**body, "logprobs": True, "top_logprobs": 0, "return_token_ids": True})
    choice = reply["choices"][0]
    return schema.Turn(
        session_id="",
        completion_id=reply["id"],
        messages=body["messages"],
        tools=body.get("tools"),
        provenance=["owner"] * len(body["messages"]),
        sampling={name: body.get(name) for name in ("temperature", "top_p", "chat_template_kwargs")},
        response=choice["message"],
        prompt_ids=reply["prompt_token_ids"],
        completion_ids=choice["token_ids"],
        logprobs=[entry["logprob"] for entry in choice["logprobs"]["content"]],
        trainable=True,
        policy_version=0,
    )


async def judge_one(run: RunFolder, ledger: Ledger, turn: schema.Turn, engine: EngineClient, judge: Judge) -> str:
    with ledger.transaction() as tx:
        session = turns.get_or_create_session(
            tx, owner="local", external_id=None, identity_source="header", now=time.time(), session_id="s"
        )
        turn.session_id = session.id
        turns.add(tx, turn)
        said = [{"role": "user", "content": OBJECTION}]
        turns.set_next_state(tx, turn.id, said, ["owner"], None, time.time())
    stop = asyncio.Event()
    settings = ServeSettings.load(run.path)
    task = asyncio.create_task(JudgeLoop(ledger, settings, HintTeacher(engine), judge).run(stop))
    async with asyncio.timeout(120):
        while True:
            with ledger.reader() as tx:
                if turns.counts(tx)["judging"] == 0:
                    break
            await asyncio.sleep(0.05)
    stop.set()
    await task
    return turn.id


def dense(turn: schema.Turn, hint: str | None) -> np.ndarray:
    """The same log-probs by transformers alone."""
    return dense_table(turn, hint)[np.arange(len(turn.completion_ids)), turn.completion_ids]  # type: ignore[arg-type]


def dense_table(turn: schema.Turn, hint: str | None) -> np.ndarray:
    """Those of all tokens, shape `(completion, vocabulary)`: template, tokenizer and one forward pass."""
    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    messages = append_hint(turn.messages, hint) if hint else turn.messages
    arguments = turn.sampling.get("chat_template_kwargs") or {}
    text = tokenizer.apply_chat_template(
        messages, tools=turn.tools, add_generation_prompt=True, tokenize=False, **arguments
    )
    context = tokenizer(text, add_special_tokens=False)["input_ids"]
    completion = list(turn.completion_ids)  # type: ignore[arg-type]
    ids = torch.tensor([context + completion])
    with torch.inference_mode():
        logprobs = model(ids).logits[0].log_softmax(-1)
    table: np.ndarray = logprobs[len(context) - 1 : -1].numpy()
    return table


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.7},
        {"tools": [CALCULATOR]},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"messages": [{"role": "system", "content": "Be kind."}, *ASKED]},
    ],
    ids=["plain", "tempered", "tools", "thinking", "system"],
)
async def test_the_samples_log_probs_are_those_of_transformers(
    run: RunFolder, ledger: Ledger, options: dict[str, Any]
) -> None:
    async with client(run) as engine:
        turn = await chat(engine, **options)
        turn_id = await judge_one(run, ledger, turn, engine, RulesJudge())
    with ledger.reader() as tx:
        verdict, sample = turns.verdict_of(tx, turn_id), samples.of_turn(tx, turn_id)
    assert verdict is not None and sample is not None, verdict and verdict.detail
    assert verdict.score == -1 and verdict.hint is not None and verdict.hint in OBJECTION
    assert sample.teacher_logprobs is not None and sample.plain_logprobs is not None, verdict.detail
    np.testing.assert_allclose(sample.teacher_logprobs, dense(turn, verdict.hint), atol=1e-3)
    np.testing.assert_allclose(sample.plain_logprobs, dense(turn, None), atol=1e-3)


async def test_the_overlap_of_a_hint_is_that_of_the_whole_distributions(run: RunFolder) -> None:
    suggested = ["No bold please.", "Be brief."]
    async with client(run) as engine:
        turn = await chat(engine)
        taught = await HintTeacher(engine, choice="overlap").teach(turn, suggested)
    policy, position = np.exp(dense_table(turn, None)), np.arange(len(turn.completion_ids))[:, None]  # type: ignore[arg-type]
    likely = np.argsort(-policy, axis=1, kind="stable")[:, :4]
    overlaps = {}
    for hint in suggested:
        shared = np.minimum(policy, np.exp(dense_table(turn, hint)))[position, likely].sum(1)
        overlaps[hint] = float((shared / policy[position, likely].sum(1)).mean())
    # The teacher names 32 of 2,048 tokens; what it leaves out has next to no mass.
    assert {hint["hint"]: hint["overlap"] for hint in taught.detail["candidates"]} == pytest.approx(overlaps, abs=5e-3)
    assert taught.hint == max(overlaps, key=overlaps.__getitem__)


async def test_a_hinted_prompt_that_is_too_long_has_no_teacher(run: RunFolder) -> None:
    async with client(run) as engine:
        turn = await chat(engine)
        turn.completion_ids = np.resize(turn.completion_ids, 8000)  # type: ignore[arg-type]
        with pytest.raises(NoTeacher, match="refused"):
            await HintTeacher(engine).teach(turn, ["No bold please."])


async def test_a_small_model_as_judge_abstains_rather_than_guesses(run: RunFolder, ledger: Ledger) -> None:
    async with client(run) as engine:
        turn = await chat(engine)
        judge = LLMJudge(engine, model="base", votes=3, max_tokens=32)
        turn_id = await judge_one(run, ledger, turn, engine, judge)
    with ledger.reader() as tx:
        verdict = turns.verdict_of(tx, turn_id)
    assert verdict is not None
    if verdict.score is None:
        assert verdict.detail["reason"]
    else:
        assert [vote["score"] for vote in verdict.votes].count(verdict.score) >= 2
