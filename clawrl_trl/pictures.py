"""Pictures in messages, and those of a session: what the model was shown, in the order it was shown.

A session's, as `clawrl inspect` tells of them, come from the image parts of the captured requests, of each request
those that are new to it, or, where the policy only reads and the rollout kept them, from the run's screenshots. A
picture counts by the step it belongs to, the replies that came before it; a screenshot of the last step has no turn
any more.
"""

import base64
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawrl_trl.errors import UserError
from clawrl_trl.run import RunFolder

_DATA_URL = re.compile(r"data:(?P<kind>[\w.+-]+/[\w.+-]+)?[^,]*?(?P<base64>;base64)?,(?P<content>.*)", re.DOTALL)
_PNG = b"\x89PNG\r\n\x1a\n"

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Picture:
    """A picture that a turn's request brought.

    Attributes:
        step (`int`): Replies that came before it.
        turn (`int`, *optional*): Number of the turn that it was shown to, from 1.
        kind (`str`): What it says it is, such as `image/png`.
        content (`bytes`, *optional*): The file; `None` where the request only names an address.
        place (`int`): Which of the new pictures of its turn, from 0.
    """

    step: int
    turn: int | None
    kind: str
    content: bytes | None
    place: int = 0

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height in pixels of a PNG."""
        if self.content is None or self.content[:8] != _PNG or len(self.content) < 24:
            return None
        # The header comes first in every PNG, so its numbers have fixed places.
        return int.from_bytes(self.content[16:20], "big"), int.from_bytes(self.content[20:24], "big")

    @property
    def name(self) -> str:
        """Its file's name; names sort as the pictures came."""
        more = f"-{self.place + 1}" if self.place else ""
        return f"{self.step:03d}-{'end' if self.turn is None else f'turn-{self.turn}'}{more}.png"

    def describe(self) -> dict[str, Any]:
        """Return its step, kind, size and length for a program."""
        width, height = self.size or (None, None)
        length = None if self.content is None else len(self.content)
        return {"step": self.step, "kind": self.kind, "width": width, "height": height, "bytes": length}

    def __str__(self) -> str:
        size = f" {self.size[0]}x{self.size[1]}" if self.size else ""
        length = "not in the request" if self.content is None else f"{len(self.content):,} bytes"
        return f"{self.kind}{size}, {length}"

    def png(self) -> bytes:
        """The file as a PNG.

        Raises:
            UserError: If it is none and can't be made one.
        """
        assert self.content is not None
        if self.content[:8] == _PNG:
            return self.content
        from PIL import Image

        buffer = io.BytesIO()
        try:
            with Image.open(io.BytesIO(self.content)) as image:
                image.save(buffer, "PNG")
        except (OSError, ValueError) as error:
            raise UserError(f"{self.name} can't be read as a picture ({error}).") from None
        return buffer.getvalue()


def list_turn_pictures(messages: Sequence[Message], number: int) -> list[Picture]:
    """The pictures that are new in a turn's request: those after the last reply in it.

    Args:
        messages (`Sequence[Mapping]`): The request's messages.
        number (`int`): Which turn it is, from 1.
    """
    replies = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    new = messages[replies[-1] + 1 :] if replies else messages
    urls = [url for message in new for url in _urls(message)]
    return [Picture(len(replies), number, *read_url(url), place) for place, url in enumerate(urls)]


def has_pictures(messages: Sequence[Message]) -> bool:
    """Return whether there are pictures in messages."""
    return any(True for message in messages for _ in _urls(message))


def read_contents(messages: Sequence[Message]) -> list[bytes]:
    """The files of all pictures that messages hold, in their order."""
    files = (read_url(url)[1] for message in messages for url in _urls(message))
    return [content for content in files if content is not None]


def list_session_pictures(run: str | Path, session: str, rows: Sequence[Mapping[str, Any]]) -> list[Picture]:
    """The pictures of a session: the screenshots that were kept of it, else those in its requests.

    Args:
        run (`str` or `Path`): The run folder.
        session (`str`): The client's name of the session.
        rows (`Sequence[Mapping]`): Its turns, as `turns.inspect` gives them.
    """
    turns = {}
    for number, row in enumerate(rows, 1):
        turns[sum(message.get("role") == "assistant" for message in row["messages"])] = number
    files = RunFolder(run).find_screenshots(session).glob("*.png")
    screenshots = sorted((int(file.stem), file) for file in files if file.stem.isdecimal())
    # They are all that was seen; requests have images only where the policy is shown them.
    if screenshots:
        return [Picture(step, turns.get(step), "image/png", file.read_bytes()) for step, file in screenshots]
    return [picture for number, row in enumerate(rows, 1) for picture in list_turn_pictures(row["messages"], number)]


def read_url(url: str) -> tuple[str, bytes | None]:
    """Kind and content of an image part's address; the content only of one that holds it."""
    match = _DATA_URL.fullmatch(url)
    if match is None or not match["base64"]:
        return "image at an address", None
    try:
        return match["kind"] or "image", base64.b64decode(match["content"])
    except ValueError:
        return match["kind"] or "image", None


def get_url(part: Mapping[str, Any]) -> str | None:
    """The address in an image part, or `None` for any other part."""
    image = part.get("image_url")
    address = image.get("url") if isinstance(image, Mapping) else image
    return address if isinstance(address, str) else None


def _urls(message: Message) -> Iterator[str]:
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping) and (url := get_url(part)) is not None:
            yield url
