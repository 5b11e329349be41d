"""Scripted solutions of MiniWoB++ tasks, from the outline alone, through the actions that a policy has.

They show that a task can be solved without seeing it, and give demonstrations. Each oracle yields calls of
`computer_use` and may look at the environment in between. Oracles are named by the kind of task that they solve, and
so by nouns.
"""

import re
from collections.abc import Callable, Iterator

from clawrl_trl.envs.gui.env import GUIEnv
from clawrl_trl.envs.gui.screen import Element
from clawrl_trl.messages import Json

ORACLES: dict[str, Callable[[GUIEnv], Iterator[Json]]] = {}
"""Each task's oracle, by its name."""


def _solves(*names: str) -> Callable[[Callable[[GUIEnv], Iterator[Json]]], Callable[[GUIEnv], Iterator[Json]]]:
    def register(oracle: Callable[[GUIEnv], Iterator[Json]]) -> Callable[[GUIEnv], Iterator[Json]]:
        ORACLES.update(dict.fromkeys(names, oracle))
        return oracle

    return register


def _find_in_instruction(env: GUIEnv, pattern: str = r'"([^"]*)"') -> list[str]:
    """Find a pattern in the instruction; by default the texts in quotes."""
    instruction = env.scene.instruction if env.scene is not None else ""
    return [str(match) for match in re.findall(pattern, instruction)]


def _click_named(env: GUIEnv, name: str, *roles: str) -> Json:
    """Build a click on the element with this name."""
    element = next(
        element for element in env.elements if element.name == name and (not roles or element.role in roles)
    )
    return _click(element)


def _find_all(env: GUIEnv, role: str) -> list[Element]:
    return [element for element in env.elements if element.role == role]


def _click(element: Element) -> Json:
    return {"action": "left_click", "ref": element.ref}


def _fill(element: Element, text: str) -> Json:
    return {"action": "type", "ref": element.ref, "text": text}


def _parse_ordinal(word: str) -> int:
    """Return the index that an ordinal such as `"2nd"` means."""
    return int(re.sub(r"\D", "", word)) - 1


@_solves("click-test", "focus-text", "click-dialog")
def solve_only_control(env: GUIEnv) -> Iterator[Json]:
    yield _click(next(element for element in env.elements if element.role in ("button", "textbox")))


@_solves("click-button", "click-link", "unicode-test")
def solve_quoted_element(env: GUIEnv) -> Iterator[Json]:
    yield _click_named(env, _find_in_instruction(env)[0])


@_solves("click-dialog-2")
def solve_button_of_dialog(env: GUIEnv) -> Iterator[Json]:
    (name,) = _find_in_instruction(env)
    yield _click_named(env, "Close" if name == "x" else name, "button")


@_solves("click-test-2", "click-test-transfer", "click-button-sequence")
def solve_buttons_in_capitals(env: GUIEnv) -> Iterator[Json]:
    for name in _find_in_instruction(env, r"button ([A-Z]+)"):
        yield _click_named(env, name, "button")


@_solves("click-option", "click-checkboxes", "click-checkboxes-large", "click-checkboxes-transfer")
def solve_ticked_boxes(env: GUIEnv) -> Iterator[Json]:
    for name in _find_in_instruction(env, r"Select (.*) and click")[0].split(", "):
        if name != "nothing":
            yield _click_named(env, name, "checkbox", "radio")
    yield _click_named(env, "Submit", "button")


@_solves("choose-list", "click-scroll-list")
def solve_listed_options(env: GUIEnv) -> Iterator[Json]:
    for name in _find_in_instruction(env, r"Select (.*) from")[0].split(", "):
        yield _click_named(env, name, "option")
    yield _click_named(env, "Submit", "button")


@_solves("enter-text", "enter-text-dynamic", "enter-password")
def solve_quoted_text(env: GUIEnv) -> Iterator[Json]:
    for box in _find_all(env, "textbox"):
        yield _fill(box, _find_in_instruction(env)[0])
    yield _click_named(env, "Submit", "button")


@_solves("enter-text-2")
def solve_text_in_another_case(env: GUIEnv) -> Iterator[Json]:
    text = _find_in_instruction(env)[0]
    upper = bool(_find_in_instruction(env, "(upper) case"))
    yield _fill(_find_all(env, "textbox")[0], text.upper() if upper else text.lower())
    yield _click_named(env, "Submit", "button")


