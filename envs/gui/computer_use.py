"""The `computer_use` tool: the gestures that a policy can make on a screen.

One call is one gesture. A place is a coordinate from 0 to 999 relative to the screen, so that a model needs not know
its size, or the number of an element in the outline, for models without vision. Reading a call is independent of
screens, and performing it of browsers: each back end implements the few primitives of
[`clawrl_trl.envs.gui.screen.Screen`].
"""

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from clawrl_trl.envs.gui.screen import Point, Screen
from clawrl_trl.messages import Json

TOOL = "computer_use"
SCALE = 999
"""The coordinate of the last pixel."""
MAX_TEXT, MAX_KEYS, MAX_PIXELS, MAX_SECONDS = 2000, 8, 10_000, 10.0

CLICKS = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}
"""Button and number of clicks."""

ACTIONS = {
    "key": "press the `keys` together",
    "type": "type `text`, after a click on the place if one is given",
    "mouse_move": "move the cursor to the place",
    "left_click": "click",
    "right_click": "click with the right button",
    "middle_click": "click with the middle button",
    "double_click": "click twice",
    "triple_click": "click three times",
    "left_click_drag": "drag from the cursor to the place",
    "scroll": "scroll by `pixels`, up if positive, down if negative",
    "hscroll": "scroll by `pixels`, right if positive, left if negative",
    "wait": "wait `time` seconds",
    "terminate": "end the task with `status`",
}
"""Every action and its description for the model."""

_DOM_KEYS = {
    "alt": "Alt",
    "backspace": "Backspace",
    "cmd": "Meta",
    "command": "Meta",
    "control": "Control",
    "ctrl": "Control",
    "del": "Delete",
    "delete": "Delete",
    "down": "ArrowDown",
    "end": "End",
    "enter": "Enter",
    "esc": "Escape",
    "escape": "Escape",
    "home": "Home",
    "insert": "Insert",
    "left": "ArrowLeft",
    "meta": "Meta",
    "option": "Alt",
    "pagedown": "PageDown",
    "pageup": "PageUp",
    "return": "Enter",
    "right": "ArrowRight",
    "shift": "Shift",
    "space": " ",
    "super": "Meta",
    "tab": "Tab",
    "up": "ArrowUp",
    "win": "Meta",
    **{f"arrow{way}": f"Arrow{way.title()}" for way in ("up", "down", "left", "right")},
    **{f"f{number}": f"F{number}" for number in range(1, 13)},
}
"""DOM names of keys, by the names that models write."""


class GestureError(ValueError):
    """A call that can't be carried out, in words for the model that made it."""


@dataclass(frozen=True)
class Gesture:
    """A gesture: the arguments of a call of `computer_use`, checked.

    Attributes:
        action (`str`): One of [`ACTIONS`].
        at (`tuple[float, float]`, *optional*): The place, 0 to 999 from the left and from the top.
        ref (`int`, *optional*): The place as the number of an element.
        text (`str`): What to type.
        keys (`tuple[str, ...]`): Keys by their DOM names, pressed together.
        pixels (`int`): How far to scroll; positive is up, or right.
        seconds (`float`): How long to wait.
        status (`str`): The policy's own judgement of the task at its end: `"success"` or `"failure"`.
    """

    action: str
    at: tuple[float, float] | None = None
    ref: int | None = None
    text: str = ""
    keys: tuple[str, ...] = ()
    pixels: int = 0
    seconds: float = 0.0
    status: str = "success"


def build_tool_schema(actions: Sequence[str] = tuple(ACTIONS)) -> Json:
    """Build the tool's schema in the chat API's form.

    Args:
        actions (`Sequence[str]`, *optional*, defaults to all): The actions on offer; parameters that none of them
            takes are left out, so that a small model reads a short schema.
    """
    offered = set(actions)
    properties: Json = {
        "action": {
            "type": "string",
            "enum": list(actions),
            "description": "; ".join(f"{name}: {ACTIONS[name]}" for name in actions),
        }
    }
    if offered - {"key", "wait", "terminate"}:
        properties["ref"] = {"type": "integer", "description": "the place: number of an element"}
        properties["coordinate"] = {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": SCALE},
            "minItems": 2,
            "maxItems": 2,
            "description": f"the place: x, y from 0 to {SCALE}, relative to the screen",
        }
    own_parameters: dict[str, tuple[set[str], Json]] = {
        "keys": ({"key"}, {"type": "array", "items": {"type": "string"}}),
        "text": ({"type"}, {"type": "string"}),
        "pixels": ({"scroll", "hscroll"}, {"type": "integer"}),
        "time": ({"wait"}, {"type": "number", "description": f"seconds, at most {MAX_SECONDS:g}"}),
        "status": ({"terminate"}, {"type": "string", "enum": ["success", "failure"]}),
    }
    properties |= {name: schema for name, (takers, schema) in own_parameters.items() if takers & offered}
    parameters = {"type": "object", "properties": properties, "required": ["action"]}
    function = {"name": TOOL, "description": "Use the mouse and the keyboard.", "parameters": parameters}
    return {"type": "function", "function": function}


