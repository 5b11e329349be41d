"""Scripted solutions of MiniWoB++ tasks, from what the outline says, through the actions a policy has.

They show that a task can be solved without seeing it, and give demonstrations. Each yields calls of `computer_use` and
may look at the environment in between.
"""

import re
from collections.abc import Callable, Iterator

from clawrl_trl.envs.base.message import Json
from clawrl_trl.envs.gui.env import GUIEnv
from clawrl_trl.envs.gui.screen import Element

ORACLES: dict[str, Callable[[GUIEnv], Iterator[Json]]] = {}
"""Each task's oracle, by its name."""


def _solves(*names: str) -> Callable[[Callable[[GUIEnv], Iterator[Json]]], Callable[[GUIEnv], Iterator[Json]]]:
    def register(oracle: Callable[[GUIEnv], Iterator[Json]]) -> Callable[[GUIEnv], Iterator[Json]]:
        ORACLES.update(dict.fromkeys(names, oracle))
        return oracle

    return register


def _asked(env: GUIEnv, pattern: str = r'"([^"]*)"') -> list[str]:
    """Find a pattern in the instruction; by default what it puts in quotes."""
    said = env.scene.instruction if env.scene is not None else ""
    return [str(found) for found in re.findall(pattern, said)]


def _named(env: GUIEnv, name: str, *roles: str) -> Json:
    """A click on the element with this name."""
    found = next(one for one in env.elements if one.name == name and (not roles or one.role in roles))
    return _click(found)


def _all(env: GUIEnv, role: str) -> list[Element]:
    return [one for one in env.elements if one.role == role]


def _click(element: Element) -> Json:
    return {"action": "left_click", "ref": element.ref}


def _fill(element: Element, text: str) -> Json:
    return {"action": "type", "ref": element.ref, "text": text}


def _place(word: str) -> int:
    """The index that `"2nd"` means."""
    return int(re.sub(r"\D", "", word)) - 1


@_solves("click-test", "focus-text", "click-dialog")
def the_only_one(env: GUIEnv) -> Iterator[Json]:
    yield _click(next(one for one in env.elements if one.role in ("button", "textbox")))


@_solves("click-button", "click-link", "unicode-test")
def the_one_in_quotes(env: GUIEnv) -> Iterator[Json]:
    yield _named(env, _asked(env)[0])


@_solves("click-dialog-2")
def button_of_dialog(env: GUIEnv) -> Iterator[Json]:
    (name,) = _asked(env)
    yield _named(env, "Close" if name == "x" else name, "button")


@_solves("click-test-2", "click-test-transfer", "click-button-sequence")
def buttons_in_capitals(env: GUIEnv) -> Iterator[Json]:
    for name in _asked(env, r"button ([A-Z]+)"):
        yield _named(env, name, "button")


@_solves("click-option", "click-checkboxes", "click-checkboxes-large", "click-checkboxes-transfer")
def ticks(env: GUIEnv) -> Iterator[Json]:
    for name in _asked(env, r"Select (.*) and click")[0].split(", "):
        if name != "nothing":
            yield _named(env, name, "checkbox", "radio")
    yield _named(env, "Submit", "button")


@_solves("choose-list", "click-scroll-list")
def options(env: GUIEnv) -> Iterator[Json]:
    for name in _asked(env, r"Select (.*) from")[0].split(", "):
        yield _named(env, name, "option")
    yield _named(env, "Submit", "button")


@_solves("enter-text", "enter-text-dynamic", "enter-password")
def the_text_in_quotes(env: GUIEnv) -> Iterator[Json]:
    for box in _all(env, "textbox"):
        yield _fill(box, _asked(env)[0])
    yield _named(env, "Submit", "button")


@_solves("enter-text-2")
def the_text_in_another_case(env: GUIEnv) -> Iterator[Json]:
    text = _asked(env)[0]
    upper = bool(_asked(env, "(upper) case"))
    yield _fill(_all(env, "textbox")[0], text.upper() if upper else text.lower())
    yield _named(env, "Submit", "button")