@_solves("login-user")
def solve_login_form(env: GUIEnv) -> Iterator[Json]:
    for box, text in zip(_find_all(env, "textbox"), _find_in_instruction(env), strict=True):
        yield _fill(box, text)
    yield _click_named(env, "Login", "button")


@_solves("focus-text-2")
def solve_one_of_three_boxes(env: GUIEnv) -> Iterator[Json]:
    yield _click(_find_all(env, "textbox")[_parse_ordinal(_find_in_instruction(env, r"the (\w+) input")[0])])


@_solves("click-tab")
def solve_numbered_tab(env: GUIEnv) -> Iterator[Json]:
    yield _click_named(env, _find_in_instruction(env, r"(Tab #\d)")[0], "tab")


@_solves("click-tab-2", "click-tab-2-easy", "click-tab-2-medium", "click-tab-2-hard")
def solve_link_behind_tabs(env: GUIEnv) -> Iterator[Json]:
    (name,) = _find_in_instruction(env)
    for tab in _find_all(env, "tab"):
        yield _click(tab)
        if any(element.name == name and element.role == "text" for element in env.elements):
            yield _click_named(env, name, "text")


@_solves("click-collapsible", "click-collapsible-nodelay")
def solve_collapsed_section(env: GUIEnv) -> Iterator[Json]:
    yield _click(_find_all(env, "tab")[0])
    # The section unfolds in an animation.
    yield {"action": "wait", "time": 1}
    yield _click_named(env, "Submit", "button")


@_solves("simple-arithmetic")
def solve_arithmetic(env: GUIEnv) -> Iterator[Json]:
    sum_ = next(element.name for element in env.elements if "=" in element.name)
    left, sign, right = re.findall(r"(\d+) ([-+x*×]) (\d+)", sum_)[0]
    value = {"+": int(left) + int(right), "-": int(left) - int(right)}.get(sign, int(left) * int(right))
    yield _fill(_find_all(env, "textbox")[0], str(value))
    yield _click_named(env, "Submit", "button")


@_solves("simple-algebra")
def solve_algebra(env: GUIEnv) -> Iterator[Json]:
    left, sign, right, result = re.findall(r"(\w+) ([-+]) (\w+) = (-?\d+)", _find_all(env, "text")[0].name)[0]
    if left == "x":
        value = int(result) - int(right) if sign == "+" else int(result) + int(right)
    else:
        value = int(result) - int(left) if sign == "+" else int(left) - int(result)
    yield _fill(_find_all(env, "textbox")[0], str(value))
    yield _click_named(env, "Submit", "button")


@_solves("read-table")
def solve_table_cell(env: GUIEnv) -> Iterator[Json]:
    cells = [element.name for element in _find_all(env, "cell")]
    key = _find_in_instruction(env, r"value of (.*) into")[0]
    yield _fill(_find_all(env, "textbox")[0], cells[cells[::2].index(key) * 2 + 1])
    yield _click_named(env, "Submit", "button")


@_solves("read-table-2")
def solve_two_table_cells(env: GUIEnv) -> Iterator[Json]:
    cells = [element.name for element in _find_all(env, "cell")]
    for label, box in zip(
        [element for element in _find_all(env, "text") if element.name.endswith(":")],
        _find_all(env, "textbox"),
        strict=True,
    ):
        yield _fill(box, cells[cells[::2].index(label.name.removesuffix(":")) * 2 + 1])
    yield _click_named(env, "Submit", "button")


@_solves("find-word")
def solve_numbered_word(env: GUIEnv) -> Iterator[Json]:
    words = " ".join(element.name for element in _find_all(env, "text")).split()
    word = words[_parse_ordinal(_find_in_instruction(env, r"the (\w+) word")[0])]
    yield _fill(_find_all(env, "textbox")[0], re.sub(r"[^a-zA-Z]", "", word))
    yield _click_named(env, "Submit", "button")


@_solves("odd-or-even")
def solve_parity(env: GUIEnv) -> Iterator[Json]:
    buttons = {
        side: [element for element in _find_all(env, "button") if element.name == side] for side in ("Odd", "Even")
    }
    for place, number in enumerate(_find_all(env, "text")):
        yield _click(buttons["Odd" if int(number.name) % 2 else "Even"][place])
    yield _click_named(env, "Submit", "button")


