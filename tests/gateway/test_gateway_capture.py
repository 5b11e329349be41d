"""What a client reads is in the ledger, token for token, before it has read the end."""

import json
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from gateway_rig import (
    PROMPT_IDS,
    Rig,
    ScriptedEngine,
    ServerThread,
    chunk,
    completion_chunk,
    data,
    endless,
    fails,
    hangs_up,
    pauses,
    running,
    says,
    sse,
    stream_of,
    streams,
    usage,
    wait_until,
)
from sqlalchemy import event
from starlette.responses import Response

from clawrl_trl.ledger import schema, turns

HELLO = [{"role": "user", "content": "hello"}]


def official(rig: Rig) -> openai.OpenAI:
    return openai.OpenAI(base_url=rig.url, api_key="none-needed", max_retries=0)


def test_plain_reply_is_captured(rig: Rig) -> None:
    raw = official(rig).chat.completions.with_raw_response.create(model="clawrl", messages=HELLO, seed=7)
    reply = raw.parse()
    assert reply.choices[0].message.content == "one two three"
    assert reply.usage is not None and reply.usage.completion_tokens == 3
    turn = rig.turn()
    assert raw.headers["x-clawrl-turn-id"] == turn.id
    assert raw.headers["x-clawrl-policy-version"] == "0"
    assert reply.id == turn.completion_id == f"chatcmpl-{turn.id}"
    assert turn.prompt_ids is not None and turn.prompt_ids.tolist() == PROMPT_IDS
    assert turn.completion_ids is not None and turn.completion_ids.tolist() == [100, 101, 102]
    np.testing.assert_allclose(turn.logprobs, [-0.5, -1.5, -2.5])
    assert turn.trainable and turn.untrainable_reason is None
    assert (turn.state, turn.kind, turn.finish_reason) == ("awaiting_next_state", "main", "stop")
    assert turn.messages == HELLO
    assert turn.response == {"role": "assistant", "content": "one two three"}
    assert turn.sampling["temperature"] == 1.0 and turn.sampling["seed"] == 7
    assert turn.policy_version == 0 and turn.model == "base"


def test_engine_is_asked_for_plain_sampling_and_ids(rig: Rig) -> None:
    official(rig).chat.completions.create(model="clawrl", messages=HELLO)
    asked = rig.engine.requests[0]
    assert asked["model"] == "base"
    assert asked["return_token_ids"] is True and asked["logprobs"] is True and asked["top_logprobs"] == 0
    assert (asked["temperature"], asked["top_p"], asked["top_k"], asked["min_p"]) == (1.0, 1.0, 0, 0.0)
    assert asked["stream"] is True and asked["stream_options"]["continuous_usage_stats"] is True


def test_client_sees_only_what_it_asked_for(rig: Rig) -> None:
    with rig.client() as http:
        plain = http.post("/v1/chat/completions", json={"messages": HELLO}).json()
        assert "prompt_token_ids" not in plain and "token_ids" not in plain["choices"][0]
        assert plain["choices"][0]["logprobs"] is None
        assert plain["model"] == "clawrl"
        asked = {"messages": HELLO, "logprobs": True, "top_logprobs": 2, "return_token_ids": True, "model": "base"}
        full = http.post("/v1/chat/completions", json=asked).json()
        assert full["prompt_token_ids"] == PROMPT_IDS
        assert full["choices"][0]["token_ids"] == [100, 101, 102]
        assert len(full["choices"][0]["logprobs"]["content"]) == 3
        assert rig.engine.requests[-1]["top_logprobs"] == 2


