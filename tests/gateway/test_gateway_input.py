"""Whatever a client sends, it gets an answer in OpenAI's shape, and never a fault of the server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_rig import Rig, pauses, running, wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from clawrl_trl.gateway.requests import ChatRequest, CompletionRequest
from clawrl_trl.gateway.service import ALWAYS_READ_BYTES
from clawrl_trl.gateway.sessions.reading import MOST_READ, read
from clawrl_trl.http.body import decode_json

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("shared"), max_body_mb=1) as rig:
        yield rig


@pytest.fixture(scope="module")
def http(shared: Rig) -> Iterator[httpx.Client]:
    with shared.client() as client:
        yield client


def refused(answer: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    if param is not None:
        assert error["param"] == param
    return error


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b'{"messages": [}',
        b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b"\xef\xbb\xbf{}",
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "x"}], "seed": ' + b"9" * 5000 + b"}",
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages": ' + b"[" * 150 + b"]" * 150 + b"}",
        b'{"a": ' * 500 + b"1" + b"}" * 500,
    ],
)
def test_what_is_no_request(http: httpx.Client, raw: bytes) -> None:
    for path in (CHAT, "/v1/completions", "/v1/feedback"):
        error = refused(http.post(path, content=raw, headers={"content-type": "application/json"}), 400)
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages.0"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": 5, "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [*HELLO, {"role": "assistant", "tool_calls": "x"}]}, "messages.1.tool_calls"),
        ({"model": 5}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"n": 0}, "n"),
        ({"n": "two"}, "n"),
        ({"n": True}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"seed": 2**70}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": 5}, "stop"),
        ({"tools": {}}, "tools"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
    ],
)
def test_wrong_types_name_the_field(http: httpx.Client, change: dict[str, Any], param: str) -> None:
    error = refused(http.post(CHAT, json={"messages": HELLO, **change}), 400, param)
    assert error["type"] == "invalid_request_error"
    assert param in error["message"]


def test_missing_messages_is_named(http: httpx.Client) -> None:
    assert refused(http.post(CHAT, json={}), 400, "messages")["code"] == "missing_required_parameter"


def test_unknown_model_lists_what_exists(http: httpx.Client) -> None:
    error = refused(http.post(CHAT, json={"messages": HELLO, "model": "gpt-9"}), 404, "model")
    assert error["code"] == "model_not_found"
    assert "clawrl" in error["message"] and "base" in error["message"]
    refused(http.get("/v1/models/gpt-9"), 404, "model")


def test_routes_and_methods(http: httpx.Client) -> None:
    refused(http.get("/nowhere"), 404)
    refused(http.get("/v1/nowhere"), 404)
    refused(http.get("/v1/../admin"), 404)
    refused(http.get("/v1/a/..%2f..%2fload_lora_adapter"), 404)
    refused(http.get("/s/x/nowhere"), 404)
    refused(http.get("/v1/admin/nowhere"), 404)
    refused(http.get(CHAT), 405)
    refused(http.delete("/v1/models"), 405)
    refused(http.post("/healthz"), 405)
    refused(http.get("/s/%ff/v1/models"), 400)


def test_too_large_a_body(http: httpx.Client) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 2**20}]}).encode()
    assert refused(http.post(CHAT, content=body), 413)["code"] == "body_too_large"

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]

    refused(http.post(CHAT, content=chunks()), 413)


def test_a_big_body_is_served(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "word " * 1000} for _ in range(1000)]
    with running(tmp_path) as rig, rig.client() as http:
        assert http.post(CHAT, json={"messages": messages}).status_code == 200
        assert rig.turn().messages == messages


def test_nul_and_half_surrogates_do_not_break_the_ledger(rig: Rig) -> None:
    raw = b'{"messages": [{"role": "user", "content": "a\\u0000b\\ud800c"}], "session_id": "s\\u0000\\udfff"}'
    with rig.client() as http:
        assert http.post(CHAT, content=raw).status_code == 200
        assert http.post("/s/a%00b/v1/chat/completions", json={"messages": HELLO}).status_code == 200
    contents = {turn.messages[0]["content"] for turn in rig.turns()}
    assert contents == {"a\ufffdb\ufffdc", "hello"}


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(values, st.booleans())
def test_json_is_decoded_as_json_does(value: Any, ascii_only: bool) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace")
    assert decode_json(raw) == json.loads(raw)


@given(st.text(st.sampled_from('{}[]",:0123456789.eE+-truefalsnNaIity\\ud8\t ')) | st.text())
def test_what_json_refuses_is_refused(text: str) -> None:
    try:
        expected = json.loads(text, parse_constant=lambda name: float(name + "?"))
    except (ValueError, RecursionError):
        with pytest.raises((ValueError, RecursionError)):
            decode_json(text.encode("utf-8", "surrogatepass"))
    else:
        assert decode_json(text.encode("utf-8", "surrogatepass")) == expected


roles = st.sampled_from(["user", "assistant", "system", "tool", "developer", "", "x"])
known_roles = st.sampled_from(["user", "assistant", "system", "tool", "developer", "function"])
parts = st.fixed_dictionaries(
    {}, optional={"type": st.sampled_from(["text", "image_url", "x"]) | values, "text": values}
)
functions = st.fixed_dictionaries({}, optional={"name": values, "arguments": values})
calls = st.fixed_dictionaries({}, optional={"id": values, "type": values, "function": functions | values})
messages = st.fixed_dictionaries(
    {"role": roles},
    optional={
        "content": st.text(max_size=30) | st.lists(parts, max_size=3) | values,
        "tool_calls": st.lists(calls, max_size=2) | values,
        "tool_call_id": values,
        "name": values,
        "reasoning_content": values,
    },
)
bodies = st.fixed_dictionaries(
    {"messages": st.lists(messages | values, max_size=4) | values},
    optional={
        **dict.fromkeys(("model", "stream", "n", "stop", "session_id", "turn_type", "session_done"), values),
        **dict.fromkeys(("prompt_cache_key", "stream_options", "response_format", "tool_choice"), values),
        "tools": st.lists(values, max_size=2) | values,
    },
)
odd_but_valid = st.lists(
    st.fixed_dictionaries(
        {"role": known_roles},
        optional={
            "content": st.none()
            | st.text(max_size=30)
            | st.lists(st.dictionaries(st.text(max_size=4), values, max_size=3)),
            "tool_calls": st.lists(
                st.fixed_dictionaries(
                    {},
                    optional={
                        "id": st.none() | st.text(max_size=4),
                        "function": st.fixed_dictionaries(
                            {}, optional={"name": st.none() | st.text(max_size=4), "arguments": st.text(max_size=9)}
                        ),
                    },
                ),
                max_size=2,
            ),
            "extra": values,
        },
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=odd_but_valid, session=st.none() | st.text(max_size=5), stream=st.booleans())
def test_odd_messages_are_served(http: httpx.Client, messages: list[Any], session: str | None, stream: bool) -> None:
    body = {"messages": messages, "session_id": session, "stream": stream}
    answer = http.post(CHAT, content=json.dumps(body))
    assert answer.status_code == 200, answer.text
    assert '"error"' not in answer.text


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies)
def test_no_body_is_a_fault_of_ours(http: httpx.Client, body: dict[str, Any]) -> None:
    answer = http.post(CHAT, content=json.dumps(body))
    assert answer.status_code in (200, 400, 404), (answer.status_code, answer.text)
    if answer.status_code != 200:
        refused(answer, answer.status_code)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.dictionaries(
        st.sampled_from(["turn_id", "id", "completion_id", "score", "text", "thumbs", "outcome"]), values
    )
)
def test_no_feedback_is_a_fault_of_ours(http: httpx.Client, body: dict[str, Any]) -> None:
    answer = http.post("/v1/feedback", content=json.dumps(body))
    refused(answer, 404 if answer.status_code == 404 else 400)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=60))
def test_no_bytes_are_a_fault_of_ours(http: httpx.Client, raw: bytes) -> None:
    refused(http.post(CHAT, content=raw), 400)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"])
def test_one_request_more_than_may_wait_is_refused(tmp_path: Path, path: str) -> None:
    asked = {"messages": HELLO, "prompt": "hello", "input": "hello", "max_tokens": 9}
    fields = {"/v1/responses": ("input",), "/v1/completions": ("prompt",)}.get(path, ("messages", "max_tokens"))
    with running(tmp_path, max_running=1, max_waiting=1) as rig, rig.client() as http:
        rig.engine.script += [pauses(("one",), ("two",))] * 2
        streamed = {"messages": HELLO, "stream": True}
        with http.stream("POST", CHAT, json=streamed) as first, http.stream("POST", CHAT, json=streamed) as second:
            answer = http.post(path, json={name: asked[name] for name in fields})
            assert answer.status_code == 429 and int(answer.headers["retry-after"]) > 0
            error = answer.json()["error"]
            assert error["type"] == "rate_limit_error"
            assert path == "/v1/messages" or error["code"] == "rate_limit_exceeded"
            rig.engine.go_on.set()
            assert all("[DONE]" in one.read().decode() for one in (first, second))
        wait_until(lambda: rig.gateway.in_flight == 0)
        assert http.post(CHAT, json={"messages": HELLO}).status_code == 200
        assert len(rig.turns()) == 3


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": HELLO * 9000}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}] * 9000}]}, "messages.0.content"),
        (CHAT, {"messages": HELLO, "tools": [{}] * 513}, "tools"),
        (CHAT, {"messages": HELLO, "stop": ["x"] * 65}, "stop"),
        (CHAT, {"messages": HELLO, "logit_bias": {str(i): 1 for i in range(5000)}}, "logit_bias"),
        ("/v1/completions", {"prompt": ["x"] * 2000}, "prompt"),
        ("/v1/completions", {"prompt": ["x"] * 20, "n": 128}, "prompt"),
        ("/v1/completions", {"prompt": "x", "best_of": 129}, "best_of"),
        ("/v1/responses", {"input": [{"role": "user", "content": "x"}] * 9000}, "input"),
    ],
)
def test_too_many_of_anything(http: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    refused(http.post(path, json=body), 400, param)


def test_many_values_are_not_parsed(http: httpx.Client, tmp_path: Path) -> None:
    with running(tmp_path) as rig, rig.client() as roomy:
        raw = b'{"messages": [' + b"1," * 3_000_000 + b"1]}"
        assert "values" in refused(roomy.post(CHAT, content=raw), 400)["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "word " * 20_000}]}),
        ("/v1/completions", {"prompt": "word " * 20_000}),
        ("/v1/responses", {"input": "word " * 20_000}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "word " * 20_000}], "max_tokens": 5}),
    ],
)
def test_a_text_that_fits_no_context_does_not_reach_the_engine(rig: Rig, path: str, body: dict[str, Any]) -> None:
    rig.engine.states = {"max_model_len": 1000, "max_prompt_chars": 90_000}
    with rig.client() as http:
        answer = http.post(path, json=body)
        assert answer.status_code == 400
        assert "maximum context length is 1000 tokens" in answer.json()["error"]["message"]
        assert not rig.engine.requests
        rig.engine.states = {"max_model_len": 1000, "max_prompt_chars": 200_000}
        assert http.post(path, json=body).status_code == 200


def test_what_the_assistant_said_may_be_left_out_by_a_template(rig: Rig) -> None:
    rig.engine.states = {"max_model_len": 1000, "max_prompt_chars": 90_000}
    said = {"role": "assistant", "content": "word " * 20_000}
    with rig.client() as http:
        assert http.post(CHAT, json={"messages": [*HELLO, said, *HELLO]}).status_code == 200


def test_a_body_longer_than_any_prompt_is_not_read(rig: Rig) -> None:
    rig.engine.states = {"max_prompt_chars": 90_000}

    def undeclared() -> Iterator[bytes]:
        for _ in range(ALWAYS_READ_BYTES // 2**16 + 1):
            yield b" " * 2**16

    with rig.client() as http:
        answer = http.post(CHAT, content=b" " * (ALWAYS_READ_BYTES + 1))
        assert "8 MiB" in refused(answer, 413)["message"]
        refused(http.post(CHAT, content=undeclared()), 413)
        rig.engine.states = {}
        assert "JSON" in refused(http.post(CHAT, content=b" " * (ALWAYS_READ_BYTES + 1)), 400)["message"]


def test_a_client_is_not_looked_for_in_a_very_long_message() -> None:
    marked = "<system-reminder>be brief</system-reminder>hello"
    assert read([{"role": "user", "content": marked}]).notes[0].text == "hello"
    long = marked + " " + "word " * (MOST_READ // 5)
    note = read([{"role": "user", "content": long}]).notes[0]
    assert (note.text, note.provenance) == (long.strip(), "owner")


def test_the_first_wrong_item_ends_the_check() -> None:
    for model, name, wrong in (
        (ChatRequest, "messages", ["x"] * 5000),
        (ChatRequest, "tools", ["x"] * 5000),
        (CompletionRequest, "prompt", [5.5] * 5000),
    ):
        with pytest.raises(ValidationError) as caught:
            model.model_validate({"messages": HELLO, "prompt": "x", name: wrong})
        assert caught.value.error_count() <= 4  # one for each branch of a union


def test_the_header_of_many_turns_stays_short(rig: Rig) -> None:
    with rig.client() as http:
        answer = http.post("/v1/completions", json={"prompt": ["x"] * 100, "max_tokens": 1})
    assert len(answer.headers["x-clawrl-turn-id"]) < 4096
    assert answer.headers["x-clawrl-turn-count"] == "100"
