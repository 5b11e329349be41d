"""A request of Anthropic's Messages API as a chat completion.

One user message may hold several tool results; each becomes a tool's message of its own, before what the user
says. A reply's blocks (thinking, text, tool use) become one assistant message. A last message of the assistant
is a beginning that the model continues, as in the API. Pure functions.

Two things are not enforced, because enforcing them would bend the distribution that the tokens are drawn from:
`strict` of a tool, and the budget of `thinking`, which turns thinking on and is otherwise left to the model.
"""

from collections.abc import Mapping
from json import dumps
from typing import Any

from clawrl_trl.gateway.errors import invalid
from clawrl_trl.gateway.sessions import clients
from clawrl_trl.gateway.translate import chat_messages
from clawrl_trl.gateway.translate.fields import Fields, mapping, objects, required, text, unsupported
from clawrl_trl.messages import Json

FIELDS = Fields(
    translated=frozenset(
        {
            "max_tokens",
            "messages",
            "output_config",
            "stop_sequences",
            "system",
            "thinking",
            "tool_choice",
            "tools",
        }
    ),
    idle=frozenset(
        {
            "cache_control",
            "context_management",
            "diagnostics",
            "inference_geo",
            "service_tier",
            "speed",
            "user_profile_id",
        }
    ),
    refused={
        "container": "there are no containers here",
        "mcp_servers": "there is no MCP connector here; let the client call the server's tools",
    },
)

FAILED = "Error: "
"""What precedes the result of a tool that failed: a chat completion has no other place for it."""


def to_chat(body: Mapping[str, Any]) -> Json:
    """The chat completion that asks the same.

    Args:
        body (`Mapping`): The request, checked against `requests.MessagesRequest` or `requests.CountRequest`.

    Raises:
        ApiError: 400 that names the field which can't be translated.
    """
    request = FIELDS.copied(body)
    messages = _system(body.get("system"), "system")
    for where, message in objects(body["messages"], "messages"):
        messages += _messages(message, where)
    if not messages:
        raise invalid("messages: there is nothing to reply to", param="messages", code="invalid_value")
    request["messages"] = chat_messages.with_head_merged(messages)
    request["return_token_ids"] = True
    if messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
        request |= {"continue_final_message": True, "add_generation_prompt": False}
    if body.get("stream"):
        request["stream_options"] = {"include_usage": True}
    if body.get("max_tokens") is not None:
        request["max_tokens"] = body["max_tokens"]
    if body.get("stop_sequences"):
        request["stop"] = body["stop_sequences"]
    _add_tools(request, body)
    _add_thinking(request, body)
    _add_output(request, body)
    return request


def _system(system: Any, where: str) -> list[Json]:
    if isinstance(system, list):
        texts = [_text_only(block, place) for place, block in objects(system, where)]
    else:
        texts = [system or ""]
    texts = [clients.TELEMETRY.sub("", one, count=1) for one in texts]
    whole = "\n\n".join(one for one in texts if one)
    return [{"role": "system", "content": whole}] if whole else []


def _text_only(block: Json, where: str) -> str:
    if block.get("type") != "text":
        raise unsupported(f"{where}.type", f"{str(block.get('type'))[:100]!r}: only text is supported here")
    return text(block.get("text"), f"{where}.text")