@_solves("login-user")
def login(env: GUIEnv) -> Iterator[Json]:
    for box, text in zip(_all(env, "textbox"), _asked(env), strict=True):
        yield _fill(box, text)
    yield _named(env, "Login", "button")


@_solves("focus-text-2")
def one_of_three_boxes(env: GUIEnv) -> Iterator[Json]:
    yield _click(_all(env, "textbox")[_place(_asked(env, r"the (\w+) input")[0])])


@_solves("click-tab")
def a_tab(env: GUIEnv) -> Iterator[Json]:
    yield _named(env, _asked(env, r"(Tab #\d)")[0], "tab")


@_solves("click-tab-2", "click-tab-2-easy", "click-tab-2-medium", "click-tab-2-hard")
def a_link_behind_tabs(env: GUIEnv) -> Iterator[Json]:
    (name,) = _asked(env)
    for tab in _all(env, "tab"):
        yield _click(tab)
        if any(one.name == name and one.role == "text" for one in env.elements):
            yield _named(env, name, "text")


@_solves("click-collapsible", "click-collapsible-nodelay")
def a_section(env: GUIEnv) -> Iterator[Json]:
    yield _click(_all(env, "tab")[0])
    yield {"action": "wait", "time": 1}
    yield _named(env, "Submit", "button")


@_solves("simple-arithmetic")
def arithmetic(env: GUIEnv) -> Iterator[Json]:
    sum_ = next(one.name for one in env.elements if "=" in one.name)
    left, sign, right = re.findall(r"(\d+) ([-+x*×]) (\d+)", sum_)[0]
    value = {"+": int(left) + int(right), "-": int(left) - int(right)}.get(sign, int(left) * int(right))
    yield _fill(_all(env, "textbox")[0], str(value))
    yield _named(env, "Submit", "button")


@_solves("simple-algebra")
def algebra(env: GUIEnv) -> Iterator[Json]:
    left, sign, right, result = re.findall(r"(\w+) ([-+]) (\w+) = (-?\d+)", _all(env, "text")[0].name)[0]
    if left == "x":
        value = int(result) - int(right) if sign == "+" else int(result) + int(right)
    else:
        value = int(result) - int(left) if sign == "+" else int(left) - int(result)
    yield _fill(_all(env, "textbox")[0], str(value))
    yield _named(env, "Submit", "button")


@_solves("read-table")
def a_cell(env: GUIEnv) -> Iterator[Json]:
    cells = [one.name for one in _all(env, "cell")]
    key = _asked(env, r"value of (.*) into")[0]
    yield _fill(_all(env, "textbox")[0], cells[cells[::2].index(key) * 2 + 1])
    yield _named(env, "Submit", "button")


@_solves("read-table-2")
def two_cells(env: GUIEnv) -> Iterator[Json]:
    cells = [one.name for one in _all(env, "cell")]
    for label, box in zip(
        [one for one in _all(env, "text") if one.name.endswith(":")], _all(env, "textbox"), strict=True
    ):
        yield _fill(box, cells[cells[::2].index(label.name.removesuffix(":")) * 2 + 1])
    yield _named(env, "Submit", "button")


@_solves("find-word")
def a_word(env: GUIEnv) -> Iterator[Json]:
    words = " ".join(one.name for one in _all(env, "text")).split()
    word = words[_place(_asked(env, r"the (\w+) word")[0])]
    yield _fill(_all(env, "textbox")[0], re.sub(r"[^a-zA-Z]", "", word))
    yield _named(env, "Submit", "button")


@_solves("odd-or-even")
def parity(env: GUIEnv) -> Iterator[Json]:
    buttons = {side: [one for one in _all(env, "button") if one.name == side] for side in ("Odd", "Even")}
    for place, number in enumerate(_all(env, "text")):
        yield _click(buttons["Odd" if int(number.name) % 2 else "Even"][place])
    yield _named(env, "Submit", "button")


