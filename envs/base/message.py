"""Assistant messages read as actions, with their tool calls.

The action of every tool environment is one string: an assistant message of the chat API as JSON, or plain text.
Calls come in the message's own `tool_calls`, or, from a model whose server parses nothing, as `<tool_call>` blocks
of JSON in its text. Reading never raises: an unreadable call is a fault, worded for the model to learn from.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from clawrl_trl.messages import Json

_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """One call of a tool.

    Attributes:
        name (`str`): The tool.
        arguments (`dict`): Its arguments.
        id (`str`): The id that its result must carry.
    """

    name: str
    arguments: Json
    id: str = "call_0"


@dataclass(frozen=True)
class Action:
    """An assistant's message, read as an action.

    Attributes:
        text (`str`): Its text, without the blocks of calls.
        calls (`tuple[Call, ...]`): Its calls, in order.
        fault (`str`, *optional*): Why a call in it can't be read.
        message (`dict`): The message for the conversation, in the chat API's shape.
    """

    text: str
    calls: tuple[Call, ...] = ()
    fault: str | None = None
    message: Json = field(default_factory=dict)


def read_action(action: str) -> Action:
    """Read the action of a tool environment.

    Args:
        action (`str`): An assistant message as JSON (an object with `"role": "assistant"`), or plain text.
    """
    message = _read_message(action)
    text = message.get("content") or ""
    if message.get("tool_calls"):
        return _read_structured_calls(text, message)
    calls, fault = _read_text_calls(_BLOCK.findall(text))
    return Action(_BLOCK.sub("", text).strip(), calls, fault, message)


def _read_message(action: str) -> Json:
    if action.lstrip().startswith("{"):
        try:
            parsed = json.loads(action)
        except ValueError:
            parsed = None
        # A model may answer with JSON of its own, which is text and no message.
        if isinstance(parsed, dict) and _is_message(parsed):
            return {"content": None, **parsed}
    return {"role": "assistant", "content": action}


def _is_message(parsed: Json) -> bool:
    content, calls = parsed.get("content"), parsed.get("tool_calls") or []
    well_formed = parsed.get("role") == "assistant" and isinstance(content, str | None) and isinstance(calls, list)
    return well_formed and all(isinstance(call, dict) and isinstance(call.get("function"), dict) for call in calls)


def _read_structured_calls(text: str, message: Json) -> Action:
    calls = []
    for number, call in enumerate(message["tool_calls"]):
        function = call["function"]
        arguments, fault = _read_arguments(function.get("arguments"))
        if fault is not None:
            return Action(text, (), f"the arguments of {function.get('name')!r} are {fault}", message)
        calls.append(Call(str(function.get("name") or ""), arguments, str(call.get("id") or f"call_{number}")))
    return Action(text, tuple(calls), None, message)


def _read_text_calls(blocks: list[str]) -> tuple[tuple[Call, ...], str | None]:
    calls = []
    for number, block in enumerate(blocks):
        try:
            call = json.loads(block)
        except ValueError as error:
            return (), f"a <tool_call> block is no JSON: {error}"
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
            return (), 'a <tool_call> block must be an object with "name" and "arguments"'
        arguments, fault = _read_arguments(call.get("arguments"))
        if fault is not None:
            return (), f"the arguments of {call['name']!r} are {fault}"
        calls.append(Call(call["name"], arguments, f"call_{number}"))
    return tuple(calls), None


def _read_arguments(arguments: object) -> tuple[Json, str | None]:
    """Return a call's arguments, and why they can't be read; servers send them as JSON text or as an object."""
    if arguments in (None, ""):
        return {}, None
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            return {}, f"no JSON: {error}"
    return (arguments, None) if isinstance(arguments, dict) else ({}, "no JSON object")


def make_result_messages(action: Action, texts: list[str]) -> list[Json]:
    """Make the messages that answer an action's calls, in the chat API's shape.

    Args:
        action ([`Action`]): The action.
        texts (`list[str]`): A result for each of its calls.

    Returns:
        A `tool` message for each call the server knows by id; for calls read from text, or a fault, one `user`
        message, as the chat API allows no tool result without a call.
    """
    if action.message.get("tool_calls") and action.fault is None:
        pairs = zip(action.calls, texts, strict=True)
        return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in pairs]
    if action.message.get("tool_calls"):
        # Every call needs a result, also of an unreadable message: the chat API refuses a conversation without.
        ids = [str(call.get("id") or f"call_{number}") for number, call in enumerate(action.message["tool_calls"])]
        return [{"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)} for call_id in ids]
    return [{"role": "user", "content": "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts)}]
