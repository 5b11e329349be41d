"""Official clients of a rig, what they are told, and replies for the scripted engine to give."""

import json
from typing import Any

import anthropic
import httpx
import openai
from gateway_rig import Behaviour, Rig, ScriptedEngine, chunk, data, stream_of, usage, whole
from starlette.responses import JSONResponse, Response

Json = dict[str, Any]

PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}}


def openai_of(rig: Rig, key: str = "none-needed", **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=rig.url, api_key=key, max_retries=0, timeout=120, **options)


def anthropic_of(rig: Rig, key: str = "none-needed", **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=rig.root, api_key=key, max_retries=0, timeout=120, **options)


def named_events(answer: httpx.Response) -> list[tuple[str, Json]]:
    """The events of a stream whose events have names."""
    events = []
    for block in answer.text.strip().split("\n\n"):
        name, payload = block.split("\n")
        events.append((name.removeprefix("event: "), json.loads(payload.removeprefix("data: "))))
    assert all(name == event["type"] for name, event in events)
    return events


def says_all(*deltas: Json, finish_reason: str = "stop", stop_reason: str | None = None) -> Behaviour:
    """A reply of these deltas, a token each; whole, they are one message."""
    words = tuple("x" for _ in deltas)

    async def reply(engine: ScriptedEngine, body: Json) -> Response:
        over = {"finish_reason": finish_reason, "stop_reason": stop_reason}
        if not body.get("stream"):
            completion = whole(body, words)
            completion["choices"][0] |= {"message": {"role": "assistant", **_merged(deltas)}, **over}
            return JSONResponse(completion)
        events = [chunk(body, words, position) for position in range(len(deltas))]
        for event, delta in zip(events, deltas, strict=True):
            event["choices"][0]["delta"] = delta
        events[-1]["choices"][0] |= over
        return stream_of(*map(data, events), data(usage(len(deltas))), b"data: [DONE]\n\n")

    return reply


def _merged(deltas: tuple[Json, ...]) -> Json:
    message: Json = {"content": None, "tool_calls": []}
    for delta in deltas:
        for name in ("content", "reasoning_content"):
            if delta.get(name):
                message[name] = (message.get(name) or "") + delta[name]
        for call in delta.get("tool_calls", ()):
            if call.get("id"):
                message["tool_calls"].append({"type": "function", **call, "function": dict(call["function"])})
            else:
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message


def call_delta(index: int, call_id: str, name: str, arguments: str = "") -> Json:
    """The beginning of a tool call."""
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}


def more_arguments(index: int, arguments: str) -> Json:
    """More of a tool call."""
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}
