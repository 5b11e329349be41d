"""Chat messages in OpenAI's shape: their types and what is read from their content.

Other texts have readers of their own: a completion's (`envs.chat.user_model.completion_text`), a tool's result
(`envs.toolcall.tools.format_result`), and a message as a person reads it, pictures named (`cli.session_view`).
"""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
"""A JSON object from outside, whose values are checked where they are read."""

Message = dict[str, Any]
"""A chat message: `role`, `content` and what its role brings with it."""

_TEXTS = ("text", "input_text", "output_text")
_THOUGHTS = ("thinking", "reasoning")


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message, parts joined by line breaks; parts that are not text are left out."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and part.get("type") in _TEXTS:
            texts.append(str(part.get("text") or ""))
    return "\n".join(texts)


def other_parts(message: Mapping[str, Any]) -> list[Json]:
    """The parts of a message that are neither text nor thoughts: images, sounds, files."""
    content = message.get("content")
    if not isinstance(content, list):
        return []
    return [part for part in content if isinstance(part, dict) and part.get("type") not in (*_TEXTS, *_THOUGHTS)]
