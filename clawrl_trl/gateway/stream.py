"""Server-sent events, as bytes.

Lines are split at LF and CR LF only: a reply's text may hold other characters that general line readers take
for line ends (U+2028 and the like), and splitting there would tear an event apart.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

DONE = b"data: [DONE]\n\n"

MAX_EVENT_BYTES = 64 * 2**20


def encode(event: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
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
    if pending.startswith(b"data:"):
        data.append(pending[5:].strip())
    if data:
        yield b"\n".join(data)
