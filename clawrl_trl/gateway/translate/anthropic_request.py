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
from clawrl_trl.gateway.translate.fields import (
    Fields,
    make_unsupported_error,
    require_filled_text,
    require_object,
    require_objects,
    require_text,
)
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
    request = FIELDS.copy_from(body)
    messages = _read_system(body.get("system"), "system")
    for where, message in require_objects(body["messages"], "messages"):
        messages += _read_message(message, where)
    if not messages:
        raise invalid("messages: there is nothing to reply to", param="messages", code="invalid_value")
    request["messages"] = chat_messages.merge_leading_system(messages)
    # The prompt's ids tell its length, which `message_start` states before any `usage` comes.
    request["return_token_ids"] = True
    # Behind calls the model is to go on with their results, and not with the message that made them.
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


def _read_system(system: Any, where: str) -> list[Json]:
    if isinstance(system, list):
        texts = [_read_text_block(block, place) for place, block in require_objects(system, where)]
    else:
        texts = [system or ""]
    texts = [clients.TELEMETRY.sub("", block_text, count=1) for block_text in texts]
    whole = "\n\n".join(filter(None, texts))
    return [{"role": "system", "content": whole}] if whole else []


def _read_text_block(block: Json, where: str) -> str:
    if block.get("type") != "text":
        raise make_unsupported_error(f"{where}.type", f"{str(block.get('type'))[:100]!r}: only text is supported here")
    return require_text(block.get("text"), f"{where}.text")


def _read_message(message: Json, where: str) -> list[Json]:
    role, content = require_text(message.get("role"), f"{where}.role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise make_unsupported_error(f"{where}.role", "must be user, assistant or system")
    if role == "system":
        return _read_system(
            require_text(content, f"{where}.content") if not isinstance(content, list) else content, where
        )
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = require_objects(content, f"{where}.content")
    return _read_user_blocks(blocks) if role == "user" else [_read_assistant_blocks(blocks)]


def _read_user_blocks(blocks: list[tuple[str, Json]]) -> list[Json]:
    results: list[Json] = []
    images: list[Json] = []
    parts: list[Json] = []
    for where, block in blocks:
        if block.get("type") == "tool_result":
            if parts:
                raise make_unsupported_error(f"{where}.type", "tool results come before what the user says")
            result, returned = _read_tool_result(block, where)
            results.append(result)
            images += returned
        else:
            parts.append(_read_part(block, where))
    spoken = [{"role": "user", "content": chat_messages.make_content(parts)}] if parts or not results else []
    # Results first: templates want them right behind the calls they answer.
    return [*results, *images, *spoken]


def _read_tool_result(block: Json, where: str) -> tuple[Json, list[Json]]:
    """A tool's message, and the message that carries the images it returned."""
    content = block.get("content")
    if content is None or isinstance(content, str):
        parts = [{"type": "text", "text": content or ""}]
    else:
        parts = [_read_part(part, place) for place, part in require_objects(content, f"{where}.content")]
    result = chat_messages.join_texts(parts)
    # Most tools say so themselves, and the model needs to read it once.
    if block.get("is_error") and not result.lower().startswith("error"):
        result = FAILED + result
    message = {"role": "tool", "tool_call_id": require_filled_text(block, "tool_use_id", where), "content": result}
    return message, chat_messages.make_image_messages(parts)


def _read_part(block: Json, where: str) -> Json:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": require_text(block.get("text"), f"{where}.text")}
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": _read_image(block.get("source"), f"{where}.source")}}
    if kind == "document":
        raise make_unsupported_error(f"{where}.type", "documents are not supported; send their text")
    raise make_unsupported_error(f"{where}.type", f"blocks of type {str(kind)[:100]!r} are not supported here")


def _read_image(source: Any, where: str) -> str:
    source = require_object(source, where)
    if source.get("type") == "url":
        return require_filled_text(source, "url", where)
    if source.get("type") == "base64":
        media_type, data = (require_filled_text(source, name, where) for name in ("media_type", "data"))
        return f"data:{media_type};base64,{data}"
    raise make_unsupported_error(f"{where}.type", "must be base64 or url")


def _read_assistant_blocks(blocks: list[tuple[str, Json]]) -> Json:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    for where, block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(require_text(block.get("text"), f"{where}.text"))
        elif kind == "thinking":
            thoughts.append(require_text(block.get("thinking"), f"{where}.thinking"))
        elif kind == "tool_use":
            arguments = dumps(require_object(block.get("input"), f"{where}.input"), ensure_ascii=False)
            calls.append(
                chat_messages.make_tool_call(
                    require_filled_text(block, "id", where), require_filled_text(block, "name", where), arguments
                )
            )
        else:
            why = "can't be read by another model" if kind == "redacted_thinking" else "is not supported here"
            raise make_unsupported_error(f"{where}.type", f"{str(kind)[:100]!r} {why}")
    message: Json = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
    if calls:
        message["tool_calls"] = calls
    if any(thoughts):
        message["reasoning"] = "\n".join(thoughts)
    return message


def _add_tools(request: Json, body: Mapping[str, Any]) -> None:
    tools = [_read_tool(tool, where) for where, tool in require_objects(body.get("tools") or [], "tools")]
    choice = body.get("tool_choice") or {}
    kind = choice.get("type", "auto")
    if not tools:
        # Left out it would be ignored, and the client would wait for a call that can't come.
        if kind in ("any", "tool"):
            raise invalid("tool_choice: there are no tools to choose from", param="tool_choice", code="invalid_value")
        return
    request["tools"] = tools
    if kind == "tool":
        name = require_filled_text(choice, "name", "tool_choice")
        request["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif kind in ("auto", "any", "none"):
        request["tool_choice"] = "required" if kind == "any" else kind
    else:
        raise make_unsupported_error("tool_choice.type", "must be auto, any, tool or none")
    if choice.get("disable_parallel_tool_use"):
        request["parallel_tool_calls"] = False


def _read_tool(tool: Json, where: str) -> Json:
    if tool.get("type") not in (None, "custom"):
        why = "only tools with an input_schema, which the client runs, are available here"
        raise make_unsupported_error(f"{where}.type", f"{str(tool['type'])[:100]!r}: {why}")
    function: Json = {"name": require_filled_text(tool, "name", where)}
    if tool.get("description") is not None:
        function["description"] = require_text(tool["description"], f"{where}.description")
    function["parameters"] = require_object(tool.get("input_schema"), f"{where}.input_schema")
    return {"type": "function", "function": function}


def _add_thinking(request: Json, body: Mapping[str, Any]) -> None:
    thinking = body.get("thinking")
    if thinking is None:
        return
    if thinking.get("type") not in ("enabled", "adaptive", "disabled"):
        raise make_unsupported_error("thinking.type", "must be enabled, adaptive or disabled")
    chat_messages.set_thinking(request, thinking["type"] != "disabled")


def _add_output(request: Json, body: Mapping[str, Any]) -> None:
    form = (body.get("output_config") or {}).get("format")
    if form is None:
        return
    form = require_object(form, "output_config.format")
    if form.get("type") != "json_schema":
        raise make_unsupported_error("output_config.format.type", "must be json_schema")
    schema = require_object(form.get("schema"), "output_config.format.schema")
    request["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