def read_gesture(arguments: Mapping[str, object], actions: Sequence[str] = tuple(ACTIONS)) -> Gesture:
    """Read the arguments of a call.

    Args:
        arguments (`Mapping`): What the model sent.
        actions (`Sequence[str]`, *optional*, defaults to all): The actions on offer.

    Raises:
        GestureError: If they are no gesture, with the mistake in words.

    Examples:
        >>> read_gesture({"action": "left_click", "ref": 3})
        >>> read_gesture({"action": "key", "keys": ["ctrl", "a"]}).keys
        ('Control', 'a')
    """
    action = arguments.get("action")
    if not isinstance(action, str) or action not in actions:
        raise GestureError(f"action must be one of {', '.join(actions)}, not {action!r}")
    status = arguments.get("status", "success")
    if status not in ("success", "failure"):
        raise GestureError(f'status must be "success" or "failure", not {status!r}')
    gesture = Gesture(
        action,
        at=_read_coordinate(arguments.get("coordinate")),
        ref=_read_ref(arguments.get("ref")),
        text=_read_text(arguments.get("text")) if action == "type" else "",
        keys=_read_keys(arguments) if action == "key" else (),
        pixels=round(_read_number(arguments, "pixels", MAX_PIXELS)) if action.endswith("scroll") else 0,
        seconds=abs(_read_number(arguments, "time", MAX_SECONDS, 1.0)) if action == "wait" else 0.0,
        status=status,
    )
    if action in ("mouse_move", "left_click_drag") and gesture.at is None and gesture.ref is None:
        raise GestureError(f"{action} needs a ref or a coordinate")
    return gesture


def perform(screen: Screen, gesture: Gesture) -> None:
    """Carry out a gesture.

    Args:
        screen ([`Screen`]): The screen.
        gesture ([`Gesture`]): Anything but a `terminate`, which is the environment's business.

    Raises:
        ScreenError: If the element is gone or has no place on the screen.
    """
    # An option of a closed list has no place on the screen that could be clicked.
    if gesture.action == "left_click" and gesture.ref is not None and screen.choose(gesture.ref):
        return
    if gesture.action == "key":
        screen.press(gesture.keys)
    elif gesture.action == "wait":
        threading.Event().wait(gesture.seconds)
    elif gesture.action in CLICKS:
        screen.click(_locate(screen, gesture), *CLICKS[gesture.action])
    elif gesture.action == "type":
        if gesture.at is not None or gesture.ref is not None:
            screen.click(_locate(screen, gesture), "left", 1)
        screen.type(gesture.text)
    elif gesture.action == "mouse_move":
        screen.move(_locate(screen, gesture))
    elif gesture.action == "left_click_drag":
        screen.drag(_locate(screen, gesture))
    elif gesture.action == "scroll":
        screen.scroll(_locate(screen, gesture), 0, -gesture.pixels)
    elif gesture.action == "hscroll":
        screen.scroll(_locate(screen, gesture), gesture.pixels, 0)


def _locate(screen: Screen, gesture: Gesture) -> Point:
    """Return the pixel of a gesture's place; the cursor's, if it names none."""
    if gesture.ref is not None:
        return screen.locate(gesture.ref)
    if gesture.at is None:
        return screen.cursor
    (x, y), (width, height) = gesture.at, screen.size
    return round(x / SCALE * (width - 1)), round(y / SCALE * (height - 1))


def to_coordinate(point: Point, size: tuple[int, int]) -> list[int]:
    """Convert a pixel to a coordinate, 0 to 999; for oracles that know where an element is."""
    return [round(value / (length - 1) * SCALE) for value, length in zip(point, size, strict=True)]


def _read_coordinate(value: object) -> tuple[float, float] | None:
    if value is None:
        return None
    if isinstance(value, Sequence) and len(value) == 2:
        x, y = value
        if _is_number(x) and _is_number(y) and 0 <= x <= SCALE and 0 <= y <= SCALE:
            return float(x), float(y)
    raise GestureError(f"coordinate must be [x, y] with numbers from 0 to {SCALE}, not {value!r}")


def _read_ref(value: object) -> int | None:
    if value is None:
        return None
    # Models copy the number with the brackets of the outline; `isdigit` alone passes signs that `int` refuses (²).
    text = str(value).strip("[] ")
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or len(text) > 9:
        raise GestureError(f"ref must be the number of an element, not {value!r}")
    return int(text)


def _read_text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        raise GestureError("type needs a text")
    text = str(value)
    if len(text) > MAX_TEXT:
        raise GestureError(f"text is longer than {MAX_TEXT} characters")
    if not text.replace("\n", "").replace("\t", "").isprintable():
        raise GestureError("text has characters that no keyboard types")
    return text


def _read_keys(arguments: Mapping[str, object]) -> tuple[str, ...]:
    # Models also write keys as a text, with plus signs between them; a lone "+" is a key.
    keys = arguments.get("keys") or arguments.get("text")
    if isinstance(keys, str):
        keys = keys.split("+") if len(keys) > 1 else [keys]
    if not isinstance(keys, list) or not 0 < len(keys) <= MAX_KEYS:
        raise GestureError(f"key needs keys, a list of 1 to {MAX_KEYS} names")
    return tuple(_read_key(name) for name in keys)


def _read_key(name: object) -> str:
    if isinstance(name, str) and len(name) == 1 and name.isprintable():
        return name
    dom_name = _DOM_KEYS.get(str(name).lower().replace("_", "").strip())
    if dom_name is None:
        raise GestureError(f"there is no key {name!r}")
    return dom_name


def _read_number(arguments: Mapping[str, object], name: str, most: float, default: float | None = None) -> float:
    value = arguments.get(name, default)
    if not _is_number(value) or abs(value) > most:
        raise GestureError(f"{name} must be a number up to {most:g}, not {value!r}")
    return float(value)


def _is_number(value: object) -> TypeGuard[float]:
    # JSON's true is an int to Python, and Python's JSON reads NaN and Infinity.
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
