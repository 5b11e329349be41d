"""Teacher scores: aligned by position, exact in length, and absent rather than wrong."""

from unittest.mock import AsyncMock

import numpy as np
import pytest
from judge_helpers import Scripted, logprob, put_turn, ranked, render

from clawrl_trl.engines.calls import rename_reasoning
from clawrl_trl.engines.client import EngineClient, EngineError, EngineUnavailable
from clawrl_trl.judge.hints.template import append_hint
from clawrl_trl.judge.teacher import ATTEMPTS, HintTeacher, NoTeacher, TeacherScores, is_plainly_sampled
from clawrl_trl.judge.turn import JudgeUnavailable
from clawrl_trl.ledger import Ledger, schema, turns


def stored(ledger: Ledger, **values: object) -> schema.Turn:
    identity = put_turn(ledger, **values)  # type: ignore[arg-type]
    with ledger.reader() as tx:
        turn = turns.get(tx, identity)
    assert turn is not None
    return turn


async def teach(script: Scripted, turn: schema.Turn, *hints: str, top_k: int = 0) -> TeacherScores:
    async with EngineClient(script.base_url, timeout=10) as client:
        return await HintTeacher(client, timeout=10, top_k=top_k).teach(turn, hints or ("No bold please.",))


def expected(turn: schema.Turn, hint: str | None) -> np.ndarray:
    context = render(append_hint(turn.messages, hint) if hint else turn.messages)
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


async def test_a_prompt_with_pictures_has_no_teacher(script: Scripted, ledger: Ledger) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    turn = stored(ledger, messages=[{"role": "user", "content": [picture, {"type": "text", "text": "What is it?"}]}])
    with pytest.raises(NoTeacher, match="scores text alone"):
        await teach(script, turn)
    assert not script.requests


async def test_earlier_thoughts_are_rendered_as_the_gateway_sent_them(script: Scripted, ledger: Ledger) -> None:
    messages = [
        {"role": "user", "content": "What is 5 plus 7?"},
        {"role": "assistant", "content": "12", "reasoning_content": "Add them."},
        {"role": "user", "content": "And 5 plus 8?"},
    ]
    sent = rename_reasoning(messages)
    turn = stored(ledger, messages=messages, provenance=["owner", "assistant", "owner"], prompt_ids=render(sent))
    assert render(sent) != render(messages)
    taught = await teach(script, turn)
    turn.messages = sent
    np.testing.assert_allclose(taught.teacher, expected(turn, "No bold please."), atol=1e-6)


async def test_base_and_policy_are_asked_for_by_the_names_that_the_engine_lists(
    script: Scripted, ledger: Ledger
) -> None:
    script.names = ["somebody/elses-model", "policy-v3"]
    turn = stored(ledger, policy_version=3)
    taught = await teach(script, turn, top_k=3)
    np.testing.assert_allclose(taught.teacher, expected(turn, "No bold please."), atol=1e-6)
    assert {body["model"] for body in script.requests} == set(script.names)
    script.requests.clear()
    await teach(script, stored(ledger, sampling={"temperature": 0.7}))
    assert {body["model"] for body in script.requests} == {"somebody/elses-model"}


async def test_tools_and_template_arguments_go_into_the_rendering(script: Scripted, ledger: Ledger) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    sampling = {"temperature": 1.0, "chat_template_kwargs": {"enable_thinking": True}}
    await teach(script, stored(ledger, tools=tools, sampling=sampling))
    rendered = [body for body in script.requests if body["path"] == "/tokenize"]
    assert len(rendered) == 2
    assert all(
        body["tools"] == tools and body["chat_template_kwargs"] == {"enable_thinking": True} for body in rendered
    )


