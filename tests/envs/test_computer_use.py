"""The action schema: what models write becomes a gesture or a reason, and never an exception of another kind."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawrl_trl.envs.gui.computer_use import (
    ACTIONS,
    CLICKS,
    Gesture,
    GestureError,
    build_tool_schema,
    perform,
    read_gesture,
    to_coordinate,
)
from clawrl_trl.envs.gui.screen import ScreenError


class Recorder:
    """A screen that writes down which primitives it was asked for."""

    size = (101, 201)
    cursor = (7, 8)

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def locate(self, ref: int) -> tuple[int, int]:
        if ref != 3:
            raise ScreenError("gone")
        return 50, 60

    def choose(self, ref: int) -> bool:
        return ref == 9

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.asked.append((name, *arguments))


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ({"action": "left_click", "coordinate": [0, 999]}, ("click", (0, 200), "left", 1)),
        ({"action": "right_click", "ref": 3}, ("click", (50, 60), "right", 1)),
        ({"action": "middle_click"}, ("click", (7, 8), "middle", 1)),
        ({"action": "double_click", "ref": "[3]"}, ("click", (50, 60), "left", 2)),
        ({"action": "triple_click", "ref": "3"}, ("click", (50, 60), "left", 3)),
        ({"action": "mouse_move", "coordinate": [500, 500]}, ("move", (50, 100))),
        ({"action": "left_click_drag", "ref": 3}, ("drag", (50, 60))),
        ({"action": "key", "keys": ["CTRL", "a"]}, ("press", ("Control", "a"))),
        ({"action": "key", "text": "shift+Page_Down"}, ("press", ("Shift", "PageDown"))),
        ({"action": "key", "keys": "+"}, ("press", ("+",))),
        ({"action": "type", "text": 12}, ("type", "12")),
        ({"action": "scroll", "pixels": -40}, ("scroll", (7, 8), 0, 40)),
        ({"action": "hscroll", "pixels": 40, "ref": 3}, ("scroll", (50, 60), 40, 0)),
    ],
)
def test_a_call_becomes_one_primitive(arguments: dict[str, Any], asked: tuple[Any, ...]) -> None:
    screen = Recorder()
    perform(screen, read_gesture(arguments))  # type: ignore[arg-type]
    assert screen.asked == [asked]


def test_typing_into_an_element_clicks_it_first() -> None:
    screen = Recorder()
    perform(screen, read_gesture({"action": "type", "ref": 3, "text": "a"}))  # type: ignore[arg-type]
    assert screen.asked == [("click", (50, 60), "left", 1), ("type", "a")]


def test_what_can_be_chosen_is_not_clicked() -> None:
    screen = Recorder()
    perform(screen, Gesture("left_click", ref=9))  # type: ignore[arg-type]
    assert screen.asked == []


def test_waiting_asks_nothing_of_the_screen() -> None:
    screen = Recorder()
    perform(screen, read_gesture({"action": "wait", "time": 0}))  # type: ignore[arg-type]
    assert screen.asked == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "action must be one of"),
        ({"action": "shout"}, "action must be one of"),
        ({"action": ["key"]}, "action must be one of"),
        ({"action": "mouse_move"}, "needs a ref or a coordinate"),
        ({"action": "left_click", "coordinate": [0, 1000]}, "from 0 to 999"),
        ({"action": "left_click", "coordinate": "12"}, "from 0 to 999"),
        ({"action": "left_click", "coordinate": [1, float("nan")]}, "from 0 to 999"),
        ({"action": "left_click", "ref": True}, "number of an element"),
        ({"action": "left_click", "ref": "²"}, "number of an element"),
        ({"action": "key"}, "needs keys"),
        ({"action": "key", "keys": ["warp"]}, "no key 'warp'"),
        ({"action": "key", "keys": ["a"] * 9}, "needs keys"),
        ({"action": "type"}, "needs a text"),
        ({"action": "type", "text": "x" * 2001}, "longer than 2000"),
        ({"action": "type", "text": "\x00"}, "no keyboard types"),
        ({"action": "scroll"}, "pixels must be a number"),
        ({"action": "scroll", "pixels": True}, "pixels must be a number"),
        ({"action": "wait", "time": 1e9}, "time must be a number up to 10"),
        ({"action": "terminate", "status": "perhaps"}, "status must be"),
    ],
)
def test_a_mistake_is_told(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(GestureError, match=reason):
        read_gesture(arguments)


def test_an_action_that_is_not_on_offer_is_a_mistake() -> None:
    with pytest.raises(GestureError, match="left_click, terminate"):
        read_gesture({"action": "type", "text": "a"}, ("left_click", "terminate"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
NAMES = st.sampled_from(["ref", "coordinate", "text", "keys", "pixels", "time", "status"])


@given(st.sampled_from(list(ACTIONS)) | JSON, st.dictionaries(NAMES, JSON))
def test_reading_raises_nothing_but_the_reason(action: Any, rest: dict[str, Any]) -> None:
    try:
        gesture = read_gesture({"action": action, **rest})
    except GestureError as error:
        assert str(error)
    else:
        assert gesture.action in ACTIONS


@given(st.integers(0, 1919), st.integers(0, 1079))
def test_relative_coordinates_come_back_within_a_pixel(x: int, y: int) -> None:
    screen = Recorder()
    screen.size = (1920, 1080)
    perform(screen, Gesture("mouse_move", at=tuple(to_coordinate((x, y), screen.size))))  # type: ignore[arg-type]
    ((_, (back_x, back_y)),) = screen.asked
    assert abs(back_x - x) <= 1 and abs(back_y - y) <= 1


def test_the_schema_offers_what_is_read() -> None:
    function = build_tool_schema()["function"]
    properties = function["parameters"]["properties"]
    assert properties["action"]["enum"] == list(ACTIONS)
    assert set(properties) == {"action", "ref", "coordinate", "keys", "text", "pixels", "time", "status"}
    json.dumps(function)
    assert set(CLICKS) < set(ACTIONS)


def test_a_short_offer_has_a_short_schema() -> None:
    properties = build_tool_schema(("left_click", "terminate"))["function"]["parameters"]["properties"]
    assert set(properties) == {"action", "ref", "coordinate", "status"}
    assert set(build_tool_schema(("wait",))["function"]["parameters"]["properties"]) == {"action", "time"}
