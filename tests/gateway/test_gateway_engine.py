"""The gateway over the real embedded engine: what is stored is what was sampled, and it was sampled as stored."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from engine_models import BY_HEART, conversation
from gateway_rig import ENGINE_KEY, Rig, running, sse, wait_until
from peft import PeftModel
from real_engine import RealEngine
from transformers import AutoModelForCausalLM, AutoTokenizer

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.client import EngineClient, EngineError, EngineUnavailable
from clawrl_trl.engines.sync_client import SyncEngineClient
from clawrl_trl.gateway.probe import reports_sampled_logprobs
from clawrl_trl.ledger import Ledger, policies, schema
from clawrl_trl.policies.checksums import compute_digest, list_weight_files

pytestmark = pytest.mark.xdist_group("real engine")

SPREAD = [{"role": "user", "content": "tell me something"}]
Logprobs = Callable[[list[int], list[int], str, float], Any]


@pytest.fixture(scope="module")
def tokenizer(models: Path) -> Any:
    return AutoTokenizer.from_pretrained(models / "base")


@pytest.fixture(scope="module")
def recompute(models: Path) -> Logprobs:
    """Log-probs of a completion in one forward pass of transformers."""
    loaded: dict[str, Any] = {"base": AutoModelForCausalLM.from_pretrained(models / "base", dtype=torch.float32)}
    fresh = AutoModelForCausalLM.from_pretrained(models / "base", dtype=torch.float32)
    loaded["one"] = PeftModel.from_pretrained(fresh, models / "one").eval()

    def logprobs(prompt: list[int], completion: list[int], name: str, temperature: float) -> Any:
        with torch.no_grad():
            logits = loaded[name](torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
        scaled = torch.log_softmax(logits.float() / temperature, dim=-1)
        return scaled.gather(1, torch.tensor(completion)[:, None])[:, 0].numpy()

    return logprobs


def adopt(rig: Rig, folder: Path, version: int = 1) -> None:
    publish(rig.ledger, folder, version)
    wait_until(lambda: rig.gateway.policies.serving.number == version)


def publish(ledger: Ledger, folder: Path, version: int = 1) -> None:
    with ledger.transaction() as tx:
        policies.add(
            tx,
            schema.Policy(
                version=version, parent=0, path=str(folder), sha256=compute_digest(*list_weight_files(folder))
            ),
        )
        policies.promote(tx, version)


def reply_of(rig: Rig, body: dict[str, Any], stream: bool) -> str:
    """Ask, and return the reply's text as the client saw it."""
    client = openai.OpenAI(base_url=rig.url, api_key="x", max_retries=0, timeout=120)
    template = {"chat_template_kwargs": body.get("chat_template_kwargs")}
    body = {"seed": 0, **body, "extra_body": template}
    body.pop("chat_template_kwargs", None)
    if not stream:
        return client.chat.completions.create(model="clawrl", **body).choices[0].message.content or ""
    events = client.chat.completions.create(model="clawrl", stream=True, **body)
    return "".join(event.choices[0].delta.content or "" for event in events if event.choices)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("word", sorted(BY_HEART))
def test_stored_ids_are_the_reply(live: Rig, tokenizer: Any, recompute: Logprobs, word: str, stream: bool) -> None:
    seen = reply_of(live, conversation(word), stream)
    turn = live.turn()
    assert turn.trainable, turn.untrainable_reason
    assert turn.prompt_ids is not None and turn.completion_ids is not None and turn.logprobs is not None
    text = tokenizer.decode(turn.completion_ids)
    assert (turn.response["content"] or "") == seen
    assert seen in text
    for call in turn.response.get("tool_calls", ()):
        assert call["function"]["name"] in text
        assert json.loads(call["function"]["arguments"])["expression"] in text
    if "reasoning_content" in turn.response:
        assert turn.response["reasoning_content"].strip() in text
    if word == "hello":
        assert text == BY_HEART[word][0] + "<|im_end|>"
    again = recompute(turn.prompt_ids.tolist(), turn.completion_ids.tolist(), "base", 1.0)
    np.testing.assert_allclose(turn.logprobs, again, atol=1e-3)