def test_stream_is_passed_on_and_captured(rig: Rig) -> None:
    stream = official(rig).chat.completions.create(
        model="clawrl", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    events = list(stream)
    assert [event.choices[0].delta.content for event in events if event.choices] == ["one", " two", " three"]
    assert events[-1].usage is not None and events[-1].usage.completion_tokens == 3
    assert all(event.usage is None for event in events[:-1])
    turn = rig.turn()
    assert {event.id for event in events} == {turn.completion_id}
    assert turn.completion_ids is not None and turn.completion_ids.tolist() == [100, 101, 102]
    assert turn.trainable
    assert turn.timings["ttft_s"] <= turn.timings["total_s"]


def test_stream_has_no_usage_event_unless_asked(rig: Rig) -> None:
    with rig.client() as http:
        text = http.post("/v1/chat/completions", json={"messages": HELLO, "stream": True}).text
    assert text.endswith("data: [DONE]\n\n")
    events = sse(text)
    assert all(event["choices"] for event in events)
    assert not any({"usage", "prompt_token_ids"} & event.keys() for event in events)
    assert not any("token_ids" in event["choices"][0] for event in events)


def test_last_event_waits_for_the_commit(rig: Rig) -> None:
    """The client holds the first words while the turn is not there, and the last event only when it is."""
    rig.engine.script.append(pauses(("one", " two"), (" three",)))
    seen = []
    with (
        rig.client() as http,
        http.stream("POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True}) as response,
    ):
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            choice = json.loads(line.removeprefix("data: "))["choices"][0]
            seen.append(choice["delta"]["content"])
            if choice["finish_reason"] is None:
                assert rig.turns() == []
            else:
                assert rig.turn().finish_reason == "stop"
            if len(seen) == 2:
                rig.engine.go_on.set()
    assert seen == ["one", " two", " three"]


def test_disconnect_cancels_and_keeps_what_was_sampled(rig: Rig) -> None:
    rig.engine.script.append(endless("one", " two"))
    with (
        rig.client() as http,
        http.stream("POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True}) as r,
    ):
        words = 0
        for line in r.iter_lines():
            words += line.startswith("data: {")
            if words == 2:
                break
    assert rig.engine.hung_up.wait(10)
    turn = wait_for_turn(rig)
    assert turn.finish_reason == "abort"
    assert turn.completion_ids is not None and turn.completion_ids.tolist() == [100, 101]
    assert turn.response["content"] == "one two"
    assert turn.trainable and turn.state == "awaiting_next_state"


@pytest.mark.parametrize("by_the_client", [True, False])
def test_what_follows_a_reply_is_about_it_if_its_client_cut_it(rig: Rig, by_the_client: bool) -> None:
    rig.engine.script.append(endless("one", " two") if by_the_client else hangs_up("one", " two"))
    with rig.client() as http:
        body = {"messages": HELLO, "stream": True}
        with http.stream("POST", "/v1/chat/completions", json=body, headers={"X-Session-Id": "s"}) as reply:
            for line in reply.iter_lines():
                if by_the_client and " two" in line:
                    break
        cut = wait_for_turn(rig)
        assert cut.finish_reason == "abort" and cut.response["content"] == "one two"
        more = [*HELLO, {"role": "user", "content": "shorter, please"}]
        assert http.post("/v1/chat/completions", json={"messages": more, "session_id": "s"}).status_code == 200
    cut, after = rig.turns()
    assert after.session_id == cut.session_id
    assert cut.next_state == ([more[-1]] if by_the_client else None)


@pytest.mark.parametrize("words", [(), ("one", " two")])
def test_client_of_a_plain_request_that_leaves_cancels(rig: Rig, words: tuple[str, ...]) -> None:
    """What was sampled until then is kept."""
    rig.engine.script.append(endless(*words))
    body = json.dumps({"messages": HELLO}).encode()
    host, port = rig.root.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        raw.sendall(head.encode() + body)
        assert rig.engine.sent.wait(10)
        (exchange,) = rig.gateway._exchanges.values()
        wait_until(lambda: captured(exchange) == len(words))
    assert rig.engine.hung_up.wait(10)
    wait_until(lambda: rig.gateway.in_flight == 0)
    if not words:
        assert rig.turns() == []
        return
    turn = rig.turn()
    assert turn.finish_reason == "abort" and turn.trainable and turn.response["content"] == "one two"


def captured(end: Any) -> int:
    """How many tokens an exchange has seen, from the method that ends it."""
    return sum(len(choice.token_ids) for choice in end.__self__._capture.choices.values())


def wait_for_turn(rig: Rig) -> schema.Turn:
    """The turn of an exchange that goes on without its client."""
    wait_until(lambda: rig.gateway.in_flight == 0 and len(rig.turns()) > 0)
    return rig.turn()


def test_several_choices_are_turns_of_one_parent(rig: Rig) -> None:
    reply = official(rig).chat.completions.create(model="clawrl", messages=HELLO, n=3)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    stored = rig.turns()
    assert [turn.choice_index for turn in stored] == [0, 1, 2]
    assert len({turn.id for turn in stored}) == 3
    assert {turn.completion_id for turn in stored} == {reply.id}
    assert len({(turn.session_id, turn.parent_id) for turn in stored}) == 1


def test_streamed_choices_are_told_apart(rig: Rig) -> None:
    words = ("a", "b")
    events = []
    for position in range(2):
        for index in range(2):
            event = chunk({"model": "base"}, words, position)
            event["choices"][0]["index"] = index
            event["choices"][0]["token_ids"] = [1000 * index + position]
            events.append(data(event))
    rig.engine.script.append(streams(*events, data(usage(4)), b"data: [DONE]\n\n"))
    list(official(rig).chat.completions.create(model="clawrl", messages=HELLO, n=2, stream=True))
    stored = rig.turns()
    assert [turn.completion_ids.tolist() for turn in stored if turn.completion_ids is not None] == [
        [0, 1],
        [1000, 1001],
    ]
    assert all(turn.trainable for turn in stored)


def test_next_request_is_the_next_state(rig: Rig) -> None:
    client = official(rig)
    headers = {"X-Session-Id": "s1", "X-Turn-Type": "main"}
    first = client.chat.completions.create(model="clawrl", messages=HELLO, extra_headers=headers)
    history = [*HELLO, {"role": "assistant", "content": first.choices[0].message.content}]
    more = [*history, {"role": "user", "content": "shorter please"}]
    client.chat.completions.create(model="clawrl", messages=more, extra_headers=headers)
    one, two = rig.turns()
    assert one.state == "judging" and one.next_turn_id == two.id
    assert one.next_state == [{"role": "user", "content": "shorter please"}]
    assert two.parent_id == one.id and two.session_id == one.session_id


def test_session_from_the_url(rig: Rig) -> None:
    with rig.client() as http:
        assert http.post("/s/my%20talk/v1/chat/completions", json={"messages": HELLO}).status_code == 200
        assert http.get("/s/my%20talk/v1/models").status_code == 200
    with rig.ledger.reader() as tx:
        session = turns.find_session(tx, "my talk")
        assert session is not None and session.identity_source == "url"


def test_session_done_is_stored(rig: Rig) -> None:
    with rig.client() as http:
        body = {"messages": HELLO, "session_id": "s", "turn_type": "main", "session_done": "yes"}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert not {"session_id", "turn_type", "session_done"} & rig.engine.requests[0].keys()
    with rig.ledger.reader() as tx:
        session = turns.find_session(tx, "s")
        assert session is not None and session.done


def test_reasoning_and_tool_calls_are_stored_as_seen(rig: Rig) -> None:
    deltas = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "let me "},
        {"reasoning_content": "see"},
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
        {"tool_calls": [{"index": 1, "id": "call_2", "function": {"name": "sub", "arguments": "{}"}}]},
    ]
    words = tuple("abcdefg")
    events = []
    for position, delta in enumerate(deltas):
        event = chunk({"model": "base"}, words, position)
        event["choices"][0]["delta"] = delta
        if position == len(deltas) - 1:
            event["choices"][0]["finish_reason"] = "tool_calls"
        events.append(data(event))
    rig.engine.script.append(streams(*events, b"data: [DONE]\n\n"))
    list(official(rig).chat.completions.create(model="clawrl", messages=HELLO, stream=True))
    turn = rig.turn()
    assert turn.finish_reason == "tool_calls" and turn.trainable
    assert turn.response["reasoning_content"] == "let me see"
    assert turn.response["content"] is None
    calls = turn.response["tool_calls"]
    assert [(one["id"], one["function"]["name"], one["function"]["arguments"]) for one in calls] == [
        ("call_1", "add", '{"a": 1}'),
        ("call_2", "sub", "{}"),
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"temperature": 0}, "greedy"),
        ({"temperature": 0.000001}, "greedy"),
        ({"temperature": 0.0099}, "greedy"),
        ({"top_p": 0.9}, "truncated: top_p 0.9"),
        ({"top_k": 20}, "truncated: top_k 20"),
        ({"min_p": 0.1}, "truncated: min_p 0.1"),
        ({"presence_penalty": 0.5}, "penalised: presence_penalty"),
        ({"repetition_penalty": 1.1}, "penalised: repetition_penalty"),
        ({"logit_bias": {"5": 1}}, "constrained: logit_bias"),
        ({"response_format": {"type": "json_object"}}, "constrained: response_format"),
        ({"tool_choice": "required"}, "constrained: tool_choice"),
    ],
)
def test_bent_sampling_is_marked(rig: Rig, change: dict[str, object], reason: str) -> None:
    with rig.client() as http:
        assert http.post("/v1/chat/completions", json={"messages": HELLO, **change}).status_code == 200
    turn = rig.turn()
    assert not turn.trainable and turn.untrainable_reason is not None
    assert turn.untrainable_reason.startswith(reason)
    assert turn.completion_ids is not None