def _messages(message: Json, where: str) -> list[Json]:
    role, content = text(message.get("role"), f"{where}.role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise unsupported(f"{where}.role", "must be user, assistant or system")
    if role == "system":
        return _system(text(content, f"{where}.content") if not isinstance(content, list) else content, where)
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = objects(content, f"{where}.content")
    return _said_by_user(blocks) if role == "user" else [_said_by_model(blocks)]


def _said_by_user(blocks: list[tuple[str, Json]]) -> list[Json]:
    results: list[Json] = []
    images: list[Json] = []
    parts: list[Json] = []
    for where, block in blocks:
        if block.get("type") == "tool_result":
            if parts:
                raise unsupported(f"{where}.type", "tool results come before what the user says")
            result, returned = _tool_result(block, where)
            results.append(result)
            images += returned
        else:
            parts.append(_part(block, where))
    said = [{"role": "user", "content": chat_messages.content(parts)}] if parts or not results else []
    return [*results, *images, *said]


def _tool_result(block: Json, where: str) -> tuple[Json, list[Json]]:
    """A tool's message, and the message that carries the images it returned."""
    content = block.get("content")
    if content is None or isinstance(content, str):
        parts = [{"type": "text", "text": content or ""}]
    else:
        parts = [_part(one, place) for place, one in objects(content, f"{where}.content")]
    said = chat_messages.joined(parts)
    if block.get("is_error") and not said.lower().startswith("error"):
        said = FAILED + said
    message = {"role": "tool", "tool_call_id": required(block, "tool_use_id", where), "content": said}
    return message, chat_messages.images_of_a_tool(parts)


def _part(block: Json, where: str) -> Json:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": text(block.get("text"), f"{where}.text")}
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": _image(block.get("source"), f"{where}.source")}}
    if kind == "document":
        raise unsupported(f"{where}.type", "documents are not supported; send their text")
    raise unsupported(f"{where}.type", f"blocks of type {str(kind)[:100]!r} are not supported here")


def _image(source: Any, where: str) -> str:
    source = mapping(source, where)
    if source.get("type") == "url":
        return required(source, "url", where)
    if source.get("type") == "base64":
        return f"data:{required(source, 'media_type', where)};base64,{required(source, 'data', where)}"
    raise unsupported(f"{where}.type", "must be base64 or url")


def _said_by_model(blocks: list[tuple[str, Json]]) -> Json:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    for where, block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(text(block.get("text"), f"{where}.text"))
        elif kind == "thinking":
            thoughts.append(text(block.get("thinking"), f"{where}.thinking"))
        elif kind == "tool_use":
            arguments = dumps(mapping(block.get("input"), f"{where}.input"), ensure_ascii=False)
            calls.append(chat_messages.called(required(block, "id", where), required(block, "name", where), arguments))
        else:
            why = "can't be read by another model" if kind == "redacted_thinking" else "is not supported here"
            raise unsupported(f"{where}.type", f"{str(kind)[:100]!r} {why}")
    message: Json = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
    if calls:
        message["tool_calls"] = calls
    if any(thoughts):
        message["reasoning"] = "\n".join(thoughts)
    return message


def _add_tools(request: Json, body: Mapping[str, Any]) -> None:
    tools = [_tool(tool, where) for where, tool in objects(body.get("tools") or [], "tools")]
    choice = body.get("tool_choice") or {}
    kind = choice.get("type", "auto")
    if not tools:
        if kind in ("any", "tool"):
            raise invalid("tool_choice: there are no tools to choose from", param="tool_choice", code="invalid_value")
        return
    request["tools"] = tools
    if kind == "tool":
        name = required(choice, "name", "tool_choice")
        request["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif kind in ("auto", "any", "none"):
        request["tool_choice"] = "required" if kind == "any" else kind
    else:
        raise unsupported("tool_choice.type", "must be auto, any, tool or none")
    if choice.get("disable_parallel_tool_use"):
        request["parallel_tool_calls"] = False


def _tool(tool: Json, where: str) -> Json:
    if tool.get("type") not in (None, "custom"):
        why = "only tools with an input_schema, which the client runs, are available here"
        raise unsupported(f"{where}.type", f"{str(tool['type'])[:100]!r}: {why}")
    function: Json = {"name": required(tool, "name", where)}
    if tool.get("description") is not None:
        function["description"] = text(tool["description"], f"{where}.description")
    function["parameters"] = mapping(tool.get("input_schema"), f"{where}.input_schema")
    return {"type": "function", "function": function}


def _add_thinking(request: Json, body: Mapping[str, Any]) -> None:
    thinking = body.get("thinking")
    if thinking is None:
        return
    if thinking.get("type") not in ("enabled", "adaptive", "disabled"):
        raise unsupported("thinking.type", "must be enabled, adaptive or disabled")
    chat_messages.with_thinking(request, thinking["type"] != "disabled")


def _add_output(request: Json, body: Mapping[str, Any]) -> None:
    form = (body.get("output_config") or {}).get("format")
    if form is None:
        return
    form = mapping(form, "output_config.format")
    if form.get("type") != "json_schema":
        raise unsupported("output_config.format.type", "must be json_schema")
    schema = mapping(form.get("schema"), "output_config.format.schema")
    request["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
