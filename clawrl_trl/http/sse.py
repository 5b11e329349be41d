"""Server-sent events, as bytes.

Lines are split at LF and CR LF only: a reply's text may hold other characters that general line readers take
for line ends (U+2028 and the like), and splitting there would tear an event apart. For readers that do split
there, such characters are written escaped.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

DONE = b"data: [DONE]\n\n"

_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}

MAX_EVENT_BYTES = 64 * 2**20


def encode(event: dict[str, Any]) -> bytes:
    """One event."""
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    # Lone surrogates, which a model's text may hold, have no bytes in UTF-8.
    return b"data: " + text.translate(_LINE_ENDS).encode("utf-8", "replace") + b"\n\n"


async def iterate_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The payload of each event of a byte stream; comments and other fields are left out.

    Raises:
        ValueError: If an event grows beyond `MAX_EVENT_BYTES`.
    """
    pending = b""
    data: list[bytes] = []
    async for chunk in chunks:
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data)
                data = []
        if len(pending) + sum(map(len, data)) > MAX_EVENT_BYTES:
            raise ValueError("an event of the engine's stream has no end")
    # A stream that breaks off lacks the blank line that ends an event.
    if pending.startswith(b"data:"):
        data.append(pending[5:].strip())
    if data:
        yield b"\n".join(data)
