"""A reply's way from an engine through the judge into the ledger, and the same scores by transformers alone."""

import asyncio
import time
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.judge.hints.template import append_hint
from clawrl_trl.judge.loop import JudgeLoop
from clawrl_trl.judge.teacher import HintTeacher
from clawrl_trl.judge.turn import Judge
from clawrl_trl.ledger import Ledger, turns
from clawrl_trl.ledger.schema import Sample, Turn, Verdict
from clawrl_trl.tiny import MODEL_PATH

REQUESTS = (
    "Tom has 5 apples and buys 7 more. How many apples does he have?",
    "A box holds 12 pencils. How many pencils are in 3 boxes?",
)
OBJECTION = "Please write it without bold, in plain sentences, but keep the steps."


async def sample(engine: EngineClient, request: str, version: int = 0, **options: Any) -> Turn:
    """A turn as the gateway would store it, sampled from a policy version."""
    messages = [{"role": "user", "content": request}]
    body = {"messages": messages, "max_tokens": 40, "temperature": 1.0} | options
    model = f"policy-v{version}" if version else "base"
    extra = {"model": model, "logprobs": True, "top_logprobs": 0, "return_token_ids": True}
    reply = await engine.chat(body | extra)
    choice = reply["choices"][0]
    return Turn(
        session_id="",
        completion_id=reply["id"],
        messages=messages,
        provenance=["owner"],
        sampling={"temperature": body["temperature"]},
        response=choice["message"],
        prompt_ids=reply["prompt_token_ids"],
        completion_ids=choice["token_ids"],
        logprobs=[entry["logprob"] for entry in choice["logprobs"]["content"]],
        trainable=True,
        policy_version=version,
    )


async def judge(ledger: Ledger, engine: EngineClient, sampled: list[Turn], judge: Judge, top_k: int) -> None:
    """Put turns into the ledger, each answered with the objection, and judge them all."""
    with ledger.transaction() as tx:
        for turn in sampled:
            now = time.time()
            turn.session_id = turns.get_or_create_session(
                tx, owner="local", external_id=turn.completion_id, identity_source="header", now=now
            ).id
            turns.add(tx, turn)
            turns.set_next_state(tx, turn.id, [{"role": "user", "content": OBJECTION}], ["owner"], None, now)
    stop = asyncio.Event()
    loop = JudgeLoop(ledger, ServeSettings(), HintTeacher(engine, top_k=top_k), judge)
    task = asyncio.create_task(loop.run(stop))
    async with asyncio.timeout(240):
        while True:
            if loop.judged == len(sampled):
                break
            await asyncio.sleep(0.05)
    stop.set()
    await task


def list_taught_samples(ledger: Ledger) -> list[tuple[Sample, Turn, Verdict]]:
    """The samples there are, with their turns and verdicts."""
    with ledger.reader() as tx:
        rows = [
            (sample, turns.get(tx, sample.turn_id), turns.verdict_of(tx, sample.turn_id))
            for sample in tx.query(Sample)
        ]
    return [(sample, turn, verdict) for sample, turn, verdict in rows if turn and verdict]


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_PATH)


def log_probs(model: Any, turn: Turn, hint: str | None = None) -> torch.Tensor:
    """[T, V] of a turn's tokens under a prompt with or without a hint: template, tokenizer and one forward pass."""
    messages = append_hint(turn.messages, hint) if hint else turn.messages
    text = tokenizer().apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    context = tokenizer()(text, add_special_tokens=False)["input_ids"]
    completion = turn.completion_ids.tolist()  # type: ignore[union-attr]
    with torch.inference_mode():
        logits = model(torch.tensor([context + completion])).logits[0, len(context) - 1 : -1]
    return logits.float().log_softmax(-1)  # type: ignore[no-any-return]


def check(policy: Any, base: Any, k: int, sample: Sample, turn: Turn, verdict: Verdict) -> float:
    """What was stored is what the policy finds likely and what the base, told the hint, thinks of it.

    Returns:
        The share of candidates that the teacher told.
    """
    completion = torch.tensor(turn.completion_ids.tolist())[:, None]  # type: ignore[union-attr]
    plain, teacher = log_probs(policy, turn), log_probs(base, turn, verdict.hint)
    for logps, dense in ((sample.plain_logprobs, plain), (sample.teacher_logprobs, teacher)):
        np.testing.assert_allclose(logps, dense.gather(1, completion)[:, 0], atol=5e-3)
    ids = torch.tensor(sample.topk_ids).reshape(len(completion), k).long()
    logprobs = torch.tensor(sample.topk_logprobs).reshape(ids.shape)
    known = ids >= 0
    assert logprobs[~known].isnan().all()
    torch.testing.assert_close(logprobs[known], teacher.gather(1, ids.clamp(min=0))[known], rtol=0, atol=5e-3)
    likely = plain.topk(k + 1)
    clear = (likely.values[:, :-1] - likely.values[:, 1:]).min(-1).values > 5e-3
    assert clear.float().mean() > 0.5, "neighbours too close to say which comes first"
    assert torch.equal(torch.where(known, ids, likely.indices[:, :-1])[clear], likely.indices[:, :-1][clear])
    return float(known.float().mean())