class TestCandidates:
    """The policy's likely tokens, scored by the teacher."""

    def check(self, turn: schema.Turn, taught: TeacherScores, k: int, width: int, *, by_teacher: bool = False) -> None:
        plain, hinted_prompt = render(turn.messages), render(append_hint(turn.messages, taught.hint))
        completion = turn.completion_ids.tolist()  # type: ignore[union-attr]
        assert taught.topk_ids is not None and taught.topk_logprobs is not None
        assert taught.topk_ids.dtype == np.int32 and taught.topk_logprobs.dtype == np.float32
        assert taught.topk_ids.shape == taught.topk_logprobs.shape == (len(completion), k)
        for position, sampled in enumerate(completion):
            before = completion[:position]
            told = {*ranked(hinted_prompt + before)[:width], sampled}
            likely = ranked((hinted_prompt if by_teacher else plain) + before)[:k]
            assert taught.topk_ids[position].tolist() == [one if one in told else -1 for one in likely]
            values = [logprob(hinted_prompt + before, one) if one in told else np.nan for one in likely]
            np.testing.assert_allclose(taught.topk_logprobs[position], values, atol=1e-6)

    async def test_the_policys_most_likely_tokens_where_the_teacher_told(
        self, script: Scripted, ledger: Ledger
    ) -> None:
        turn = stored(ledger, policy_version=3)
        taught = await teach(script, turn, "One.", "Two words.", top_k=3)
        self.check(turn, taught, 3, width=24)
        known = (taught.topk_ids >= 0).mean()  # type: ignore[operator]
        assert 0 < known < 1 and taught.detail["known"] == pytest.approx(known)
        np.testing.assert_allclose(taught.teacher, expected(turn, taught.hint), atol=1e-6)
        scoring = [body for body in script.requests if body["path"] == "/v1/completions"]
        assert [(body["model"], body["prompt_logprobs"]) for body in scoring] == [
            ("policy-v3", 3), ("base", 0), ("base", 0), ("base", 24)
        ]  # fmt: skip

    async def test_a_tempered_turn_costs_one_call_for_both(self, script: Scripted, ledger: Ledger) -> None:
        turn = stored(ledger, sampling={"temperature": 0.7}, policy_version=3)
        taught = await teach(script, turn, top_k=2)
        self.check(turn, taught, 2, width=20)
        np.testing.assert_allclose(taught.plain, expected(turn, None), atol=1e-6)
        assert [b["model"] for b in script.requests if b["path"] == "/v1/completions"].count("policy-v3") == 1

    async def test_an_engine_that_names_fewer_is_asked_for_fewer(self, script: Scripted, ledger: Ledger) -> None:
        script.widest = 20
        turn = stored(ledger)
        self.check(turn, await teach(script, turn, top_k=5), 5, width=20)
        script.widest = 7
        self.check(turn, await teach(script, turn, top_k=5), 5, width=5)
        script.widest = 4
        with pytest.raises(NoTeacher, match="max allowed"):
            await teach(script, turn, top_k=5)

    @pytest.mark.parametrize("why", ["several versions", "policy gone"])
    async def test_the_teacher_names_them_where_the_policy_can_not_be_asked(
        self, script: Scripted, ledger: Ledger, why: str
    ) -> None:
        turn = stored(ledger, policy_version=3)
        if why == "several versions":
            turn.token_versions = np.arange(len(turn.completion_ids), dtype=np.int32)  # type: ignore[arg-type]
        else:
            script.absent.add("policy-v3")
        taught = await teach(script, turn, top_k=4)
        self.check(turn, taught, 4, width=32, by_teacher=True)
        assert (taught.topk_ids >= 0).all()  # type: ignore[operator]


async def test_a_turn_of_several_versions_is_taught_by_what_was_stored(script: Scripted, ledger: Ledger) -> None:
    turn = stored(ledger, policy_version=3)
    turn.token_versions = np.full(len(turn.completion_ids), 3, dtype=np.int32)  # type: ignore[arg-type]
    taught = await teach(script, turn)
    np.testing.assert_array_equal(taught.plain, turn.logprobs)  # type: ignore[arg-type]
    assert [body["model"] for body in script.requests if body["path"] == "/v1/completions"] == ["base"]
    turn.sampling = {"temperature": 0.7}
    with pytest.raises(NoTeacher, match="several policy versions"):
        await teach(script, turn)


@pytest.mark.parametrize("path", ["/tokenize", "/v1/completions"])
@pytest.mark.parametrize(
    ("status", "error"), [(500, JudgeUnavailable), (503, JudgeUnavailable), (400, NoTeacher), (404, NoTeacher)]
)
async def test_an_engine_fault_is_tried_again_and_a_refusal_is_final(
    script: Scripted, ledger: Ledger, path: str, status: int, error: type[Exception]
) -> None:
    script.broken[path] = status
    with pytest.raises(error):
        await teach(script, stored(ledger))


@pytest.mark.parametrize(
    ("failure", "patience"),
    [
        (TimeoutError(), ATTEMPTS),
        (EngineUnavailable("ReadTimeout", timed_out=True), ATTEMPTS),
        (EngineError(500, "a fault"), ATTEMPTS),
        (EngineUnavailable("ConnectError"), None),
        (EngineError(503, "starting"), None),
        (EngineError(429, "too much"), None),
    ],
)
async def test_an_engine_that_is_away_is_waited_for_and_one_that_is_late_is_not(
    script: Scripted, ledger: Ledger, failure: Exception, patience: int | None
) -> None:
    async with EngineClient(script.base_url) as client:
        client.tokenize = AsyncMock(side_effect=failure)  # type: ignore[method-assign]
        with pytest.raises(JudgeUnavailable) as caught:
            await HintTeacher(client).teach(stored(ledger), ["No bold please."])
    assert caught.value.patience == patience


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
    assert is_plainly_sampled(sampling) is plain
