"""Bounds on the counts in one request, checked before anything walks through its items.

They are far above what clients send and low enough that checking, counting and storing a request stays cheap for
everybody else. Gateway and embedded engine share them.
"""

from collections.abc import Mapping
from typing import Any

MAX_CHOICES = 128
"""Replies of one request, prompts times `n`; OpenAI's bound on `n`."""

MAX_ITEMS = 8192
"""Messages, input items, or content parts of one message."""

MAX_TOOLS = 512
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1024
MAX_BIASES = 4096
"""Entries of `logit_bias`, or `stop_token_ids`."""

MAX_VALUES = 2**21
"""Commas and backslashes in a body, which bound the time of parsing it: one parses in a tenth of a second, and a
prompt of as many token ids fits no model."""

_COUNTS = {
    "messages": MAX_ITEMS,
    "input": MAX_ITEMS,
    "tools": MAX_TOOLS,
    "stop": MAX_STOPS,
    "stop_sequences": MAX_STOPS,
    "stop_token_ids": MAX_BIASES,
    "logit_bias": MAX_BIASES,
}


def find_excess_of_bytes(raw: bytes) -> str | None:
    """Return why a JSON text is too intricate to be parsed, or `None`."""
    values = raw.count(b",") + raw.count(b"\\")
    return f"The body has more than {MAX_VALUES} values." if values > MAX_VALUES else None


def find_excess(body: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the first field of a request that exceeds a bound and the reason, or `None`."""
    for name, most in _COUNTS.items():
        value = body.get(name)
        if isinstance(value, list | dict) and len(value) > most:
            return name, f"{name} has {len(value)} entries, at most {most} are allowed"
    return _find_excess_of_stops(body) or _find_excess_of_parts(body) or _find_excess_of_replies(body)


def _find_excess_of_stops(body: Mapping[str, Any]) -> tuple[str, str] | None:
    for name in ("stop", "stop_sequences"):
        texts = body.get(name)
        for text in texts if isinstance(texts, list) else [texts]:
            if isinstance(text, str) and len(text) > MAX_STOP_CHARACTERS:
                return name, f"{name} is longer than {MAX_STOP_CHARACTERS} characters"
    return None


def _find_excess_of_parts(body: Mapping[str, Any]) -> tuple[str, str] | None:
    for name in ("messages", "input"):
        items = body.get(name)
        for index, item in enumerate(items if isinstance(items, list) else ()):
            for field in ("content", "tool_calls"):
                parts = item.get(field) if isinstance(item, dict) else None
                if isinstance(parts, list) and len(parts) > MAX_ITEMS:
                    return f"{name}.{index}.{field}", f"it has {len(parts)} entries, at most {MAX_ITEMS} are allowed"
    return None


def _find_excess_of_replies(body: Mapping[str, Any]) -> tuple[str, str] | None:
    prompt = body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    for factor in ("n", "best_of"):
        choices = body.get(factor)
        choices = choices if isinstance(choices, int) else 1
        if prompts * choices > MAX_CHOICES:
            replies = f"{prompts} prompts times {factor} = {choices}"
            return factor if prompts == 1 else "prompt", f"{replies} is more than {MAX_CHOICES} replies"
    return None