@_solves("buy-ticket")
def solve_best_ticket(env: GUIEnv) -> Iterator[Json]:
    cost = {element.ref: int(re.sub(r"\D", "", element.name)) for element in _find_all(env, "button")}
    time = {
        button.ref: int(hours) * 60 + int(minutes)
        for button, (hours, minutes) in zip(
            _find_all(env, "button"),
            re.findall(r"(\d+)h (\d+)m", " ".join(element.name for element in env.elements)),
            strict=True,
        )
    }
    worth = cost if _find_in_instruction(env, "(cost)") else time
    best = min if _find_in_instruction(env, "(cheapest|shortest)") else max
    yield {"action": "left_click", "ref": best(worth, key=lambda ref: worth[ref])}


@_solves("guess-number")
def solve_guessed_number(env: GUIEnv) -> Iterator[Json]:
    for guess in range(10):
        box = next(element for element in env.elements if element.role in ("spinbutton", "textbox"))
        yield _click(box)
        # The last guess stands in the box.
        yield {"action": "key", "keys": ["ctrl", "a"]}
        yield {"action": "type", "text": str(guess)}
        yield _click_named(env, "Submit", "button")


@_solves("navigate-tree")
def solve_file_in_tree(env: GUIEnv) -> Iterator[Json]:
    (name,) = _find_in_instruction(env)
    opened: set[int] = set()
    while not any(element.name == name for element in env.elements):
        closed = next(element for element in env.elements if element.ref not in opened)
        opened.add(closed.ref)
        yield _click(closed)
    yield _click_named(env, name)


@_solves("enter-date")
def solve_date_field(env: GUIEnv) -> Iterator[Json]:
    (date,) = _find_in_instruction(env, r"\d+/\d+/\d+")
    yield _fill(next(element for element in env.elements if element.name == "Month"), date.replace("/", ""))
    yield _click_named(env, "Submit", "button")


@_solves("copy-paste", "copy-paste-2")
def solve_copied_text(env: GUIEnv) -> Iterator[Json]:
    boxes = _find_all(env, "textbox")
    which = _find_in_instruction(env, r"the (\w+) text area")
    yield _click(boxes[_parse_ordinal(which[0]) if which else 0])
    yield {"action": "key", "keys": ["ctrl", "a"]}
    yield {"action": "key", "keys": ["ctrl", "c"]}
    yield _click(boxes[-1])
    yield {"action": "key", "keys": ["ctrl", "v"]}
    yield _click_named(env, "Submit", "button")


@_solves("text-transform")
def solve_wavy_text(env: GUIEnv) -> Iterator[Json]:
    yield _fill(_find_all(env, "textbox")[0], "".join(element.name for element in _find_all(env, "text")))
    yield _click_named(env, "Submit", "button")


@_solves("click-widget")
def solve_widget_of_a_kind(env: GUIEnv) -> Iterator[Json]:
    (kind,) = _find_in_instruction(env)
    role = {"text": "textbox", "textarea": "textbox"}.get(kind, kind)
    boxes = [element for element in env.elements if element.role == role]
    yield _click(next((element for element in boxes if (element.value is not None) == (kind == "textarea")), boxes[0]))


@_solves("sign-agreement")
def solve_agreement_to_cancel(env: GUIEnv) -> Iterator[Json]:
    if _find_in_instruction(env, "(cancel)"):
        yield _click_named(env, "Cancel", "button")


@_solves("highlight-text")
def solve_highlighted_text(env: GUIEnv) -> Iterator[Json]:
    yield {"action": "triple_click", "ref": _find_all(env, "text")[0].ref}
    yield _click_named(env, "Submit", "button")


@_solves("multi-layouts", "multi-orderings")
def solve_search_form(env: GUIEnv) -> Iterator[Json]:
    (year,) = _find_in_instruction(env, r"year (\d+)")
    values = {
        "genre": _find_in_instruction(env, "for (.*) movies")[0],
        "director": _find_in_instruction(env, "by (.*) from")[0],
    }
    values |= {"year": year, "date": year}
    outline = list(env.elements)
    for place, box in enumerate(outline):
        if box.role == "textbox":
            label = outline[place - 1].name.lower()
            yield _fill(box, next(text for word, text in values.items() if word in label))
    yield _click([element for element in outline if element.role in ("button", "text")][-1])
