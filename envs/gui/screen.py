"""Interface of screens to a GUI environment: primitives, an outline in text, pictures as tensors.

A back end is anything with these primitives. Elements are numbered when they are first listed and keep their number as
long as the screen exists, so that the numbers in earlier messages stay valid.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from PIL import Image

Point = tuple[int, int]
"""x and y in pixels, from the left and from the top."""
Size = tuple[int, int]
"""Width and height in pixels."""

VISIBLE_CHANGE = 16
"""How much of 255 a channel must change for its pixel to count as changed."""


class ScreenError(Exception):
    """A gesture that this screen can't carry out now, in words for the policy; nothing has changed."""


@dataclass(frozen=True)
class Element:
    """A line of the outline.

    Attributes:
        ref (`int`): Its number.
        role (`str`): What it is: `"button"`, `"textbox"`, `"text"`, ...
        name (`str`): Its name or text.
        states (`tuple[str, ...]`): Such as `"checked"` or `"focused"`.
        value (`str`, *optional*): Its content.
        depth (`int`): Number of listed elements that it lies in.
    """

    ref: int
    role: str
    name: str
    states: tuple[str, ...] = ()
    value: str | None = None
    depth: int = 0

    @property
    def label(self) -> str:
        """Role and name, as in `button "OK"`."""
        return f'{self.role} "{self.name}"' if self.name else self.role

    def __str__(self) -> str:
        value = f' = "{self.value}"' if self.value is not None else ""
        states = f" ({', '.join(self.states)})" if self.states else ""
        return f"{'  ' * self.depth}{self.label} [{self.ref}]{value}{states}"


class Screen(Protocol):
    """A screen with a mouse and a keyboard.

    Attributes:
        size (`tuple[int, int]`): Width and height in pixels.
        cursor (`tuple[int, int]`): Where the mouse is.
    """

    size: Size
    cursor: Point

    def move(self, point: Point) -> None:
        """Move the mouse."""

    def click(self, point: Point, button: str, count: int) -> None:
        """Click `count` times with the `"left"`, `"right"` or `"middle"` button."""

    def drag(self, point: Point) -> None:
        """Press the left button at the cursor and let it go at `point`."""

    def scroll(self, point: Point, right: int, down: int) -> None:
        """Turn the wheel over `point` by so many pixels."""

    def press(self, keys: Sequence[str]) -> None:
        """Press keys together, by their DOM names."""

    def type(self, text: str) -> None:
        """Type a text, key by key."""

    def locate(self, ref: int) -> Point:
        """Scroll an element into view and return its middle; `ScreenError` if it has none."""

    def choose(self, ref: int) -> bool:
        """Choose an element that can't be clicked (an option of a closed list); return whether it was one."""

    def capture(self) -> bytes:
        """Take a picture of the screen, as a PNG."""

    def read_outline(self) -> list[Element]:
        """List the elements on the screen, in reading order."""

    def close(self) -> None:
        """Take the screen down; idempotent."""


def format_outline(outline: Sequence[Element], most: int) -> str:
    """Format an outline as text, an element a line.

    Args:
        outline (`Sequence[Element]`): The elements.
        most (`int`): Lines to keep; the rest is counted.
    """
    lines = [str(element) for element in outline[:most]]
    if len(outline) > most:
        lines.append(f"... and {len(outline) - most} more")
    return "\n".join(lines)


def to_tensor(png: bytes) -> torch.Tensor:
    """Decode a picture into a uint8 tensor of shape `(3, height, width)`."""
    with Image.open(io.BytesIO(png)) as picture:
        return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1).contiguous()


def measure_difference(before: torch.Tensor, after: torch.Tensor) -> float:
    """Measure the share of pixels, 0 to 1, that changed visibly between two pictures of the same size."""
    # Signed and wider than uint8, in which a difference would wrap around.
    changed = (before.to(torch.int16) - after.to(torch.int16)).abs() > VISIBLE_CHANGE
    return float(changed.any(dim=0).float().mean())