def test_strict_tools_cost_nothing_where_nothing_is_constrained(live: Rig) -> None:
    parameters = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "today", "parameters": parameters, "strict": True}}
    reply_of(live, {"messages": [{"role": "user", "content": "hello"}], "tools": [tool], "max_tokens": 4}, False)
    turn = live.turn()
    assert turn.trainable, turn.untrainable_reason
    assert turn.sampling["unconstrained"] == "strict tools"


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_log_probs_are_of_the_policy_and_the_temperature(
    live: Rig, models: Path, recompute: Logprobs, temperature: float
) -> None:
    adopt(live, models / "one")
    with live.client() as http:
        body = {"messages": SPREAD, "max_tokens": 40, "temperature": temperature, "n": 2, "seed": 3}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert len(live.turns()) == 2
    for turn in live.turns():
        assert turn.trainable and turn.policy_version == 1
        assert turn.prompt_ids is not None and turn.completion_ids is not None
        ids = turn.prompt_ids.tolist(), turn.completion_ids.tolist()
        np.testing.assert_allclose(turn.logprobs, recompute(*ids, "one", temperature), atol=1e-3)
        assert np.abs(recompute(*ids, "base", temperature) - turn.logprobs).max() > 0.01


def test_text_completions(live: Rig, tokenizer: Any, recompute: Logprobs) -> None:
    client = openai.OpenAI(base_url=live.url, api_key="x", max_retries=0)
    reply = client.completions.create(model="base", prompt="Hello there", max_tokens=12, seed=1)
    ids = tokenizer("Let me see", add_special_tokens=False).input_ids
    events = list(client.completions.create(model="base", prompt=ids, max_tokens=12, stream=True))
    one, two = live.turns()
    assert one.trainable and two.trainable
    assert one.response["content"] == reply.choices[0].text
    assert two.response["content"] == "".join(event.choices[0].text for event in events if event.choices)
    assert two.prompt_ids is not None and two.prompt_ids.tolist() == ids
    for turn in (one, two):
        assert turn.prompt_ids is not None and turn.completion_ids is not None
        again = recompute(turn.prompt_ids.tolist(), turn.completion_ids.tolist(), "base", 1.0)
        np.testing.assert_allclose(turn.logprobs, again, atol=1e-3)


def test_client_that_leaves_cancels_in_the_engine(live: Rig, recompute: Logprobs) -> None:
    body = {"messages": SPREAD, "stream": True, "ignore_eos": True, "max_tokens": 450}

    def leave() -> None:
        with live.client() as http, http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = (line for line in response.iter_lines() if line)
            for _ in range(5):
                next(lines)

    turn = live.turn_that_was_left(leave)
    assert turn.trainable, turn.untrainable_reason
    assert turn.completion_ids is not None and 0 < len(turn.completion_ids) < 450
    assert turn.prompt_ids is not None
    again = recompute(turn.prompt_ids.tolist(), turn.completion_ids.tolist(), "base", 1.0)
    np.testing.assert_allclose(turn.logprobs, again, atol=1e-3)


def test_many_at_once_each_get_their_own(live: Rig, tokenizer: Any) -> None:
    async def main() -> list[str]:
        client = openai.AsyncOpenAI(base_url=live.url, api_key="x", max_retries=0, timeout=120)

        async def one(number: int) -> str:
            messages = [{"role": "user", "content": f"question {number}"}]
            reply = await client.chat.completions.create(model="clawrl", messages=messages, max_tokens=16)  # type: ignore[arg-type]
            return reply.choices[0].message.content or ""

        replies = await asyncio.gather(*map(one, range(24)))
        await client.close()
        return list(replies)

    replies = asyncio.run(main())
    stored = {turn.messages[0]["content"]: turn for turn in live.turns()}
    for number, reply in enumerate(replies):
        turn = stored[f"question {number}"]
        assert (turn.response["content"] or "") == reply
        assert turn.completion_ids is not None
        letters = iter(tokenizer.decode(turn.completion_ids))
        assert all(letter in letters for letter in reply)  # in this order; a thought may stand within a line of them


def test_engine_refusals_in_openais_shape(live: Rig) -> None:
    client = openai.OpenAI(base_url=live.url, api_key="x", max_retries=0)
    long = [{"role": "user", "content": "word " * 2000}]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="clawrl", messages=long, stream=stream)  # type: ignore[call-overload]
        assert isinstance(caught.value.body, dict) and caught.value.body["message"]
    assert live.turns() == []


def test_the_rest_of_the_engine_is_there(live: Rig) -> None:
    with live.client() as http:
        counted = http.post("/tokenize", json={"model": "clawrl", "prompt": "Hello there"}).json()
        assert counted["count"] == len(counted["tokens"]) > 0
        text = http.post("/detokenize", json={"model": "clawrl", "tokens": counted["tokens"]}).json()
        assert text["prompt"] == "Hello there"
        assert http.get("/readyz").json()["status"] == "ready"


