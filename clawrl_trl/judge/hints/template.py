"""How a hint stands in the teacher's prompt.

It is appended to the last user message with `HINT_TEMPLATE`; one that an environment's checker wrote for its own
episode, with `ENVIRONMENT_TEMPLATE`.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from clawrl_trl.judge.provenance import neutralise
from clawrl_trl.ledger.episodes import HINT_SOURCE
from clawrl_trl.ledger.schema import Message

HINT_TEMPLATE = "\n\n[Hint from the user's later message: {hint}]"
"""Appended to the last user message of the teacher's prompt."""

ENVIRONMENT_TEMPLATE = "\n{hint}"
"""The same for a hint of an environment, which needs no introduction."""


def choose_template(source: str | None) -> str:
    """The template for hints of that provenance."""
    return ENVIRONMENT_TEMPLATE if source == HINT_SOURCE else HINT_TEMPLATE


def append_hint(messages: Sequence[Mapping[str, Any]], hint: str, template: str = HINT_TEMPLATE) -> list[Message]:
    """The messages with the hint at the end of the last user message; the originals stay as they are.

    Raises:
        ValueError: If there is no user message with text.
    """
    block = template.format(hint=neutralise(hint))
    result = [dict(copy.deepcopy(message)) for message in messages]
    for message in reversed(result):
        if message.get("role") != "user":
            continue
        content = message.get("content")
        if isinstance(content, str):
            message["content"] = content + block
            return result
        texts = [part for part in content or () if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if texts:
            texts[-1]["text"] += block
            return result
    raise ValueError("no user message to append the hint to")