LOOKUP: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "",
        "parameters": {
            "properties": {"city": {"title": "City", "type": "string"}},
            "required": ["city"],
            "title": "lookup_args",
            "type": "object",
            "additionalProperties": False,
        },
        "strict": True,
    },
}
"""A function tool as an agents SDK sends it by default."""


def test_strict_tools_do_not_constrain_an_engine_without_grammars(tmp_path: Path) -> None:
    with running(tmp_path, engine=ScriptedEngine(owner="clawrl-trl")) as rig, rig.client() as http:
        body = {"messages": HELLO, "tools": [LOOKUP], "tool_choice": "auto"}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
        with rig.ledger.reader() as tx:
            (row,) = turns.explain(tx, rig.turn().session_id)
    assert rig.turn().trainable and rig.engine.requests[0]["tools"] == [LOOKUP]
    assert row["note"] == "asked for strict tools; the engine constrained nothing"


@pytest.mark.parametrize(
    ("engine", "change", "reason"),
    [
        (None, {}, "constrained: strict tools, which this engine may enforce"),
        (None, {"tool_choice": "none"}, None),
        (True, {}, "constrained: strict tools"),
        (True, {"response_format": {"type": "json_schema"}}, "constrained: response_format json_schema"),
        (True, {"tools": []}, "constrained: by the engine's settings"),
        (False, {}, None),
        (False, {"logit_bias": {"5": 1}}, "constrained: logit_bias"),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_what_counts_is_whether_the_engine_constrained(
    rig: Rig, engine: bool | None, change: dict[str, Any], reason: str | None, streamed: bool
) -> None:
    notes = {} if engine is None else {"policy_versions": [[0, 0, 0]], "constrained": engine, "choices": []}
    events = [data(chunk({"model": "base"}, ("one", " two"), i)) for i in range(2)]
    rig.engine.script.append(streams(*([data(notes)] if notes else []), *events, data(usage(2)), b"data: [DONE]\n\n"))
    with rig.client() as http:
        body = {"messages": HELLO, "tools": [LOOKUP], "stream": streamed, **change}
        reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200 and "constrained" not in reply.text
    turn = rig.turn()
    assert turn.untrainable_reason == reason and turn.trainable is (reason is None)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda choice: choice.pop("token_ids"), "2 token ids came with 3 log-probs"),
        (lambda choice: choice.pop("logprobs"), "3 token ids came with 2 log-probs"),
        (lambda choice: choice["logprobs"]["content"][0].update(logprob=None), "without a log-prob"),
        (lambda choice: choice["logprobs"]["content"][0].update(logprob=float("nan")), "without a log-prob"),
    ],
)
def test_what_does_not_fit_is_not_trainable(rig: Rig, spoil: Callable[[dict[str, Any]], Any], reason: str) -> None:
    words = ("one", " two", " three")
    events = [chunk({"model": "base"}, words, i) for i in range(3)]
    spoil(events[1]["choices"][0])
    rig.engine.script.append(streams(*map(data, events), data(usage(3)), b"data: [DONE]\n\n"))
    reply = official(rig).chat.completions.create(model="clawrl", messages=HELLO)
    assert reply.choices[0].message.content == "one two three"
    turn = rig.turn()
    assert not turn.trainable
    assert turn.untrainable_reason is not None and re.search(reason, turn.untrainable_reason)


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}, None),
        ({"type": "image_url", "image_url": {"url": "data:image/png,cat"}}, "data: URLs"),
        ({"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}, "data: URLs"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}, "data: URLs"),
        ({"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}, "not input_audio"),
    ],
)
def test_only_pictures_that_are_stored_can_be_trained_on(
    tmp_path: Path, part: dict[str, Any], reason: str | None
) -> None:
    asked = [{"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]}]
    with running(tmp_path, allowed_media_domains="example.com") as rig, rig.client() as http:
        assert http.post("/v1/chat/completions", json={"messages": asked}).status_code == 200
        turn = rig.turn()
    assert turn.messages == asked and turn.trainable is (reason is None)
    assert reason is None or reason in (turn.untrainable_reason or "")


def test_an_engine_without_token_ids(rig: Rig) -> None:
    events = [chunk({"model": "base"}, ("one", " two"), i) for i in range(2)]
    for one in events:
        del one["choices"][0]["token_ids"]
    rig.engine.script.append(streams(*map(data, events), b"data: [DONE]\n\n"))
    official(rig).chat.completions.create(model="clawrl", messages=HELLO)
    assert rig.turn().untrainable_reason == "the engine sent no token ids"


def test_lost_tokens_of_a_stream_are_noticed(rig: Rig) -> None:
    """vLLM's tool parser may swallow an event with its ids and log-probs; both then still have equal lengths."""
    words = ("one", " two", " three")
    events = [data(chunk({"model": "base"}, words, i)) for i in (0, 2)]
    rig.engine.script.append(streams(*events, data(usage(3)), b"data: [DONE]\n\n"))
    list(official(rig).chat.completions.create(model="clawrl", messages=HELLO, stream=True))
    turn = rig.turn()
    assert turn.untrainable_reason == "the engine counted 3 tokens and sent the ids of 2"


def test_text_completions_are_captured(rig: Rig) -> None:
    words = [(" world", str(i)) for i in range(2)]
    events = [completion_chunk(i, words[i], position, [1, 2 + i]) for position in range(2) for i in range(2)]
    for stream in (False, True):
        rig.engine.script.append(streams(*map(data, events), data(usage(4)), b"data: [DONE]\n\n"))
        asked: dict[str, Any] = {"model": "clawrl", "prompt": ["hello", "goodbye"], "max_tokens": 2, "logprobs": 0}
        reply = official(rig).completions.create(**asked, stream=stream)
        if stream:
            list(reply)
            continue
        assert [choice.text for choice in reply.choices] == [" world0", " world1"]
        assert reply.choices[1].logprobs.token_logprobs == [-1.0, -2.0]
        assert reply.choices[1].logprobs.text_offset == [0, 6]
        assert reply.id.startswith("cmpl-turn_") and reply.object == "text_completion"
        assert reply.usage.completion_tokens == 4
    for one, two in (rig.turns()[:2], rig.turns()[2:]):
        assert one.messages == [{"role": "user", "content": "hello"}]
        assert two.messages == [{"role": "user", "content": "goodbye"}]
        assert one.prompt_ids is not None and one.prompt_ids.tolist() == [1, 2]
        assert two.prompt_ids is not None and two.prompt_ids.tolist() == [1, 3]
        assert one.trainable and two.trainable and one.finish_reason == "length"
        assert one.completion_ids is not None and one.completion_ids.tolist() == [7, 8]
    assert rig.engine.requests[0]["logprobs"] == 0


@pytest.mark.parametrize("prompt", [[11, 12], [[11, 12]]])
def test_a_prompt_of_token_ids_is_kept_as_one_message_with_its_author(rig: Rig, prompt: Any) -> None:
    event = completion_chunk(0, (" a",), 0, [11, 12])
    rig.engine.script.append(streams(data(event), data(usage(1)), b"data: [DONE]\n\n"))
    official(rig).completions.create(model="clawrl", prompt=prompt, max_tokens=1)
    turn = rig.turn()
    assert turn.messages == [{"role": "user", "content": "[2 token ids]"}] and turn.provenance == ["owner"]
    assert turn.kind == "side" and turn.prompt_ids is not None and turn.prompt_ids.tolist() == [11, 12]


@pytest.mark.parametrize(
    "wish", [{"echo": True}, {"best_of": 3}, {"prompt_logprobs": 0}, {"include_reasoning": False}]
)
def test_what_a_stream_cannot_say_is_asked_for_plainly(rig: Rig, wish: dict[str, Any]) -> None:
    with rig.client() as http:
        answer = http.post("/v1/chat/completions", json={"messages": HELLO, **wish})
    assert answer.json()["choices"][0]["message"]["content"] == "one two three"
    assert rig.engine.requests[0]["stream"] is False and "stream_options" not in rig.engine.requests[0]
    assert rig.turn().completion_ids is not None


def test_no_chat_passes_another(rig: Rig) -> None:
    with rig.client() as http:
        answer = http.post("/v1/chat/completions", json={"messages": HELLO, "priority": -5})
    assert answer.status_code == 200 and "priority" not in rig.engine.requests[0]


def test_a_plain_reply_is_put_together_as_the_engine_would_have_sent_it(rig: Rig) -> None:
    """Reasoning, text, two calls, log-probs and a stop string, in deltas as small as they come."""
    deltas = [
        {"role": "assistant", "content": ""},
        {"reasoning": "let me "},
        {"reasoning": "see"},
        {"content": "I "},
        {"content": "call."},
        {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "add", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]},
        {"tool_calls": [{"index": 1, "id": "call_2", "function": {"name": "sub", "arguments": "{}"}}]},
    ]
    words = tuple("abcdefgh")
    events = [chunk({"model": "base"}, words, i) for i in range(len(deltas))]
    for one, delta in zip(events, deltas, strict=True):
        one["choices"][0]["delta"] = delta
    events[-1]["choices"][0] |= {"finish_reason": "tool_calls", "stop_reason": "END"}
    final = usage(8) | {"system_fingerprint": "fp"}
    rig.engine.script.append(streams(*map(data, events), data(final), b"data: [DONE]\n\n"))
    asked = {"messages": HELLO, "logprobs": True, "return_token_ids": True}
    with rig.client() as http:
        reply = http.post("/v1/chat/completions", json=asked).json()
    (choice,) = reply["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "I call.",
        "reasoning_content": "let me see",
        "reasoning": "let me see",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
            {"id": "call_2", "type": "function", "function": {"name": "sub", "arguments": "{}"}},
        ],
    }
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == list(words)
    assert choice["token_ids"] == list(range(100, 108)) and reply["prompt_token_ids"] == PROMPT_IDS
    assert (choice["finish_reason"], choice["stop_reason"]) == ("tool_calls", "END")
    assert reply["object"] == "chat.completion" and reply["system_fingerprint"] == "fp"
    assert reply["usage"] == {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}


# Failures


def test_engine_refusals_are_passed_on(rig: Rig) -> None:
    rig.engine.script.append(fails(400, "This model's maximum context length is 10 tokens."))
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        official(rig).chat.completions.create(model="clawrl", messages=HELLO)
    rig.engine.script.append(fails(500, "CUDA error"))
    with pytest.raises(openai.InternalServerError, match="CUDA error"):
        list(official(rig).chat.completions.create(model="clawrl", messages=HELLO, stream=True))
    rig.engine.script.append(fails(429, "too many", **{"retry-after": "7"}))
    with pytest.raises(openai.RateLimitError) as caught:
        official(rig).chat.completions.create(model="clawrl", messages=HELLO)
    assert caught.value.response.headers["retry-after"] == "7"
    assert rig.turns() == []


def test_stream_cut_by_the_engine_is_an_error_event(rig: Rig) -> None:
    rig.engine.script.append(hangs_up("one", " two"))
    with rig.client() as http:
        text = http.post("/v1/chat/completions", json={"messages": HELLO, "stream": True}).text
    events = sse(text)
    assert [event["choices"][0]["delta"]["content"] for event in events[:-1]] == ["one", " two"]
    assert events[-1]["error"]["code"] == "engine_unavailable"
    assert "[DONE]" not in text
    turn = rig.turn()
    assert turn.finish_reason == "abort" and turn.response["content"] == "one two"


def test_error_event_of_the_engine_reaches_the_client(rig: Rig) -> None:
    first = data(chunk({"model": "base"}, ("one", "x"), 0))
    broken = data({"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}})
    rig.engine.script.append(streams(first, broken, b"data: [DONE]\n\n"))
    with pytest.raises(openai.APIError, match="out of memory"):
        list(official(rig).chat.completions.create(model="clawrl", messages=HELLO, stream=True))
    assert rig.turn().finish_reason == "abort"


def test_engine_that_answers_nonsense(rig: Rig) -> None:
    rig.engine.script.append(streams(b"data: {not json}\n\n"))
    with rig.client() as http:
        answer = http.post("/v1/chat/completions", json={"messages": HELLO, "stream": True})
        assert answer.status_code == 502 and answer.json()["error"]["type"] == "server_error"
        rig.engine.script.append(streams(b"data: 5\n\n"))
        assert http.post("/v1/chat/completions", json={"messages": HELLO}).status_code == 502
    assert rig.turns() == []


def test_engine_down_is_503_with_retry_after(tmp_path: Path) -> None:
    with running(tmp_path, engine_url="http://127.0.0.1:9", patience_s=0.2) as rig, rig.client() as http:
        for stream in (False, True):
            answer = http.post("/v1/chat/completions", json={"messages": HELLO, "stream": stream})
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
            assert answer.json()["error"]["code"] == "engine_unavailable"
        assert http.get("/readyz").status_code == 503
        assert http.get("/healthz").status_code == 200
        assert rig.turns() == []


def test_engine_that_comes_back_is_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with running(tmp_path, engine_url=f"http://127.0.0.1:{port}", patience_s=30) as rig:
        with ThreadPoolExecutor() as pool, rig.client() as http:
            asked = pool.submit(http.post, "/v1/chat/completions", json={"messages": HELLO})
            late = ServerThread(ScriptedEngine().app(), port).start()
            assert asked.result().status_code == 200
        late.stop()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sampled", [(), ("lost", " words")])
def test_what_the_client_has_seen_nothing_of_is_asked_again(rig: Rig, sampled: tuple[str, ...], stream: bool) -> None:
    """The engine dies under a reply. Nobody has seen a word of it, unless it was streamed."""
    rig.engine.script.append(hangs_up(*sampled))
    with rig.client() as http:
        answer = http.post("/v1/chat/completions", json={"messages": HELLO, "stream": stream})
    turn = rig.turn()
    if stream and sampled:
        assert sse(answer.text)[-1]["error"]["code"] == "engine_unavailable"
        assert turn.finish_reason == "abort" and turn.response["content"] == "lost words"
        return
    assert answer.status_code == 200 and "lost" not in answer.text and "three" in answer.text
    assert turn.response["content"] == "one two three" and turn.trainable
    assert turn.completion_ids is not None and turn.completion_ids.tolist() == [100, 101, 102]
    assert len(rig.engine.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_whose_core_died_is_waited_for(tmp_path: Path, stream: bool) -> None:
    """vLLM's front end outlives its core for a moment: it answers 500 to requests, and is not healthy."""

    async def dead(engine: ScriptedEngine, body: dict[str, Any]) -> Response:
        engine.healthy = False
        broken = {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}
        return stream_of(data(broken), b"data: [DONE]\n\n")

    with running(tmp_path, patience_s=30) as rig, rig.client() as http:
        rig.engine.script.append(dead)
        answer = http.post("/v1/chat/completions", json={"messages": HELLO, "stream": stream})
        assert answer.status_code == 200 and "three" in answer.text
        assert rig.turn().finish_reason == "stop" and len(rig.engine.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_each_token_has_the_version_that_the_engine_noted(rig: Rig, stream: bool) -> None:
    words = ("one", " two", " three")
    events = [chunk({"model": "base"}, words, i) for i in range(3)]
    first: dict[str, Any] = {"policy_versions": [[0, 0, 4]], "choices": []}
    later: dict[str, Any] = {"policy_versions": [[0, 1, 5]], "choices": []}
    told = [first, *events[:2], later, events[2], usage(3)]
    rig.engine.script.append(streams(*map(data, told), b"data: [DONE]\n\n"))
    with rig.client() as http:
        text = http.post("/v1/chat/completions", json={"messages": HELLO, "stream": stream}).text
    assert "policy_versions" not in text
    turn = rig.turn()
    assert turn.token_versions is not None and turn.token_versions.tolist() == [4, 5, 5]
    assert turn.policy_version == 4 and turn.trainable


def test_a_reply_of_one_version_has_no_version_per_token(rig: Rig) -> None:
    """The exchange came before its first token."""
    told = [{"policy_versions": [[0, 0, 4], [0, 0, 5]], "choices": []}, chunk({"model": "base"}, ("one",), 0)]
    rig.engine.script.append(streams(*map(data, told), b"data: [DONE]\n\n"))
    official(rig).chat.completions.create(model="clawrl", messages=HELLO)
    assert rig.turn().token_versions is None and rig.turn().policy_version == 5


def test_an_adapter_whose_base_was_exchanged_is_not_trainable(rig: Rig) -> None:
    words = ("one", " two")
    told = [chunk({"model": "base"}, words, 0), {"policy_versions": [[0, 0, 3], [0, 1, -1]], "choices": []}]
    told.append(chunk({"model": "base"}, words, 1))
    rig.engine.script.append(streams(*map(data, told), b"data: [DONE]\n\n"))
    official(rig).chat.completions.create(model="clawrl", messages=HELLO)
    turn = rig.turn()
    assert turn.untrainable_reason == "the weights under its adapter were exchanged" and turn.policy_version == 3


def test_silent_engine_is_a_time_out(tmp_path: Path) -> None:
    with running(tmp_path, engine_timeout=0.3) as rig, rig.client() as http:
        rig.engine.script.append(endless())
        answer = http.post("/v1/chat/completions", json={"messages": HELLO})
        assert answer.status_code == 504 and answer.json()["error"]["code"] == "engine_timeout"
        rig.engine.script.append(endless("one"))
        events = sse(http.post("/v1/chat/completions", json={"messages": HELLO, "stream": True}).text)
        assert events[-1]["error"]["code"] == "engine_timeout"


def test_unrecorded_reply_is_not_handed_out(rig: Rig) -> None:
    """The ledger refuses writes (as a full disk makes it): no finished reply leaves, streamed or plain."""
    connection = rig.gateway.ledger.writer_engine

    @event.listens_for(connection, "connect")
    def full(raw: Any, record: Any) -> None:
        pages = raw.execute("PRAGMA page_count").fetchone()[0]
        raw.execute(f"PRAGMA max_page_count={pages}")

    connection.dispose()
    big = [{"role": "user", "content": "".join(map(chr, range(0x4E00, 0x9000)))}]
    with rig.client() as http:
        answer = http.post("/v1/chat/completions", json={"messages": big})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "ledger_write_failed"
        assert "disk is full" in answer.json()["error"]["message"]
        text = http.post("/v1/chat/completions", json={"messages": big, "stream": True}).text
        assert sse(text)[-1]["error"]["code"] == "ledger_write_failed"
        assert "[DONE]" not in text and not any((e.get("choices") or [{}])[0].get("finish_reason") for e in sse(text))
        assert http.get("/readyz").status_code == 503
    assert rig.turns() == []


def test_unicode_line_ends_inside_events_survive(rig: Rig) -> None:
    words = ("a\u2028b", "\x85c\r", "d\ne")
    rig.engine.script.append(says(*words))
    stream = official(rig).chat.completions.create(model="clawrl", messages=HELLO, stream=True)
    assert "".join(event.choices[0].delta.content or "" for event in stream) == "".join(words)
    assert rig.turn().response["content"] == "".join(words)
