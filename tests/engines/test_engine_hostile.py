"""Requests too large to serve are refused before any work is done on them."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_server import Server

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.embedded.adapters import LoadedPolicy
from clawrl_trl.engines.embedded.detokenize import Vocabulary
from clawrl_trl.engines.embedded.engine import Engine
from clawrl_trl.engines.embedded.errors import RequestError
from clawrl_trl.engines.embedded.protocol import ChatBody, CompletionBody, SamplingBody
from clawrl_trl.engines.embedded.request_body import _validate

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]

pytestmark = pytest.mark.xdist_group("engine")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "word " * 200_000}]}, "input_tokens"),
        (CHAT, {"messages": HELLO * 9000}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 9000}]}, "messages"),
        (CHAT, {"messages": HELLO, "stop": ["x"] * 65}, "stop"),
        (CHAT, {"messages": HELLO, "stop": "x" * 1025}, "stop"),
        (CHAT, {"messages": HELLO, "logit_bias": {str(i): 1 for i in range(5000)}}, "logit_bias"),
        (CHAT, {"messages": HELLO, "tools": [{"function": {"name": "f"}}] * 513}, "tools"),
        (TEXT, {"prompt": "word " * 200_000}, "input_tokens"),
        (TEXT, {"prompt": [5] * 1_000_000}, "input_tokens"),
        (TEXT, {"prompt": ["x"] * 2000}, "prompt"),
        (TEXT, {"prompt": ["x"] * 20, "n": 128}, "prompt"),
        ("/tokenize", {"prompt": "word " * 2_000_000}, "input_tokens"),
        ("/detokenize", {"tokens": [5] * 100_000}, "tokens"),
    ],
)
def test_too_much_is_refused_by_name(http: httpx.Client, server: Server, path: str, body: Any, param: str) -> None:
    if server.is_vllm:
        pytest.skip("bounds of the embedded engine")
    answer = http.post(path, json={"model": "base", "max_tokens": 1, **body})
    assert answer.status_code == 400, answer.text[:300]
    assert answer.json()["error"]["param"] == param, answer.text[:300]


def test_a_body_of_many_values_is_not_parsed(http: httpx.Client, server: Server) -> None:
    if server.is_vllm:
        pytest.skip("bounds of the embedded engine")
    raw = b'{"messages": [' + b"1," * 3_000_000 + b"1]}"
    answer = http.post(CHAT, content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and "values" in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def engine(model_folder: Path) -> Engine:
    return Engine.load(ServeSettings(run="unused", max_model_len=512), str(model_folder / "base"))


def generation(engine: Engine, ids: list[int]) -> None:
    body = SamplingBody()
    engine.make_generation(
        engine.policies.base, ids, body, max_tokens=1, top_logprobs=None, deliver=lambda update: None, chat=False
    )


def test_length_is_checked_before_ids(engine: Engine) -> None:
    with pytest.raises(RequestError, match="maximum context length"):
        generation(engine, [10**9] * 513)
    for wrong in (10**9, -1):
        with pytest.raises(RequestError, match=f"Token id {wrong} is out of vocabulary"):
            generation(engine, [5, wrong, 6])


def test_the_vocabularys_size_is_read_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = LoadedPolicy("other", engine.policies.base.model, "")
    generation(engine, [5])
    config = type(policy.model.config)
    calls: list[str] = []
    read = config.get_text_config
    monkeypatch.setattr(config, "get_text_config", lambda *a, **k: calls.append("read") or read(*a, **k))
    assert [policy.vocab_size for _ in range(100)] == [policy.vocab_size] * 100
    assert len(calls) == 1


def test_a_text_too_long_is_not_tokenised(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    encode = Vocabulary.encode
    monkeypatch.setattr(
        Vocabulary, "encode", lambda self, text, **k: lengths.append(len(text)) or encode(self, text, **k)
    )
    engine.check_characters(512 * engine.vocabulary.characters_per_token)
    with pytest.raises(RequestError, match="at least 513 input tokens"):
        engine.check_characters(512 * engine.vocabulary.characters_per_token + 1)
    assert lengths == []


@pytest.mark.parametrize("model", [ChatBody, CompletionBody])
def test_the_first_wrong_item_ends_the_check(model: Any) -> None:
    for name, wrong in (("messages", [5] * 1000), ("prompt", [[5.5]] * 1000), ("tools", ["x"] * 1000)):
        if name in model.model_fields:
            with pytest.raises(ValueError) as caught:
                model.model_validate({"messages": HELLO, "prompt": "x", name: wrong})
            assert caught.value.error_count() <= 4  # type: ignore[attr-defined] # one for each branch of a union


def test_a_whole_body_is_read() -> None:
    body = _validate(ChatBody, b'{"messages": [{"role": "user", "content": "hello"}], "n": 2}')
    assert body.n == 2 and body.messages == HELLO
