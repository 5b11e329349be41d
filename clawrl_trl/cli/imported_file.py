"""Files of conversations that `clawrl import` reads, checked before anything is done with them.

Two forms: sessions turn by turn, with what followed each reply (the reference system's), and plain chats,
`{"messages": [...]}`, one a line, as chat data sets have them. `docs/import.md` shows both.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from clawrl_trl.errors import UserError
from clawrl_trl.json_lines import split_lines

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

Conversation = dict[str, Any]


def read_conversations(path: Path) -> list[Conversation]:
    """Read and check a file of conversations.

    Args:
        path (`Path`): JSON (one conversation or a list of them) or JSON lines. A conversation is `{"session_id": ...,
            "turns": [{"type": "main" | "side", "prompt": ..., "response": ..., "next_state": ..., "trainable": ...}]}`
            or `{"messages": [...], "tools": [...], "session_id": ...}`, of which only `messages` must be there.
            `prompt` and `next_state` are a text or a list of messages; `prompt` is the whole prompt of its turn.

    Returns:
        `list[dict]`: Conversations in the first of the two forms.

    Raises:
        UserError: If the file can't be read, or an entry lacks a field or has one of the wrong type.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows editors begin a file with a byte order mark
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8: save it as UTF-8.") from None
    return [_read_conversation(entry, f"{path}: {where}") for where, entry in _split_entries(path, text)]


def _split_entries(path: Path, text: str) -> list[tuple[str, Any]]:
    try:
        content = json.loads(text)
    except ValueError as error:
        lines = [(number, line) for number, line in enumerate(split_lines(text), 1) if line.strip()]
        # JSON lines only if every line begins an object; else it is one broken document.
        if len(lines) < 2 or not all(line.lstrip().startswith("{") for _, line in lines):
            raise UserError(f"{path} is not JSON: {error}.") from None
        return [(f"line {number}", _parse_line(path, number, line)) for number, line in lines]
    entries = content if isinstance(content, list) else [content]
    return [(f"conversation {number}", entry) for number, entry in enumerate(entries)]


def _parse_line(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise UserError(f"{path}: line {number} is not JSON: {error}.") from None


def _read_conversation(entry: Any, where: str) -> Conversation:
    if not isinstance(entry, dict):
        raise UserError(f"{where} is not an object.")
    if "messages" in entry:
        return _split_chat(entry, where)
    if not isinstance(entry.get("session_id"), str):
        raise UserError(f"{where} has no session_id and no messages: docs/import.md shows both forms.")
    if not isinstance(entry.get("turns"), list):
        raise UserError(f"{where}: session {entry['session_id']} has no list of turns.")
    for index, turn in enumerate(entry["turns"]):
        _check_turn(turn, f"{where}: session {entry['session_id']}, turn {index}")
    return entry


def _check_turn(turn: Any, where: str) -> None:
    if not isinstance(turn, dict):
        raise UserError(f"{where} is not an object.")
    if turn.get("type", "main") not in ("main", "side"):
        raise UserError(f"{where}: type is main or side, not {turn['type']!r}.")
    if not isinstance(turn.get("response"), str) or not turn["response"]:
        raise UserError(f"{where}: response must be a text.")
    for name in ("prompt", "next_state"):
        value = turn.get(name)
        if isinstance(value, list):
            _check_messages(value, f"{where}: {name}")
        elif not isinstance(value, str) and not (name == "next_state" and value is None):
            raise UserError(f"{where}: {name} must be a text or a list of messages.")


def _split_chat(entry: Mapping[str, Any], where: str) -> Conversation:
    """A chat's turns: each reply, with all before it as its prompt and what follows up to the next as next state."""
    messages, tools = entry["messages"], entry.get("tools")
    if not isinstance(messages, list):
        raise UserError(f"{where}: messages must be a list.")
    _check_messages(messages, where)
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise UserError(f"{where}: tools must be a list of objects.")
    name = entry.get("session_id")
    if name is not None and not isinstance(name, str):
        raise UserError(f"{where}: session_id must be a text.")
    # A reply that opens the chat has no prompt.
    replies = [at for at, message in enumerate(messages) if message["role"] == "assistant" and at > 0]
    if not replies:
        raise UserError(f"{where} has no reply: one of its messages after the first must be the assistant's.")
    turns = [
        {
            "prompt": messages[:at],
            "response": messages[at],
            "next_state": messages[at + 1 : end] or None,
            "tools": tools,
        }
        for at, end in zip(replies, [*replies[1:], len(messages)], strict=True)
    ]
    return {"session_id": name or _derive_name(messages), "turns": turns}


def _check_messages(messages: list[Any], where: str) -> None:
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise UserError(f"{where}: message {index} has no role among {', '.join(ROLES)}.")
        content = message.get("content")
        if not isinstance(content, str | list) and not (content is None and message.get("tool_calls")):
            raise UserError(f"{where}: message {index} has no content.")


def _derive_name(messages: list[Any]) -> str:
    """A chat's name, the same whenever it is read again."""
    # JSON may hold lone surrogates, which UTF-8 has no bytes for.
    canonical = json.dumps(messages, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return f"chat-{sha256(canonical.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
