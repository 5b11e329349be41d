"""`/v1/messages` through the official client: said as Anthropic says it, captured as chat completions are."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from api_clients import PARAMETERS, anthropic_of, call_delta, more_arguments, named_events, says_all
from gateway_rig import Rig, endless, fails, hangs_up, pauses, running, says, wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_engine import RealEngine
from test_gateway_input import values
from transformers import AutoTokenizer

from clawrl_trl.gateway.auth import Keys
from clawrl_trl.judge.turn import JudgedTurn
from clawrl_trl.ledger import schema, turns
from clawrl_trl.tiny import MODEL_PATH

Json = dict[str, Any]

PATH = "/v1/messages"
HELLO: Any = [{"role": "user", "content": "hello"}]
CALCULATOR: Any = {"name": "calculator", "description": "Compute.", "input_schema": PARAMETERS, "strict": True}
QUESTION = "Tom has 5 apples. He buys 7 more apples. How many apples does Tom have now?"
SUMS = call_delta(0, "call_1", "add", '{"a"'), more_arguments(0, ": 1}"), call_delta(1, "call_2", "sub", "{}")
SESSION = "57a121ec-f78c-48c3-a745-e3036a3ecc33"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("shared")) as rig:
        yield rig


@pytest.fixture(scope="module")
def http(shared: Rig) -> Iterator[httpx.Client]:
    with shared.client() as client:
        yield client


def results(*ids: str, failed: str = "") -> Json:
    """The user message with the results of tools."""
    blocks = [{"type": "tool_result", "tool_use_id": one, "content": f"result of {one}"} for one in ids]
    for block in blocks:
        if block["tool_use_id"] == failed:
            block |= {"is_error": True, "content": "no such file"}  # type: ignore[dict-item]
    return {"role": "user", "content": blocks}


# What is asked of the engine


def test_the_engine_is_asked_for_a_chat_completion(rig: Rig) -> None:
    anthropic_of(rig).messages.create(
        model="clawrl",
        max_tokens=50,
        system=[
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Be kind."},
        ],
        messages=HELLO,
        stop_sequences=["STOP"],
        metadata={"user_id": "me"},
        thinking={"type": "enabled", "budget_tokens": 1024},
        tools=[CALCULATOR],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        service_tier="auto",
        extra_body={"seed": 3, "temperature": 0.7, "top_p": 1.0, "top_k": 0},
        extra_headers={"anthropic-beta": "some-feature"},
    )
    asked = rig.engine.requests[0]
    assert asked["messages"] == [{"role": "system", "content": "Be brief.\n\nBe kind."}, *HELLO]
    assert (asked["max_tokens"], asked["temperature"], asked["stop"], asked["seed"]) == (50, 0.7, ["STOP"], 3)
    function = {"name": "calculator", "description": "Compute.", "parameters": PARAMETERS}
    assert asked["tools"] == [{"type": "function", "function": function}]
    assert (asked["tool_choice"], asked["parallel_tool_calls"]) == ("auto", False)
    assert asked["chat_template_kwargs"] == {"enable_thinking": True}
    turn = rig.turn()
    assert turn.trainable and turn.provenance == ["system", "owner"]
    assert turn.sampling["max_tokens"] == 50 and turn.sampling["api"] == {"name": "messages"}


@pytest.mark.parametrize(
    ("choice", "asked"),
    [
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "calculator"}, {"type": "function", "function": {"name": "calculator"}}),
    ],
)
def test_tool_choices(rig: Rig, choice: Any, asked: Any) -> None:
    client = anthropic_of(rig)
    client.messages.create(model="clawrl", max_tokens=9, messages=HELLO, tools=[CALCULATOR], tool_choice=choice)
    assert rig.engine.requests[0]["tool_choice"] == asked


def test_blocks_become_messages(rig: Rig) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    image = {"type": "image", "source": source}
    messages: Any = [
        {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                {"type": "tool_use", "id": "c2", "name": "see", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "no such number", "is_error": True},
                {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "seen"}, image]},
                {"type": "text", "text": "go on"},
                {"type": "text", "text": "please"},
            ],
        },
    ]
    anthropic_of(rig).messages.create(model="clawrl", max_tokens=9, messages=messages)
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
        {"id": "c2", "type": "function", "function": {"name": "see", "arguments": "{}"}},
    ]
    assert rig.engine.requests[0]["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "look"}, part]},
        {"role": "assistant", "content": "Let me see.", "reasoning": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "Error: no such number"},
        {"role": "tool", "tool_call_id": "c2", "content": "seen"},
        {"role": "user", "content": [{"type": "text", "text": "Attached image(s) from tool result:"}, part]},
        {"role": "user", "content": [{"type": "text", "text": "go on"}, {"type": "text", "text": "please"}]},
    ]
    assert rig.turn().provenance == ["owner", "assistant", "tool", "tool", "tool", "owner"]


def test_a_beginning_of_the_reply_is_continued(rig: Rig) -> None:
    client = anthropic_of(rig)
    begun: Any = [*HELLO, {"role": "assistant", "content": "zero "}]
    reply = client.messages.create(model="clawrl", max_tokens=9, messages=begun)
    asked = rig.engine.requests[0]
    assert asked["continue_final_message"] is True and asked["add_generation_prompt"] is False
    whole = "zero " + reply.content[0].text  # type: ignore[union-attr]
    more: Any = [*HELLO, {"role": "assistant", "content": whole}, {"role": "user", "content": "more"}]
    client.messages.create(model="clawrl", max_tokens=9, messages=more)
    one, two = rig.turns()
    assert two.parent_id == one.id and one.next_state == [{"role": "user", "content": "more"}]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [CALCULATOR, {"type": "bash_20250124", "name": "bash"}]}, "tools.1.type"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [CALCULATOR], "tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
            "messages.0.content.0.type",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}
                ]
            },
            "messages.0.content.0.source.type",
        ),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": [{"type": "server_tool_use"}]}]},
            "messages.1.content.0.type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, *results("c")["content"]]}]},
            "messages.0.content.1.type",
        ),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": []}, "messages"),
        ({"system": [{"type": "image"}]}, "system.0.type"),
        ({"thinking": {"type": "wild"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "grammar"}}}, "output_config.format.type"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_can_not_be_translated_is_named(http: httpx.Client, shared: Rig, change: Json, where: str) -> None:
    before = len(shared.engine.requests)
    answer = http.post(PATH, json={"model": "clawrl", "max_tokens": 9, "messages": HELLO, **change})
    refusal = answer.json()
    assert answer.status_code == 400 and refusal["type"] == "error"
    assert refusal["error"]["type"] == "invalid_request_error"
    assert where in refusal["error"]["message"]
    assert len(shared.engine.requests) == before


blocks = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "image", "tool_use", "tool_result", "thinking", "x"]) | values,
        **dict.fromkeys(
            ("text", "thinking", "source", "id", "name", "input", "tool_use_id", "content", "is_error"), values
        ),
    },
)
bodies = st.fixed_dictionaries(
    {
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "assistant", "system"]) | values},
                optional={"content": st.text(max_size=9) | st.lists(blocks, max_size=3) | values},
            )
            | values,
            max_size=3,
        )
        | values
    },
    optional={
        "max_tokens": st.integers(1, 50) | values,
        **dict.fromkeys(("model", "system", "stream", "tools", "tool_choice", "thinking", "output_config"), values),
        **dict.fromkeys(("metadata", "stop_sequences", "session_id", "chat_template_kwargs"), values),
    },
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies)
def test_no_body_is_a_fault_of_ours(http: httpx.Client, body: Json) -> None:
    for path in (PATH, f"{PATH}/count_tokens"):
        answer = http.post(path, content=json.dumps(body))
        # The scripted engine counts no tokens: a request that gets as far as that ends there.
        assert answer.status_code in (200, 400, 404), (answer.status_code, answer.text)
        if answer.status_code != 200:
            assert answer.json()["error"].keys() == {"type", "message"}


# What the client is told


def test_a_plain_message(rig: Rig) -> None:
    rig.engine.script.append(
        says_all({"reasoning_content": "hm"}, {"content": "\n\n"}, *SUMS, finish_reason="tool_calls")
    )
    raw = anthropic_of(rig).messages.with_raw_response.create(
        model="clawrl", max_tokens=9, messages=HELLO, tools=[CALCULATOR]
    )
    message, turn = raw.parse(), rig.turn()
    assert message.id == turn.completion_id == f"msg_{turn.id}" and raw.headers["x-clawrl-turn-id"] == turn.id
    thought, add, sub = message.content
    assert thought.type == "thinking" and thought.thinking == "hm"
    assert add.type == "tool_use" and (add.id, add.name, add.input) == ("call_1", "add", {"a": 1})
    assert sub.type == "tool_use" and (sub.id, sub.name, sub.input) == ("call_2", "sub", {})
    assert (message.stop_reason, message.stop_sequence, message.model) == ("tool_use", None, "clawrl")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (3, 5)
    assert turn.trainable and turn.finish_reason == "tool_calls"


def test_a_streamed_message_event_by_event(rig: Rig) -> None:
    deltas = {"reasoning_content": "hm"}, {"content": "So"}, {"content": "."}, *SUMS
    rig.engine.script.append(says_all(*deltas, finish_reason="tool_calls"))
    with rig.client() as http:
        events = named_events(http.post(PATH, json={"messages": HELLO, "max_tokens": 9, "stream": True}))
    blocks = [("thinking", 1), ("text", 2), ("tool_use", 2), ("tool_use", 1)]
    expected = ["message_start", "ping"]
    for _, deltas_in_it in blocks:
        expected += ["content_block_start", *["content_block_delta"] * deltas_in_it, "content_block_stop"]
    assert [name for name, _ in events] == [*expected, "message_delta", "message_stop"]
    starts = [event["content_block"]["type"] for name, event in events if name == "content_block_start"]
    assert starts == [kind for kind, _ in blocks]
    assert events[0][1]["message"]["usage"]["input_tokens"] == 3
    assert events[-2][1]["delta"]["stop_reason"] == "tool_use" and events[-2][1]["usage"]["output_tokens"] == 6


def test_the_sdk_puts_a_stream_together(rig: Rig) -> None:
    rig.engine.script.append(
        says_all({"reasoning_content": "hm"}, {"content": "So"}, *SUMS, finish_reason="tool_calls")
    )
    with anthropic_of(rig).messages.stream(model="clawrl", max_tokens=9, messages=HELLO) as stream:
        message = stream.get_final_message()
    thought, text, add, sub = message.content
    assert thought.type == "thinking" and thought.thinking == "hm"
    assert text.type == "text" and text.text == "So"
    assert add.type == sub.type == "tool_use" and (add.input, sub.input) == ({"a": 1}, {})
    assert message.stop_reason == "tool_use" and message.usage.output_tokens == 5


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("finish", "stopped_by", "reason"),
    [
        ("stop", None, "end_turn"),
        ("stop", 151645, "end_turn"),
        ("stop", "STOP", "stop_sequence"),
        ("length", None, "max_tokens"),
    ],
)
def test_stop_reasons(rig: Rig, finish: str, stopped_by: Any, reason: str, stream: bool) -> None:
    rig.engine.script.append(says_all({"content": "a"}, finish_reason=finish, stop_reason=stopped_by))
    options: Any = {"model": "clawrl", "max_tokens": 9, "messages": HELLO}
    if stream:
        with anthropic_of(rig).messages.stream(**options) as events:
            message: Any = events.get_final_message()
    else:
        message = anthropic_of(rig).messages.create(**options)
    assert message.stop_reason == reason
    assert message.stop_sequence == (stopped_by if reason == "stop_sequence" else None)


def test_the_last_event_waits_for_the_commit(rig: Rig) -> None:
    rig.engine.script.append(pauses(("one", " two"), (" three",)))
    seen = []
    events = anthropic_of(rig).messages.create(model="clawrl", max_tokens=9, messages=HELLO, stream=True)
    for event in events:
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            seen.append(event.delta.text)
            assert len(seen) == 3 or rig.turns() == []
            if len(seen) == 2:
                rig.engine.go_on.set()
        elif event.type == "message_stop":
            assert rig.turn().finish_reason == "stop"
    assert seen == ["one", " two", " three"]


def test_errors_have_anthropics_shape(rig: Rig) -> None:
    client = anthropic_of(rig)

    def refused(kind: type[anthropic.APIStatusError], name: str, **options: Any) -> None:
        with pytest.raises(kind) as caught:
            client.messages.create(**({"model": "clawrl", "max_tokens": 9, "messages": HELLO} | options))
        body: Any = caught.value.body
        assert body["type"] == "error" and body["error"]["type"] == name and body["error"]["message"]

    refused(anthropic.NotFoundError, "not_found_error", model="claude-9")
    rig.engine.script += [fails(400, "too long"), fails(429, "too many"), fails(500, "CUDA error")]
    refused(anthropic.BadRequestError, "invalid_request_error")
    refused(anthropic.RateLimitError, "rate_limit_error", stream=True)
    refused(anthropic.InternalServerError, "api_error")
    with rig.client() as http:
        assert http.get(PATH).json()["error"]["type"] == "invalid_request_error"
        assert http.get(PATH).status_code == 405
        assert http.post(f"{PATH}/batches", json={}).json()["error"]["type"] == "not_found_error"
        guarded = http.post("/s/a/v1/messages", json={}, headers={"Origin": "https://evil.example"})
        assert guarded.status_code == 403 and guarded.json()["error"]["type"] == "permission_error"
    assert rig.turns() == []


def test_a_stream_that_breaks_off_says_so(rig: Rig) -> None:
    rig.engine.script.append(hangs_up("one", " two"))
    with rig.client() as http:
        events = named_events(http.post(PATH, json={"messages": HELLO, "max_tokens": 9, "stream": True}))
    name, error = events[-1]
    assert name == "error" and error["error"]["type"] == "overloaded_error" and error["error"]["message"]
    assert rig.turn().finish_reason == "abort" and rig.turn().response["content"] == "one two"
    rig.engine.script.append(hangs_up("one", " two"))
    stream = anthropic_of(rig).messages.create(model="clawrl", max_tokens=9, messages=HELLO, stream=True)
    with pytest.raises(anthropic.APIStatusError):
        list(stream)


def test_a_client_that_leaves_cancels_and_what_was_sampled_is_kept(rig: Rig) -> None:
    rig.engine.script.append(endless("one", " two"))
    with anthropic_of(rig).messages.stream(model="clawrl", max_tokens=9, messages=HELLO) as stream:
        texts = stream.text_stream
        assert [next(texts), next(texts)] == ["one", " two"]
    assert rig.engine.hung_up.wait(10)
    wait_until(lambda: rig.gateway.in_flight == 0 and len(rig.turns()) > 0)
    turn = rig.turn()
    assert turn.finish_reason == "abort" and turn.trainable and turn.completion_ids is not None
    assert turn.completion_ids.tolist() == [100, 101]


def test_keys_as_anthropic_clients_send_them(tmp_path: Path) -> None:
    with running(tmp_path, keys=Keys(chat=("alice-key",))) as rig:
        options: Any = {"model": "clawrl", "max_tokens": 9, "messages": HELLO}
        anthropic_of(rig, "alice-key").messages.create(**options)
        bearer = anthropic.Anthropic(base_url=rig.root, auth_token="alice-key", api_key=None, max_retries=0)
        bearer.messages.create(**options)
        with pytest.raises(anthropic.AuthenticationError) as caught:
            anthropic_of(rig, "wrong").messages.create(**options)
        body: Any = caught.value.body
        assert body["error"]["type"] == "authentication_error"
        assert len(rig.turns()) == 2
        assert "clawrl" in [one.id for one in anthropic_of(rig, "alice-key").models.list()]


# Conversations


def test_tools_and_their_results_are_one_session(rig: Rig) -> None:
    client = anthropic_of(rig)
    rig.engine.script.append(
        says_all({"reasoning_content": "hm"}, {"content": "So."}, *SUMS, finish_reason="tool_calls")
    )
    options: Any = {"model": "clawrl", "max_tokens": 9, "tools": [CALCULATOR], "system": "Be brief."}
    messages: Any = [{"role": "user", "content": "sum up"}]
    first = client.messages.create(messages=messages, **options)
    messages += [first.to_param(), results("call_1", "call_2", failed="call_2")]
    second = client.messages.create(messages=messages, **options)
    messages += [second.to_param(), {"role": "user", "content": "thanks"}]
    client.messages.create(messages=messages, **options)
    one, two, three = rig.turns()
    assert one.session_id == two.session_id == three.session_id
    assert (two.parent_id, three.parent_id) == (one.id, two.id)
    assert one.next_state == [
        {"role": "tool", "tool_call_id": "call_1", "content": "result of call_1"},
        {"role": "tool", "tool_call_id": "call_2", "content": "Error: no such file"},
    ]
    assert one.next_state_provenance == ["tool", "tool"] and two.next_state_provenance == ["owner"]
    assert one.state == two.state == "judging"
    assert JudgedTurn.of(one, []).said_by("tool") == ["result of call_1", "Error: no such file"]
    assert all(turn.trainable and turn.kind == "main" for turn in (one, two, three))


@pytest.mark.parametrize(
    ("user_id", "headers", "source"),
    [
        (f"user_{'0' * 64}_account__session_{SESSION}", {}, "body:metadata.user_id"),
        (
            f"user_{'0' * 64}_account_11111111-2222-4333-8444-555555555555_session_{SESSION}",
            {},
            "body:metadata.user_id",
        ),
        (json.dumps({"device_id": "d", "account_uuid": "", "session_id": SESSION}), {}, "body:metadata.user_id"),
        (None, {"X-Claude-Code-Session-Id": SESSION}, "header:x-claude-code-session-id"),
    ],
)
def test_a_coding_agents_session(rig: Rig, user_id: str | None, headers: dict[str, str], source: str) -> None:
    """As Claude Code names it: in `metadata.user_id` in two ways, and in a header."""
    client = anthropic_of(rig)
    metadata: Any = {"user_id": user_id} if user_id else {}
    options: Any = {"model": "clawrl", "max_tokens": 9, "metadata": metadata, "extra_headers": headers}

    def system(stamp: str) -> Any:
        telemetry = f"x-anthropic-billing-header: cc_version=2.1.0.abc; cc_entrypoint=cli; cch={stamp};"
        return [{"type": "text", "text": telemetry}, {"type": "text", "text": "You are a coding agent."}]

    title = "Analyze if this message indicates a new conversation topic."
    client.messages.create(messages=HELLO, system=title, **options)
    reminded = [{"type": "text", "text": "<system-reminder>\nIt is Friday.\n</system-reminder>"}, *_text("hello")]
    messages: Any = [{"role": "user", "content": reminded}]
    first = client.messages.create(messages=messages, system=system("aaaaa"), tools=[CALCULATOR], **options)
    stopped = [*_text("[Request interrupted by user]"), *_text("more")]
    messages = [{"role": "user", "content": _text("hello")}, first.to_param(), {"role": "user", "content": stopped}]
    client.messages.create(messages=messages, system=system("bbbbb"), tools=[CALCULATOR], **options)
    side, one, two = rig.turns()
    assert [side.kind, one.kind, two.kind] == ["side", "main", "main"]
    assert side.session_id == one.session_id == two.session_id and two.parent_id == one.id
    assert one.next_state == [{"role": "user", "content": "more"}]
    assert {turn.messages[0]["content"] for turn in (one, two)} == {"You are a coding agent."}
    with rig.ledger.reader() as tx:
        session = turns.find_session(tx, SESSION)
        assert session is not None and session.id == one.session_id and session.identity_source == source


def _text(said: str) -> list[Json]:
    return [{"type": "text", "text": said}]


def test_ids_of_sessions_are_those_of_chat(rig: Rig) -> None:
    client = anthropic_of(rig)
    options: Any = {"model": "clawrl", "max_tokens": 9}
    named = {"metadata": {"user_id": f"user_0_account__session_{SESSION}"}}
    client.messages.create(messages=HELLO, extra_headers={"X-Session-Id": "by-header"}, **options, **named)
    by_url = anthropic.Anthropic(base_url=f"{rig.root}/s/by-url", api_key="x", max_retries=0)
    by_url.messages.create(messages=HELLO, **options, **named)  # type: ignore[arg-type]
    with rig.ledger.reader() as tx:
        assert turns.find_session(tx, "by-header") and turns.find_session(tx, "by-url")
        assert not tx.get(schema.Session, SESSION)


def test_plain_words_are_answered_with_plain_words(rig: Rig) -> None:
    """The wire itself, without a client's help."""
    rig.engine.script.append(says("Hi."))
    with rig.client() as http:
        answer = http.post(PATH, json={"messages": HELLO, "max_tokens": 9, "system": ""}).json()
    assert answer["content"] == [{"type": "text", "text": "Hi."}]
    assert rig.engine.requests[0]["messages"] == HELLO


