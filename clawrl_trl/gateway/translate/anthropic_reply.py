"""A chat completion's reply as Anthropic's Messages API gives it: events of a stream, or the whole message.

Pure. Thinking blocks carry an empty signature: there is nothing to verify, and none is asked for when they
come back.
"""

import json
from collections.abc import Mapping
from typing import Any

from clawrl_trl.gateway.errors import anthropic_error
from clawrl_trl.gateway.translate.parts import Part, PartEvent, Parts
from clawrl_trl.messages import Json

API = "messages"
PREFIX = "msg_"

UNREADABLE = "unparsed_arguments"
"""Where the arguments of a call stand that are no JSON, as in a reply that was cut by its length."""

_STOP_REASONS = {"length": "max_tokens", "content_filter": "refusal"}


class AnthropicReply:
    """The message that answers one request, in the making."""

    def __init__(self) -> None:
        self._parts = Parts()
        self._has_begun = False

    def take(self, chunk: Mapping[str, Any]) -> list[Json]:
        """The events that follow from an event of the chat completion."""
        steps = self._parts.take(chunk)
        events: list[Json] = []
        if not self._has_begun:
            self._has_begun = True
            # Anthropic's stream states the message's id and input tokens first, so it begins with the first chunk and
            # not before.
            events = [{"type": "message_start", "message": self._make_message()}, {"type": "ping"}]
        return events + [_make_event(step) for step in steps]

    def end(self) -> list[Json]:
        """The events that end the stream, when the reply is complete."""
        events = [_make_event(step) for step in self._parts.end()]
        end = {"type": "message_delta", "delta": self._describe_stop(), "usage": self._describe_usage()}
        return [*events, end, {"type": "message_stop"}]

    def fail(self, error: Mapping[str, Any]) -> list[Json]:
        """The event that ends the stream, when the reply broke off."""
        return [anthropic_error(error.get("status") or 500, str(error.get("message")))]

    def convert(self, completion: Mapping[str, Any]) -> Json:
        """The message, from a whole chat completion."""
        self._parts.take(completion)
        self._parts.end()
        return (
            self._make_message()
            | self._describe_stop()
            | {"content": [_make_block(part) for part in self._parts.parts]}
        )

    def _make_message(self) -> Json:
        return {
            "id": self._parts.id,
            "type": "message",
            "role": "assistant",
            "model": self._parts.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._describe_usage(),
        }

    def _describe_stop(self) -> Json:
        parts = self._parts
        reason = _STOP_REASONS.get(parts.finish_reason or "")
        # By the calls and not chat's word for the end: with a forced tool engines say `stop`.
        if reason is None and parts.has_calls:
            reason = "tool_use"
        if reason is None and parts.stop_sequence is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": parts.stop_sequence}
        return {"stop_reason": reason or "end_turn", "stop_sequence": None}

    def _describe_usage(self) -> Json:
        parts = self._parts
        # In this API cached tokens are counted beside the input's, not among them.
        return {
            "input_tokens": parts.prompt_tokens - parts.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": parts.cached_tokens,
            "output_tokens": parts.completion_tokens,
        }


def _make_event(step: PartEvent) -> Json:
    part = step.part
    if step.what == "open":
        return {"type": "content_block_start", "index": part.index, "content_block": _make_block(part, empty=True)}
    if step.what == "close":
        return {"type": "content_block_stop", "index": part.index}
    if part.kind == "call":
        delta = {"type": "input_json_delta", "partial_json": step.text}
    elif part.kind == "reasoning":
        delta = {"type": "thinking_delta", "thinking": step.text}
    else:
        delta = {"type": "text_delta", "text": step.text}
    return {"type": "content_block_delta", "index": part.index, "delta": delta}


def _make_block(part: Part, *, empty: bool = False) -> Json:
    text = "" if empty else part.text
    if part.kind == "call":
        return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": _parse_input(text)}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": ""}
    return {"type": "text", "text": text}


def _parse_input(arguments: str) -> Json:
    try:
        parsed = json.loads(arguments or "{}")
        # Python reads infinity, NaN and half a surrogate pair, and no answer can be written with them.
        json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        parsed = None
    # `input` must be an object in this API; what can't be one is shown and not lost.
    return parsed if isinstance(parsed, dict) else {UNREADABLE: arguments}
