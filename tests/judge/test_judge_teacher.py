"""Teacher scores: aligned by position, exact in length, and absent rather than wrong."""

import numpy as np
import pytest
from judge_helpers import Scripted, logprob, put_turn, render

from clawrl_trl.engines.client import EngineClient
from clawrl_trl.judge.hints import hinted
from clawrl_trl.judge.teacher import NoTeacher, Taught, Teacher, plainly_sampled
from clawrl_trl.judge.turn import NotNow
from clawrl_trl.ledger import Ledger, schema, turns


def stored(ledger: Ledger, **values: object) -> schema.Turn:
    identity = put_turn(ledger, **values)  # type: ignore[arg-type]
    with ledger.reader() as tx:
        turn = turns.get(tx, identity)
    assert turn is not None
    return turn


async def teach(script: Scripted, turn: schema.Turn, *candidates: str) -> Taught:
    async with EngineClient(script.base_url, timeout=10) as client:
        return await Teacher(client, timeout=10).teach(turn, candidates or ("No bold please.",))


def expected(turn: schema.Turn, hint: str | None) -> np.ndarray:
    context = render(hinted(turn.messages, hint) if hint else turn.messages)
    completion = turn.completion_ids.tolist()  # type: ignore[union-attr]
    return np.asarray([logprob(context + completion[:i], token) for i, token in enumerate(completion)])


async def test_both_sides_score_the_stored_tokens_by_position(script: Scripted, ledger: Ledger) -> None:
    turn = stored(ledger)
    taught = await teach(script, turn)
    np.testing.assert_allclose(taught.teacher, expected(turn, "No bold please."), atol=1e-6)
    np.testing.assert_allclose(taught.plain, expected(turn, None), atol=1e-6)
    assert taught.teacher.dtype == np.float32 and taught.teacher.shape == turn.completion_ids.shape  # type: ignore[union-attr]
    scoring = [body for body in script.requests if body["path"] == "/v1/completions"]
    assert [body["model"] for body in scoring] == ["base"], "stored log-probs are used where they are plain"


async def test_a_tempered_turn_is_scored_again_under_its_own_policy(script: Scripted, ledger: Ledger) -> None:
    turn = stored(ledger, sampling={"temperature": 0.7}, policy_version=3)
    taught = await teach(script, turn)
    np.testing.assert_allclose(taught.plain, expected(turn, None), atol=1e-6)
    scoring = [body["model"] for body in script.requests if body["path"] == "/v1/completions"]
    assert sorted(scoring) == ["base", "policy-v3"]


async def test_the_hint_with_the_larger_gain_is_used(script: Scripted, ledger: Ledger) -> None:
    turn = stored(ledger)
    taught = await teach(script, turn, "One.", "Two words.", "Three words here.")
    gains = {one["hint"]: one["gain"] for one in taught.detail["candidates"]}
    assert len(gains) == 3 and taught.hint == max(gains, key=gains.__getitem__)


async def test_a_prompt_that_renders_otherwise_has_no_teacher(script: Scripted, ledger: Ledger) -> None:
    turn = stored(ledger, prompt_ids=[1, 2, 3])
    with pytest.raises(NoTeacher, match="rendered again"):
        await teach(script, turn)


async def test_tools_and_template_arguments_go_into_the_rendering(script: Scripted, ledger: Ledger) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    sampling = {"temperature": 1.0, "chat_template_kwargs": {"enable_thinking": True}}
    await teach(script, stored(ledger, tools=tools, sampling=sampling))
    rendered = [body for body in script.requests if body["path"] == "/tokenize"]
    assert len(rendered) == 2
    assert all(
        body["tools"] == tools and body["chat_template_kwargs"] == {"enable_thinking": True} for body in rendered
    )


@pytest.mark.parametrize("path", ["/tokenize", "/v1/completions"])
@pytest.mark.parametrize(("status", "error"), [(500, NotNow), (503, NotNow), (400, NoTeacher), (404, NoTeacher)])
async def test_an_engine_fault_is_tried_again_and_a_refusal_is_final(
    script: Scripted, ledger: Ledger, path: str, status: int, error: type[Exception]
) -> None:
    script.broken[path] = status
    with pytest.raises(error):
        await teach(script, stored(ledger))


@pytest.mark.parametrize(
    ("sampling", "plain"),
    [
        ({}, True),
        ({"temperature": 1.0, "top_p": 1, "top_k": -1, "min_p": 0.0, "presence_penalty": 0}, True),
        ({"temperature": 0.9}, False),
        ({"temperature": 0}, False),
        ({"top_p": 0.9}, False),
        ({"top_k": 40}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"logit_bias": {"5": 1}}, False),
    ],
)
def test_only_untempered_untruncated_log_probs_are_plain(sampling: dict, plain: bool) -> None:
    assert plainly_sampled(sampling) is plain