# With the bundled model


@pytest.mark.xdist_group("bundled model")
@pytest.mark.parametrize("stream", [False, True])
def test_two_turns_with_the_bundled_model(tiny: RealEngine, tmp_path: Path, stream: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    with running(tmp_path, engine_url=tiny.url, max_model_len=512) as rig:
        client = anthropic_of(rig)
        messages: Any = []
        said: list[Any] = []
        for words in (QUESTION, "Thanks, that is just right!"):
            messages.append({"role": "user", "content": words})
            options: Any = {"model": "clawrl", "messages": messages, "max_tokens": 120, "system": "You help kindly."}
            options["extra_body"] = {"seed": 0}
            if stream:
                with client.messages.stream(**options) as events:
                    said.append(events.get_final_message())
            else:
                said.append(client.messages.create(**options))
            messages.append(said[-1].to_param())
        one, two = rig.turns()
        assert one.session_id == two.session_id and two.parent_id == one.id
        assert one.provenance == ["system", "owner"]
        assert one.state == "judging" and one.next_state == [
            {"role": "user", "content": "Thanks, that is just right!"}
        ]
        assert one.next_state_provenance == ["owner"]
        for turn, message in zip((one, two), said, strict=True):
            text = "".join(block.text for block in message.content if block.type == "text")
            assert turn.trainable and turn.completion_ids is not None
            assert tokenizer.decode(turn.completion_ids, skip_special_tokens=True) == text != ""
