"""A request of the Responses API as a chat completion.

Input items become messages: what the model did in one reply (thoughts, text, calls) is one assistant message
again, so that a conversation carried on in this API has the history that chat completions would have given it.
Pure: the conversation behind `previous_response_id` is looked up by the caller.

`strict` of a tool is not passed on: an engine would enforce it by a grammar, and tokens drawn under a grammar
can't be trained on. The response says `strict: false`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from clawrl_trl.gateway.errors import invalid
from clawrl_trl.gateway.translate import chat_messages
from clawrl_trl.gateway.translate.fields import (
    Fields,
    make_unsupported_error,
    read_optional_text,
    require_filled_text,
    require_object,
    require_objects,
    require_text,
)
from clawrl_trl.messages import Json

FIELDS = Fields(
    translated=frozenset(
        {
            "input",
            "instructions",
            "max_output_tokens",
            "parallel_tool_calls",
            "previous_response_id",
            "reasoning",
            "store",
            "text",
            "tool_choice",
            "tools",
        }
    ),
    passed=frozenset({"prompt_cache_key", "stop", "user"}),
    idle=frozenset(
        {
            "include",
            "max_tool_calls",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "stream_options",
            "truncation",
        }
    ),
    refused={
        "background": "responses are not made in the background; use stream",
        "context_management": "conversations are not compacted here",
        "conversation": "conversations are not stored under a name; use previous_response_id or send the items",
        "moderation": "there is no moderation here",
        "prompt": "prompt templates are not stored here; send the text as instructions",
        "top_logprobs": "log-probs are given by /v1/chat/completions only",
    },
)

NO_BUILT_IN_TOOLS = "built-in tools are not available here; only tools of type 'function', which the client runs, are"
NO_FILES = "files are not supported; send their text"


def to_chat(body: Mapping[str, Any], history: Sequence[Json] = ()) -> Json:
    """The chat completion that asks the same.

    Args:
        body (`Mapping`): The request, checked against `requests.ResponsesRequest`.
        history (`Sequence[dict]`, defaults to none): The messages up to and including the previous response.

    Raises:
        ApiError: 400 that names the field which can't be translated.
    """
    request = FIELDS.copy_from(body)
    if "message.output_text.logprobs" in (body.get("include") or ()):
        raise make_unsupported_error("include", FIELDS.refused["top_logprobs"])
    instructions = body.get("instructions")
    leading = [{"role": "system", "content": instructions}] if instructions else []
    items = _Items([*leading, *history])
    inputs = body["input"]
    if isinstance(inputs, str):
        inputs = [{"role": "user", "content": inputs}]
    for where, item in require_objects(inputs, "input"):
        items.add(item, where)
    if not items.messages:
        raise invalid("input: there is nothing to respond to", param="input", code="missing_required_parameter")
    request["messages"] = chat_messages.merge_leading_system(items.finish())
    # The prompt's ids tell its length while there is no `usage` yet.
    request["return_token_ids"] = True
    if body.get("stream"):
        request["stream_options"] = {"include_usage": True}
    if body.get("max_output_tokens") is not None:
        request["max_completion_tokens"] = body["max_output_tokens"]
    _add_tools(request, body)
    _add_format(request, body)
    _add_reasoning(request, body)
    return request


class _Items:
    """Input items, folded into messages."""

    def __init__(self, messages: list[Json]) -> None:
        self.messages = messages
        self._reply: Json | None = None

    def add(self, item: Json, where: str) -> None:
        kind = item.get("type") or "message"
        if kind == "message":
            self._add_message(item, where)
        elif kind == "function_call":
            self._add_call(item, where)
        elif kind == "function_call_output":
            self._add_output(item, where)
        elif kind == "reasoning":
            self._add_reasoning(item, where)
        elif kind == "item_reference":
            raise make_unsupported_error(f"{where}.type", "send the item itself, or use previous_response_id")
        else:
            raise make_unsupported_error(f"{where}.type", f"items of type {str(kind)[:100]!r} are not supported here")

    def finish(self) -> list[Json]:
        """The messages, when nothing more will come."""
        for message in self.messages:
            # A chat message may do without content only beside calls.
            if message["content"] is None and not message.get("tool_calls"):
                message["content"] = ""
        return self.messages

    def _add_message(self, item: Json, where: str) -> None:
        role = require_text(item.get("role"), f"{where}.role")
        parts = _read_parts(item.get("content"), f"{where}.content")
        if role == "assistant":
            # A reply has one text: the next text of the assistant is another reply.
            reply = self._continue_reply(after_text=False)
            reply["content"] = (reply["content"] or "") + "".join(
                part["text"] for part in _require_texts(parts, where)
            )
            return
        self._reply = None
        if role in ("system", "developer"):
            self.messages.append({"role": "system", "content": chat_messages.join_texts(_require_texts(parts, where))})
        elif role == "user":
            self.messages.append({"role": "user", "content": chat_messages.make_content(parts)})
        else:
            raise make_unsupported_error(f"{where}.role", "must be user, assistant, system or developer")

    def _add_call(self, item: Json, where: str) -> None:
        arguments = require_text(item.get("arguments"), f"{where}.arguments")
        call = chat_messages.make_tool_call(
            require_filled_text(item, "call_id", where), require_filled_text(item, "name", where), arguments
        )
        self._continue_reply().setdefault("tool_calls", []).append(call)

    def _add_output(self, item: Json, where: str) -> None:
        self._reply = None
        parts = _read_parts(item.get("output"), f"{where}.output")
        call_id = require_filled_text(item, "call_id", where)
        following: list[Json] = []
        while self.messages and _carries_images(self.messages[-1]):
            # Results stay together; the images of all of them follow.
            following.insert(0, self.messages.pop())
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": chat_messages.join_texts(parts)})
        self.messages += [*following, *chat_messages.make_image_messages(parts)]

    def _add_reasoning(self, item: Json, where: str) -> None:
        listed = [(f"{where}.content", item.get("content")), (f"{where}.summary", item.get("summary"))]
        texts: list[str] = []
        for place, parts in listed:
            if parts and not texts:
                texts = [require_text(part.get("text"), f"{at}.text") for at, part in require_objects(parts, place)]
        if not texts:
            if item.get("encrypted_content"):
                raise make_unsupported_error(
                    f"{where}.encrypted_content", "encrypted reasoning of another service is unreadable"
                )
            return
        reply = self._continue_reply(after_text=False, after_calls=False)
        reply["reasoning"] = "\n".join([*([reply["reasoning"]] if "reasoning" in reply else []), *texts])

    def _continue_reply(self, *, after_text: bool = True, after_calls: bool = True) -> Json:
        """The reply under way, or a new one if this can't follow what it has."""
        reply = self._reply
        calls = bool(reply and reply.get("tool_calls"))
        has_text = bool(reply and reply["content"]) and not calls
        if reply is None or (has_text and not after_text) or (calls and not after_calls):
            reply = self._reply = {"role": "assistant", "content": None}
            self.messages.append(reply)
        return reply


