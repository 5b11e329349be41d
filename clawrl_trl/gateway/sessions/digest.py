"""Digests of a conversation's history: a chain with one link for each message that later history keeps.

Two requests of one conversation share the links of what they share, however the client stamped, wrapped or
serialised it; so a conversation is found by looking a link up, and no history is kept.

What counts as the same message: user text trimmed, without stamps and status lines; tool results by their text;
assistant messages by their text without any white space and their tool calls by name and parsed arguments, ids,
reasoning and nulls ignored. Consecutive messages of the assistant count as one, and so do those of the user, because
clients merge them. Images and other parts count by their digest.
"""

import json
import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from clawrl_trl.gateway.sessions.reading import HistoryRole, Reading
from clawrl_trl.messages import Message, other_parts, text_of

Link = bytes
"""A digest of everything up to a message, 16 bytes."""

_SPACE = b" \t\n\r\x0b\x0c"
_THINK = re.compile(r"<(/?)think>", re.IGNORECASE)
# Up to here a JavaScript client's numbers are exact; it rewrites larger ones when it sends a call back.
_EXACT = 2**53
# Shorter replies ("Done.", "Here it is:") are given in many conversations and identify none.
_UNIQUE_BYTES = 48


def root_link(owner: str) -> Link:
    """The link before the first message; conversations of different owners share no link."""
    return _link(b"owner", owner.encode("utf-8", "surrogatepass"))


def digest_history(owner: str, reading: Reading) -> list[tuple[int, Link]]:
    """The history of a reading: `(index of the message, link)` for each message that later history keeps."""
    history = HistoryDigest(root_link(owner))
    links = []
    for index, (message, note) in enumerate(zip(reading.messages, reading.notes, strict=True)):
        if note.history_role is HistoryRole.KEPT:
            history.add(note.role, message, note.text)
            links.append((index, history.link))
    return links


class HistoryDigest:
    """Digests one message after the other; `link` stands for everything so far."""

    def __init__(self, start: Link) -> None:
        self.link = start
        self._run: _AssistantRun | _UserRun | None = None

    def add(self, role: str, message: Message, text: str = "") -> Link:
        """Append a message (`text`: the cleaned text of a user message)."""
        if role == "assistant":
            run = self._run if isinstance(self._run, _AssistantRun) else _AssistantRun(self.link)
            self._run, self.link = run, run.add(message)
        elif role == "user":
            texts = self._run if isinstance(self._run, _UserRun) else _UserRun(self.link)
            self._run, self.link = texts, texts.add(message, text)
        else:
            self._run = None
            self.link = _link(self.link, role.encode(), _bytes(text_of(message).strip()), *_parts(message))
        return self.link


class _AssistantRun:
    """Consecutive assistant messages, which clients may merge: their texts as one, their calls as one list."""

    def __init__(self, start: Link) -> None:
        # Texts and calls apart: after a merge all texts stand before all calls.
        self._text = blake2b(start + b"assistant", digest_size=16)
        self._calls = blake2b(digest_size=16)

    def add(self, message: Message) -> Link:
        self._text.update(comparable_text(message))
        for call in _calls(message):
            self._calls.update(call)
        return _link(self._text.digest(), self._calls.digest())


class _UserRun:
    """Consecutive user messages, which clients merge after a stop: their texts as lines of one."""

    def __init__(self, start: Link) -> None:
        self._text = blake2b(start + b"user", digest_size=16)
        self._parts = blake2b(digest_size=16)
        self._joint = b""

    def add(self, message: Message, text: str) -> Link:
        self._text.update(self._joint + _bytes(text))
        self._joint = b"\n"
        for part in _parts(message):
            self._parts.update(_link(part))
        return _link(self._text.digest(), self._parts.digest())


def comparable_text(message: Message) -> bytes:
    """The text of an assistant message as it is compared: no thoughts, no white space."""
    text = text_of(message)
    if "<think>" in text:
        text = _without_thoughts(text)
    # Replies come back stripped, and merged ones joined by whatever the client puts between them.
    return _bytes(text).translate(None, _SPACE)


def _without_thoughts(text: str) -> str:
    """A text without what stands in `<think>...</think>`; a thought that nothing closes stays."""
    pieces, end, opened = [], 0, -1
    for mark in _THINK.finditer(text):
        if not mark[1]:
            opened = mark.start() if opened < 0 else opened
        elif opened >= 0:
            pieces.append(text[end:opened])
            end, opened = mark.end(), -1
    return "".join([*pieces, text[end:]])


def digest_reply(message: Message) -> bytes:
    """A digest of one assistant message by itself; empty if it says and calls nothing."""
    text, calls = comparable_text(message), list(_calls(message))
    return _link(text, *calls) if text or calls else b""


def quote_link(owner: str, message: Message) -> Link | None:
    """The link of a reply by itself, whatever stands before it; `None` if it is too short to be the only one."""
    text = comparable_text(message)
    return _link(root_link(owner), b"quoted", text) if len(text) >= _UNIQUE_BYTES else None


def digest_text(text: str) -> bytes:
    """A digest of a user message's cleaned text."""
    return _link(_bytes(text))


def _calls(message: Message) -> Iterable[bytes]:
    calls = message.get("tool_calls")
    legacy = message.get("function_call")
    if isinstance(legacy, dict):
        calls = [{"function": legacy}]
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield _link(_bytes(str(function.get("name") or "")), _arguments(function.get("arguments")))


def _arguments(arguments: Any) -> bytes:
    """Tool arguments as canonical JSON; numbers as JavaScript would write them again."""
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
        parsed = json.loads(text or "{}", parse_float=_number, parse_int=_number)
        return json.dumps(parsed, sort_keys=True).encode()
    # Broken JSON is what a call cut by its length leaves; it is compared as text.
    except (ValueError, TypeError, RecursionError):
        return _bytes(str(arguments)).translate(None, _SPACE)


def _number(literal: str) -> float | int:
    value = float(literal)
    return int(value) if value.is_integer() and abs(value) <= _EXACT else value


def _parts(message: Message) -> list[bytes]:
    return [_bytes(json.dumps(part, sort_keys=True, default=str)) for part in other_parts(message)]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _link(*parts: bytes) -> Link:
    # With their lengths, or ("ab", "c") and ("a", "bc") would be one link.
    framed = [piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)]
    return blake2b(b"".join(framed), digest_size=16).digest()
