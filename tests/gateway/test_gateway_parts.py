"""The translations by themselves: nothing is lost on the way to an API and back, however the stream was cut."""

import json
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from clawrl_trl.gateway.translate import anthropic_reply, anthropic_request, responses_reply, responses_request
from clawrl_trl.gateway.translate.parts import Parts

Json = dict[str, Any]

RESPONSE_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
MESSAGE_EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)

USER = [{"role": "user", "content": "hello"}]
HEAD = {"id": "resp_turn_1", "model": "clawrl"}

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
said = texts.filter(str.strip)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
names = st.text("abcdefgh_", min_size=1, max_size=8)
arguments = st.dictionaries(texts, values, max_size=3).map(json.dumps)
messages = st.builds(
    lambda thought, text, calls: {"reasoning": thought, "content": text, "calls": calls},
    st.none() | said,
    st.none() | said,
    st.lists(st.tuples(names, arguments), max_size=3),
).filter(lambda message: message["content"] or message["calls"])


def chat_message(spoken: Json) -> Json:
    """A chat completion's assistant message."""
    message: Json = {"role": "assistant", "content": spoken["content"]}
    if spoken["reasoning"]:
        message["reasoning_content"] = spoken["reasoning"]
    if spoken["calls"]:
        calls = enumerate(spoken["calls"])
        message["tool_calls"] = [
            {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": given}}
            for at, (name, given) in calls
        ]
    return message


def completion_of(message: Json, finish_reason: str = "stop") -> Json:
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return {**HEAD, "choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 7}}


def cut(draw: st.DrawFn, text: str) -> list[str]:
    """A text in pieces, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def streamed(draw: st.DrawFn) -> tuple[Json, list[Json]]:
    """A message, and the events of a stream that says it."""
    message = chat_message(draw(messages))
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning_content", "content"):
        deltas += [{name: piece} for piece in cut(draw, message.get(name) or "")]
    for index, call in enumerate(message.get("tool_calls", ())):
        first, *rest = cut(draw, call["function"]["arguments"])
        if not message["content"] and draw(st.booleans()):
            deltas.append({"content": "\n"})
        begun = {**call, "index": index, "function": {**call["function"], "arguments": first}}
        deltas.append({"tool_calls": [begun]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in rest]
    chunks = [{**HEAD, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks[0]["prompt_token_ids"] = [1, 2, 3, 4, 5]
    finish = {
        **HEAD,
        "choices": [{"index": 0, "delta": {}, "finish_reason": draw(st.sampled_from(["stop", "length"]))}],
    }
    counted = {**HEAD, "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}}
    return message, [*chunks, finish, counted]


def response_reply() -> responses_reply.ResponsesReply:
    return responses_reply.ResponsesReply({"name": "responses"}, None, None, 1.0)


def told(reply: Any, chunks: list[Json]) -> list[Json]:
    return [event for chunk in chunks for event in reply.take(chunk)] + reply.end()


@settings(max_examples=100, deadline=None)
@given(streamed())
def test_a_streamed_response_adds_up_to_the_whole_one(sample: tuple[Json, list[Json]]) -> None:
    message, chunks = sample
    events = told(response_reply(), chunks)
    for event in events:
        RESPONSE_EVENTS.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    finish = chunks[-2]["choices"][0]["finish_reason"]
    whole = response_reply().convert(completion_of(message, finish))
    Response.model_validate(whole)
    last = events[-1]
    assert last["type"] == ("response.completed" if finish == "stop" else "response.incomplete")
    assert last["response"] | {"completed_at": 0} == whole | {"completed_at": 0}
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == whole["output"]
    for index, item in enumerate(whole["output"]):
        grown = "".join(event["delta"] for event in events if event.get("output_index") == index and "delta" in event)
        assert grown == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])


@settings(max_examples=100, deadline=None)
@given(streamed())
def test_a_streamed_message_adds_up_to_the_whole_one(sample: tuple[Json, list[Json]]) -> None:
    message, chunks = sample
    events = told(anthropic_reply.AnthropicReply(), chunks)
    for event in events:
        if event["type"] != "ping":
            MESSAGE_EVENTS.validate_python(event)
    whole = anthropic_reply.AnthropicReply().convert(completion_of(message, chunks[-2]["choices"][0]["finish_reason"]))
    Message.model_validate(whole)
    assert events[0]["message"]["usage"]["input_tokens"] == 5
    assert events[-2]["delta"] == {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    assert events[-2]["usage"] == whole["usage"]
    open_block = -1
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == open_block + 1
            open_block += 1
        elif event["type"].startswith("content_block"):
            assert event["index"] == open_block
    for index, block in enumerate(whole["content"]):
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta" and e["index"] == index]
        grown = "".join(d.get("text") or d.get("thinking") or d.get("partial_json") or "" for d in deltas)
        kind = block["type"]
        assert (json.loads(grown) if kind == "tool_use" else grown) == block[
            {"tool_use": "input", "text": "text", "thinking": "thinking"}[kind]
        ]


def same(back: Json, message: Json) -> None:
    """A replayed message says what the reply said; arguments may be written anew."""
    assert (back["content"] or None) == message["content"]
    assert back.get("reasoning") == message.get("reasoning_content")
    written = [
        (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in back.get("tool_calls", ())
    ]
    assert written == [
        (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", ())
    ]


@settings(max_examples=100, deadline=None)
@given(messages)
def test_a_response_sent_back_is_the_reply_again(spoken: Json) -> None:
    message = chat_message(spoken)
    output = response_reply().convert(completion_of(message))["output"]
    chat = responses_request.to_chat({"input": [*USER, *output, {"role": "user", "content": "go on"}]})
    assert [one["role"] for one in chat["messages"]] == ["user", "assistant", "user"]
    same(chat["messages"][1], message)


@settings(max_examples=100, deadline=None)
@given(messages)
def test_a_message_sent_back_is_the_reply_again(spoken: Json) -> None:
    message = chat_message(spoken)
    content = anthropic_reply.AnthropicReply().convert(completion_of(message))["content"]
    history = [*USER, {"role": "assistant", "content": content}, {"role": "user", "content": "go on"}]
    chat = anthropic_request.to_chat({"messages": history, "max_tokens": 5})
    assert [one["role"] for one in chat["messages"]] == ["user", "assistant", "user"]
    same(chat["messages"][1], message)


def parts_of(*deltas: Json) -> list[tuple[str, str]]:
    parts = Parts()
    for delta in deltas:
        parts.take({"choices": [{"index": 0, "delta": delta}]})
    parts.end()
    return [(part.kind, part.text) for part in parts.parts]


def test_white_space_between_parts_is_none_of_them() -> None:
    call = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    thought = {"reasoning_content": "hm"}
    assert parts_of(thought, {"content": "\n\n"}, call) == [("reasoning", "hm"), ("call", "{}")]
    assert parts_of(thought, {"content": "\n"}, {"content": "\nyes"}) == [("reasoning", "hm"), ("text", "\n\nyes")]
    assert parts_of({"content": " "}, {"content": "\n"}) == [("text", " \n")]
    assert parts_of({"content": "a\n"}, call, {"content": "\nb"}) == [("text", "a\n"), ("call", "{}"), ("text", "\nb")]


def test_arguments_that_come_before_their_name_are_kept() -> None:
    first = {"tool_calls": [{"index": 0, "id": "c", "function": {"arguments": '{"a"'}}]}
    named = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ": 1}"}}]}
    assert parts_of(first, named) == [("call", '{"a": 1}')]


def test_a_call_cut_by_its_length_is_shown_as_it_is() -> None:
    cut_call = {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"a": "b'}}]}
    whole = anthropic_reply.AnthropicReply().convert(completion_of({"content": None, **cut_call}, "length"))
    assert whole["content"][0]["input"] == {anthropic_reply.UNREADABLE: '{"a": "b'}
    assert whole["stop_reason"] == "max_tokens"