@pytest.fixture
def mortal(models: Path, tmp_path: Path) -> Iterator[RealEngine]:
    with RealEngine(tmp_path / "mortal", models / "base") as engine:
        yield engine


@pytest.mark.slow
def test_engine_that_dies_and_comes_back(mortal: RealEngine, models: Path, tmp_path: Path) -> None:
    """Killed in the middle of a reply: an error event, the partial kept; then the adapter is loaded anew."""
    follows = EngineClient.of_run(mortal.run, ServeSettings.load(mortal.run.path))
    gateway = running(tmp_path / "run", engine_url=mortal.url, engine_client=follows, patience_s=120)
    with gateway as rig, rig.client() as http:
        adopt(rig, models / "one")
        body = {"messages": SPREAD, "stream": True, "ignore_eos": True, "max_tokens": 450}
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            chunks = response.iter_text()
            text = next(chunks)
            mortal.kill()
            text += "".join(chunks)
        assert sse(text)[-1]["error"]["code"] == "engine_unavailable"
        assert rig.turn().finish_reason == "abort" and rig.turn().trainable
        mortal.start()
        answer = http.post("/v1/chat/completions", json={"messages": SPREAD, "max_tokens": 5}, timeout=120)
        assert answer.status_code == 200 and answer.headers["x-clawrl-policy-version"] == "1"


# The engine client


def test_client_scores_as_transformers_does(real_engine: RealEngine, models: Path, recompute: Logprobs) -> None:
    context, scored = [5, 6, 7, 8], [9, 10, 11]
    with SyncEngineClient(real_engine.url + "/v1", ENGINE_KEY, timeout=60) as engine:
        assert engine.health() and "base" in engine.models()
        engine.load_adapter("policy-v901", models / "one")
        engine.load_adapter("policy-v901", models / "one")
        with pytest.raises(EngineError, match="409: this engine has policy-v901 of another run"):
            engine.load_adapter("policy-v901", models / "elsewhere")
        for name, model in (("base", "base"), ("one", "policy-v901")):
            found = engine.prompt_logprobs(context, scored, model=model, top_k=3)
            np.testing.assert_allclose(found.logprobs, recompute(context, scored, name, 1.0), atol=1e-3)
            assert [len(row) for row in found.top] == [3, 3, 3]
        assert engine.prompt_logprobs(context, scored).top == [{}, {}, {}]
        engine.unload_adapter("policy-v901")
        engine.unload_adapter("policy-v901")
        with pytest.raises(EngineError) as caught:
            engine.prompt_logprobs(context, scored, model="policy-v901")
        assert caught.value.status == 404 and not caught.value.retryable
        reply = engine.chat({"model": "base", "messages": SPREAD, "max_tokens": 3, "ignore_eos": True})
        assert reply["usage"]["completion_tokens"] == 3
        assert engine.completions({"model": "base", "prompt": context, "max_tokens": 2})["choices"]
        assert engine.tokenize({"prompt": "Hello"})
        with pytest.raises(EngineError, match="400"):
            engine.load_adapter("policy-v902", models / "nowhere")


async def test_async_client_says_the_same(real_engine: RealEngine) -> None:
    with SyncEngineClient(real_engine.url, ENGINE_KEY) as one:
        expected = one.prompt_logprobs([5, 6, 7], [8, 9], top_k=2)
    async with EngineClient(real_engine.url, ENGINE_KEY) as engine:
        assert await engine.prompt_logprobs([5, 6, 7], [8, 9], top_k=2) == expected
        assert await engine.health() and "base" in await engine.models()
        assert await engine.tokenize({"prompt": "Hello"})
        assert (await engine.completions({"model": "base", "prompt": [5], "max_tokens": 2}))["choices"]
        with pytest.raises(EngineError) as caught:
            await engine.chat({"model": "nobody", "messages": SPREAD})
        assert caught.value.status == 404


async def test_the_embedded_engine_reports_what_it_sampled_from(real_engine: RealEngine) -> None:
    async with EngineClient(real_engine.url, ENGINE_KEY) as engine:
        assert await reports_sampled_logprobs(engine, "base")


def test_wrong_key_and_no_engine(real_engine: RealEngine) -> None:
    with SyncEngineClient(real_engine.url, "wrong") as engine, pytest.raises(EngineError) as caught:
        engine.models()
    assert caught.value.status == 401
    with SyncEngineClient("http://127.0.0.1:9", "x") as engine:
        assert not engine.health()
        with pytest.raises(EngineUnavailable) as gone:
            engine.models()
        assert gone.value.retryable
