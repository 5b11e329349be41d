"""A chat completion's reply as the Responses API gives it: events of a stream, or the whole response.

The response that a stream ends with, the one a plain request gets and the one that is fetched later are made by
the same code from the same parts. Pure; ids of items follow from the response's id and their place, so a response
that is fetched has the items that were streamed.
"""

import time
from collections.abc import Mapping
from typing import Any

from clawrl_trl.gateway.translate.parts import Part, PartEvent, Parts
from clawrl_trl.messages import Json

API = "responses"
PREFIX = "resp_"

_REPEATED_FIELDS = (
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "top_p",
    "user",
)
"""What a response repeats of its request."""

_ITEM_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}


def select_remembered_fields(body: Mapping[str, Any]) -> Json:
    """Return what is kept with a turn so that its response can be given again and continued.

    The instructions are in the turn's messages already; their length says how much of the first one they are.
    """
    repeated = {name: body[name] for name in _REPEATED_FIELDS if body.get(name) is not None}
    return {"name": API, "instructions": len(body.get("instructions") or ""), **repeated}


def split_instructions(api: Mapping[str, Any], messages: list[Json]) -> tuple[str | None, list[Json]]:
    """The instructions of a remembered request, and its messages without them."""
    length = api.get("instructions") or 0
    if not length or not messages:
        return None, messages
    head, rest = messages[0]["content"], messages[1:]
    # `merge_leading_system` put them in front, with an empty line between.
    others = head[length:].removeprefix("\n\n")
    return head[:length], [{"role": "system", "content": others}, *rest] if others else rest