def _carries_images(message: Json) -> bool:
    content = message["content"]
    return isinstance(content, list) and bool(content) and content[0].get("text") == chat_messages.IMAGES_OF_A_TOOL


def _read_parts(content: Any, where: str) -> list[Json]:
    """The content of an item as chat parts."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_read_part(part, place) for place, part in require_objects(content, where)]


def _read_part(part: Json, where: str) -> Json:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": require_text(part.get("text"), f"{where}.text")}
    if kind == "refusal":
        return {"type": "text", "text": require_text(part.get("refusal"), f"{where}.refusal")}
    if kind == "input_image":
        if part.get("file_id"):
            raise make_unsupported_error(f"{where}.file_id", NO_FILES.replace("their text", "an image as image_url"))
        image = {"url": require_filled_text(part, "image_url", where)}
        detail = read_optional_text(part.get("detail"), f"{where}.detail")
        return {"type": "image_url", "image_url": image | ({"detail": detail} if detail else {})}
    if kind == "input_file":
        raise make_unsupported_error(f"{where}.type", NO_FILES)
    raise make_unsupported_error(f"{where}.type", f"content of type {str(kind)[:100]!r} is not supported here")


def _require_texts(parts: list[Json], where: str) -> list[Json]:
    for part in parts:
        if part["type"] != "text":
            raise make_unsupported_error(f"{where}.content", "only users and tools may send images")
    return parts


def _add_tools(request: Json, body: Mapping[str, Any]) -> None:
    tools = [_read_tool(tool, where) for where, tool in require_objects(body.get("tools") or [], "tools")]
    choice = _read_tool_choice(body.get("tool_choice"))
    if not tools:
        if choice not in (None, "auto", "none"):
            raise invalid("tool_choice: there are no tools to choose from", param="tool_choice", code="invalid_value")
        return
    request["tools"] = tools
    if choice is not None:
        request["tool_choice"] = choice
    if body.get("parallel_tool_calls") is not None:
        request["parallel_tool_calls"] = body["parallel_tool_calls"]


def _read_tool(tool: Json, where: str) -> Json:
    if tool.get("type") != "function":
        raise make_unsupported_error(f"{where}.type", f"{str(tool.get('type'))[:100]!r}: {NO_BUILT_IN_TOOLS}")
    function: Json = {"name": require_filled_text(tool, "name", where)}
    if tool.get("description") is not None:
        function["description"] = require_text(tool["description"], f"{where}.description")
    parameters = tool.get("parameters")
    empty: Json = {"type": "object", "properties": {}}
    function["parameters"] = empty if parameters is None else require_object(parameters, f"{where}.parameters")
    return {"type": "function", "function": function}


def _read_tool_choice(choice: Any) -> str | Json | None:
    if choice is None or choice in ("auto", "none", "required"):
        return choice  # type: ignore[no-any-return]
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": require_filled_text(choice, "name", "tool_choice")}}
    raise make_unsupported_error("tool_choice", "must be auto, none, required or a function by its name")


def _add_format(request: Json, body: Mapping[str, Any]) -> None:
    settings = require_object(body.get("text") or {}, "text")
    if settings.get("verbosity") not in (None, "medium"):
        raise make_unsupported_error("text.verbosity", "the model has no such setting; say it in the instructions")
    form = require_object(settings.get("format") or {"type": "text"}, "text.format")
    kind = form.get("type")
    if kind == "json_schema":
        schema = {
            name: form[name] for name in ("name", "description", "schema", "strict") if form.get(name) is not None
        }
        require_filled_text(form, "name", "text.format")
        require_object(form.get("schema"), "text.format.schema")
        request["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif kind == "json_object":
        request["response_format"] = {"type": "json_object"}
    elif kind != "text":
        raise make_unsupported_error("text.format.type", "must be text, json_schema or json_object")


def _add_reasoning(request: Json, body: Mapping[str, Any]) -> None:
    effort = read_optional_text((body.get("reasoning") or {}).get("effort"), "reasoning.effort")
    if effort is not None:
        request["reasoning_effort"] = effort
        # Templates know thinking on or off, no degrees.
        chat_messages.set_thinking(request, effort not in ("none", "minimal"))