@_solves("buy-ticket")
def a_ticket(env: GUIEnv) -> Iterator[Json]:
    cost = {one.ref: int(re.sub(r"\D", "", one.name)) for one in _all(env, "button")}
    time = {
        button.ref: int(hours) * 60 + int(minutes)
        for button, (hours, minutes) in zip(
            _all(env, "button"), re.findall(r"(\d+)h (\d+)m", " ".join(one.name for one in env.elements)), strict=True
        )
    }
    worth = cost if _asked(env, "(cost)") else time
    best = min if _asked(env, "(cheapest|shortest)") else max
    yield {"action": "left_click", "ref": best(worth, key=lambda ref: worth[ref])}


@_solves("guess-number")
def guesses(env: GUIEnv) -> Iterator[Json]:
    for guess in range(10):
        box = next(one for one in env.elements if one.role in ("spinbutton", "textbox"))
        yield _click(box)
        yield {"action": "key", "keys": ["ctrl", "a"]}
        yield {"action": "type", "text": str(guess)}
        yield _named(env, "Submit", "button")


@_solves("navigate-tree")
def a_file(env: GUIEnv) -> Iterator[Json]:
    (name,) = _asked(env)
    opened: set[int] = set()
    while not any(one.name == name for one in env.elements):
        closed = next(one for one in env.elements if one.ref not in opened)
        opened.add(closed.ref)
        yield _click(closed)
    yield _named(env, name)


@_solves("enter-date")
def a_date(env: GUIEnv) -> Iterator[Json]:
    (date,) = _asked(env, r"\d+/\d+/\d+")
    yield _fill(next(one for one in env.elements if one.name == "Month"), date.replace("/", ""))
    yield _named(env, "Submit", "button")


@_solves("copy-paste", "copy-paste-2")
def copied(env: GUIEnv) -> Iterator[Json]:
    boxes = _all(env, "textbox")
    which = _asked(env, r"the (\w+) text area")
    yield _click(boxes[_place(which[0]) if which else 0])
    yield {"action": "key", "keys": ["ctrl", "a"]}
    yield {"action": "key", "keys": ["ctrl", "c"]}
    yield _click(boxes[-1])
    yield {"action": "key", "keys": ["ctrl", "v"]}
    yield _named(env, "Submit", "button")


@_solves("text-transform")
def wavy_text(env: GUIEnv) -> Iterator[Json]:
    yield _fill(_all(env, "textbox")[0], "".join(one.name for one in _all(env, "text")))
    yield _named(env, "Submit", "button")


@_solves("click-widget")
def a_widget(env: GUIEnv) -> Iterator[Json]:
    (kind,) = _asked(env)
    role = {"text": "textbox", "textarea": "textbox"}.get(kind, kind)
    boxes = [one for one in env.elements if one.role == role]
    yield _click(next((one for one in boxes if (one.value is not None) == (kind == "textarea")), boxes[0]))


@_solves("sign-agreement")
def an_agreement(env: GUIEnv) -> Iterator[Json]:
    if _asked(env, "(cancel)"):
        yield _named(env, "Cancel", "button")


@_solves("highlight-text")
def highlighted(env: GUIEnv) -> Iterator[Json]:
    yield {"action": "triple_click", "ref": _all(env, "text")[0].ref}
    yield _named(env, "Submit", "button")


@_solves("multi-layouts", "multi-orderings")
def a_search(env: GUIEnv) -> Iterator[Json]:
    (year,) = _asked(env, r"year (\d+)")
    wanted = {"genre": _asked(env, "for (.*) movies")[0], "director": _asked(env, "by (.*) from")[0]}
    wanted |= {"year": year, "date": year}
    outline = list(env.elements)
    for place, box in enumerate(outline):
        if box.role == "textbox":
            label = outline[place - 1].name.lower()
            yield _fill(box, next(text for word, text in wanted.items() if word in label))
    yield _click([one for one in outline if one.role in ("button", "text")][-1])