class ResponsesReply:
    """The response to one request, in the making.

    Args:
        api (`Mapping`): What is remembered of the request.
        instructions (`str | None`): Its instructions.
        tools (`list[dict] | None`): Its tools, as a chat completion has them.
        created_at (`float`): When it came, unix seconds.
    """

    def __init__(
        self, api: Mapping[str, Any], instructions: str | None, tools: list[Json] | None, created_at: float
    ) -> None:
        self._api, self._instructions, self._tools = api, instructions, tools
        self._created_at = created_at
        self._parts = Parts()
        self._sent = 0
        self._has_begun = False

    def take(self, chunk: Mapping[str, Any]) -> list[Json]:
        """The events that follow from an event of the chat completion."""
        steps = self._parts.take(chunk)
        events: list[Json] = []
        if not self._has_begun:
            self._has_begun = True
            events = [
                self._make_event(f"response.{word}", response=self._make_response())
                for word in ("created", "in_progress")
            ]
        return events + self._make_events(steps)

    def end(self) -> list[Json]:
        """The events that end the stream, when the reply is complete."""
        events = self._make_events(self._parts.end())
        response = self._make_response(self._choose_status())
        return [*events, self._make_event(f"response.{response['status']}", response=response)]

    def fail(self, error: Mapping[str, Any]) -> list[Json]:
        """The events that end the stream, when the reply broke off."""
        code = "rate_limit_exceeded" if error.get("status") == 429 else "server_error"
        details = {name: error.get(name) for name in ("code", "message", "param")}
        failed = self._make_response("failed") | {"error": {"code": code, "message": error.get("message")}}
        return [self._make_event("error", **details), self._make_event("response.failed", response=failed)]

    def convert(self, completion: Mapping[str, Any]) -> Json:
        """The response, from a whole chat completion."""
        self._parts.take(completion)
        self._parts.end()
        return self._make_response(self._choose_status())

    def _choose_status(self) -> str:
        return "incomplete" if self._parts.finish_reason in ("length", "abort") else "completed"

    def _make_events(self, steps: list[PartEvent]) -> list[Json]:
        return [event for step in steps for event in self._translate_event(step)]

    def _translate_event(self, step: PartEvent) -> list[Json]:
        part = step.part
        at: Json = {"item_id": self._make_item_id(part), "output_index": part.index}
        if part.kind != "call":
            at["content_index"] = 0
        if step.what == "open":
            return self._open_item(part, at)
        name = {"call": "function_call_arguments", "text": "output_text", "reasoning": "reasoning_text"}[part.kind]
        # The SDK's types ask for the list even where no log-probs were asked for.
        logprobs: Json = {"logprobs": []} if part.kind == "text" else {}
        if step.what == "grow":
            return [self._make_event(f"response.{name}.delta", **at, delta=step.text, **logprobs)]
        if part.kind == "call":
            events = [self._make_event(f"response.{name}.done", **at, name=part.name, arguments=part.text)]
        else:
            events = [
                self._make_event(f"response.{name}.done", **at, text=part.text, **logprobs),
                self._make_event("response.content_part.done", **at, part=_make_content(part)),
            ]
        item = self._make_item(part, self._choose_item_status(part))
        return [*events, self._make_event("response.output_item.done", output_index=part.index, item=item)]

    def _open_item(self, part: Part, at: Json) -> list[Json]:
        item = self._make_item(part, "in_progress", empty=True)
        events = [self._make_event("response.output_item.added", output_index=part.index, item=item)]
        if part.kind != "call":
            events.append(self._make_event("response.content_part.added", **at, part=_make_content(part)))
        return events

    def _make_event(self, kind: str, **fields: Any) -> Json:
        # Clients put events in order by it, so it counts every event of the response.
        event = {"type": kind, "sequence_number": self._sent, **fields}
        self._sent += 1
        return event

    def _make_item_id(self, part: Part) -> str:
        return f"{_ITEM_PREFIXES[part.kind]}_{self._parts.id.removeprefix(PREFIX)}_{part.index}"

    def _choose_item_status(self, part: Part) -> str:
        """Only the last item can be incomplete."""
        cut = self._parts.finish_reason in ("length", "abort") and part is self._parts.parts[-1]
        return "incomplete" if cut else "completed"

    def _make_item(self, part: Part, status: str, *, empty: bool = False) -> Json:
        item: Json = {"id": self._make_item_id(part), "status": status}
        content = [] if empty else [_make_content(part)]
        if part.kind == "call":
            call = {"call_id": part.call_id, "name": part.name, "arguments": "" if empty else part.text}
            return {"type": "function_call", **item, **call}
        if part.kind == "reasoning":
            return {"type": "reasoning", **item, "summary": [], "content": content, "encrypted_content": None}
        return {"type": "message", "role": "assistant", **item, "content": content}

    def _make_response(self, status: str = "in_progress") -> Json:
        """The response as it stands; what its items hold is told while it is made, and listed at the end."""
        api, parts = self._api, self._parts
        is_over = status != "in_progress"
        return {
            "id": parts.id,
            "object": "response",
            "created_at": int(self._created_at),
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"}
            if is_over and parts.finish_reason == "length"
            else None,
            "instructions": self._instructions,
            "max_output_tokens": api.get("max_output_tokens"),
            "max_tool_calls": None,
            "metadata": api.get("metadata") or {},
            "model": parts.model,
            "output": [self._make_item(part, self._choose_item_status(part)) for part in parts.parts]
            if is_over
            else [],
            "parallel_tool_calls": api.get("parallel_tool_calls", True),
            "previous_response_id": api.get("previous_response_id"),
            "prompt_cache_key": api.get("prompt_cache_key"),
            "reasoning": {"effort": None, "summary": None} | (api.get("reasoning") or {}),
            "safety_identifier": api.get("safety_identifier"),
            "service_tier": "default",
            "store": api.get("store", True),
            "temperature": api.get("temperature", 1.0),
            "text": api.get("text") or {"format": {"type": "text"}},
            "tool_choice": api.get("tool_choice", "auto"),
            "tools": [{"type": "function", **tool["function"], "strict": False} for tool in self._tools or ()],
            "top_p": api.get("top_p", 1.0),
            "truncation": "disabled",
            "usage": self._describe_usage() if is_over else None,
            "user": api.get("user"),
        }

    def _describe_usage(self) -> Json:
        parts = self._parts
        return {
            "input_tokens": parts.prompt_tokens,
            "input_tokens_details": {"cached_tokens": parts.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": parts.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": parts.reasoning_tokens},
            "total_tokens": parts.prompt_tokens + parts.completion_tokens,
        }


def _make_content(part: Part) -> Json:
    if part.kind == "reasoning":
        return {"type": "reasoning_text", "text": part.text}
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
