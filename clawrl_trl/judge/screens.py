"""Pictures that a judge is shown of a turn: the last of its request, such as the screen before, and what came next.

They are taken out of the messages, where they stand as `data:` URLs; an address is never fetched and a path never
opened. Their kind is read from their first bytes. Number and size are bounded: a large one is made smaller, and one
that can't be is left out.
"""

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass

from clawrl_trl import pictures
from clawrl_trl.judge.turn import JudgedTurn, Message
from clawrl_trl.messages import Json

MOST_BEFORE = 2
"""Pictures of the request that are shown, the newest."""
MOST_AFTER = 2
"""Pictures of what came next that are shown, the newest."""
MAX_BYTES = 2 * 2**20
"""Largest picture that is shown as it is."""
MAX_SIDE = 1280
"""Longer side, in pixels, to which a larger one is brought."""
MAX_PIXELS = 50_000_000
"""Largest picture that is decoded at all."""


@dataclass(frozen=True)
class ShownPicture:
    """One picture: where it stands in the turn, and its file."""

    title: str
    kind: str
    content: bytes

    @property
    def part(self) -> Json:
        """The content part of a chat message."""
        encoded = base64.b64encode(self.content).decode()
        return {"type": "image_url", "image_url": {"url": f"data:{self.kind};base64,{encoded}"}}


def collect_screens(turn: JudgedTurn) -> list[ShownPicture]:
    """The pictures of a turn that a judge is shown, in the order in which they came."""
    before = _collect_last(turn.messages, MOST_BEFORE, "picture before the reply")
    return before + _collect_last(turn.next_state, MOST_AFTER, "picture of what came next")


def _collect_last(messages: Iterable[Message], most: int, title: str) -> list[ShownPicture]:
    screens: list[ShownPicture] = []
    for message in reversed(list(messages)):
        for content in reversed(pictures.read_contents([message])):
            if len(screens) < most and (fitted := fit_picture(content)) is not None:
                screens.append(ShownPicture(title, *fitted))
        if len(screens) == most:
            break
    return screens[::-1]


def fit_picture(content: bytes) -> tuple[str, bytes] | None:
    """Kind and file of a picture that is not too large, or `None` if it is none or can't be made so."""
    kind = find_kind(content)
    if kind is None or len(content) <= MAX_BYTES:
        return None if kind is None else (kind, content)
    from PIL import Image

    written = io.BytesIO()
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > MAX_PIXELS:
                return None
            image.thumbnail((MAX_SIDE, MAX_SIDE))
            image.convert("RGB").save(written, "JPEG", quality=85)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return "image/jpeg", written.getvalue()


def find_kind(content: bytes) -> str | None:
    """Kind of a picture by its first bytes; `None` if it is none that models read."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    signatures = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
    return next((kind for signature, kind in signatures.items() if content.startswith(signature)), None)
