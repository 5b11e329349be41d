"""Texts of others, made safe to print.

What clients send is data: a session's name, a role, a message may hold escape sequences that set the window's title,
clear the screen or write to the clipboard, and bidirectional marks that show a text in another order. Here such
characters are written out.
"""

import json
import re
from typing import Any

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and line feed, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional marks, embeddings, overrides, isolates
    "\u2028\u2029\ufeff\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"  # separators, invisible tags, surrogates
)


def make_visible(text: str) -> str:
    r"""A text whose control and bidirectional characters are written out, such as `\x1b` and `\u202e`.

    Line feeds and tabs stay; a carriage return before a line feed is left out.
    """
    return _UNSAFE.sub(_written_out, text.replace("\r\n", "\n"))


def _written_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def encode_json(value: Any) -> str:
    """One line of JSON that says the same, with every unsafe character as a JSON escape."""
    return _UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], json.dumps(value, ensure_ascii=False))
