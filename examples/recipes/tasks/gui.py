"""The GUI tasks in `examples/tasks/gui`: made from a seed, each with checks and an oracle.

Step 1 is one click among a few elements, step 2 two to four actions, step 3 up to ten, with scrolling, dragging,
double and right clicks. No task stands in both splits. The pages, which show what a task's `data` says, are files of
their own in `pages/`.

```bash
PYTHONPATH=examples python -m recipes.tasks.gui examples/tasks/gui
```
"""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from clawrl_trl.messages import Json
from recipes.tasks.splits import SEED, SPLITS, Maker, make_splits, read_folder, write_splits

COLOURS = ["red", "blue", "green", "black", "white", "pink", "brown", "orange"]
WORDS = ["cat", "dog", "bird", "fish", "tree", "book", "cup", "hat", "car", "key", "ball", "box"]
FOOD = ["milk", "bread", "eggs", "tea", "rice", "apples", "cheese", "soup"]
NAMES = ["Tom", "Ann", "Ben", "Mia", "Sam", "Eva", "Max", "Lea", "Tim", "Zoe"]
SIZES = ["small", "medium", "large"]
CITIES = ["Rome", "Oslo", "Bern", "Lima", "Kyiv", "Cairo"]


def click(element: str) -> Json:
    return {"action": "left_click", "element": element}


def key(*keys: str) -> Json:
    return {"action": "key", "keys": list(keys)}


def fill(element: str, text: str) -> Json:
    return {"action": "type", "element": element, "text": text}


def make_condition(path: str, value: Any) -> str:
    """A condition in JavaScript: `path` holds `value`."""
    return f"JSON.stringify({path}) === {json.dumps(json.dumps(value, separators=(',', ':')))}"


def _make_choice(rng: random.Random, words: Sequence[str], wording: str, kind: str, **data: Any) -> Json:
    items = rng.sample(words, rng.randint(2, 4))
    goal = rng.choice(items)
    return {
        "page": "choose.html",
        "instruction": wording.format(goal),
        "data": {"kind": kind, "items": items, **data},
        "checks": [make_condition("state.chosen", goal)],
        "oracle": [click(f'{kind} "{goal}"')],
    }


def colour(rng: random.Random) -> Json:
    return _make_choice(rng, COLOURS, 'Click the "{}" button.', "button", colours=True)


def word(rng: random.Random) -> Json:
    return _make_choice(rng, WORDS, 'Click "{}".', "button")


def number(rng: random.Random) -> Json:
    return _make_choice(rng, [str(value) for value in range(1, 21)], 'Click the number "{}".', "button")


def link(rng: random.Random) -> Json:
    return _make_choice(rng, WORDS, 'Open the link "{}".', "link")


def tick(rng: random.Random) -> Json:
    return _make_choice(rng, FOOD, 'Tick "{}".', "checkbox")


def _make_form(instruction: str, fields: list[Json], form_values: Json, steps: list[Json], button: str) -> Json:
    return {
        "page": "form.html",
        "instruction": instruction,
        "data": {"fields": fields, "button": button},
        "checks": [make_condition(f"state.sent[{json.dumps(name)}]", value) for name, value in form_values.items()],
        "oracle": [*steps, click(f'button "{button}"')],
    }


def _make_list(instruction: str, verb: str, rows: list[str], goals: list[str]) -> Json:
    return {
        "page": "list.html",
        "instruction": instruction,
        "data": {"verb": verb, "rows": rows},
        "checks": [make_condition("[...state.marked].sort()", sorted(goals)), "over"],
        "oracle": [*(click(f'button "{verb} {goal}"') for goal in goals), click('button "Done"')],
    }


def one_field(rng: random.Random) -> Json:
    label = rng.choice(["name", "friend", "pet"])
    text = rng.choice(NAMES)
    button = rng.choice(["Save", "Send", "OK"])
    instruction = f"Type {text} into {label} and press {button}."
    return _make_form(
        instruction, [{"name": label, "kind": "text"}], {label: text}, [fill(f'textbox "{label}"', text)], button
    )


def tick_two(rng: random.Random) -> Json:
    items = rng.sample(FOOD, 4)
    goals = sorted(rng.sample(items, 2), key=items.index)
    return _make_form(
        f"Tick {goals[0]} and {goals[1]}, then press Buy.",
        [{"name": item, "kind": "checkbox"} for item in items],
        {item: item in goals for item in items},
        [click(f'checkbox "{goal}"') for goal in goals],
        "Buy",
    )


def pick(rng: random.Random) -> Json:
    label, options = rng.choice([("size", SIZES), ("city", CITIES), ("colour", COLOURS[:5])])
    goal = rng.choice(options)
    fields = [{"name": label, "kind": "select", "options": options}]
    return _make_form(
        f"Choose {goal} as {label} and press Save.", fields, {label: goal}, [click(f'option "{goal}"')], "Save"
    )


def tab(rng: random.Random) -> Json:
    titles = rng.sample(["Home", "Food", "Games", "Help"], 3)
    words = rng.sample(WORDS, 9)
    tabs = {title: words[3 * place : 3 * place + 3] for place, title in enumerate(titles)}
    title = rng.choice(titles[1:])
    goal = rng.choice(tabs[title])
    return {
        "page": "tabs.html",
        "instruction": f"Open the tab {title} and click {goal}.",
        "data": {"tabs": tabs},
        "checks": [make_condition("state.tab", title), make_condition("state.chosen", goal)],
        "oracle": [click(f'tab "{title}"'), click(f'button "{goal}"')],
    }


def delete_two(rng: random.Random) -> Json:
    rows = rng.sample(NAMES, 5)
    goals = rng.sample(rows, 2)
    return _make_list(f"Delete {goals[0]} and {goals[1]}, then press Done.", "delete", rows, goals)


def whole_form(rng: random.Random) -> Json:
    name, friend = rng.sample(NAMES, 2)
    city, size, gift = rng.choice(CITIES), rng.choice(SIZES), rng.random() < 0.5
    fields: list[Json] = [
        {"name": "name", "kind": "text"},
        {"name": "friend", "kind": "text"},
        {"name": "city", "kind": "select", "options": CITIES},
        {"name": "size", "kind": "select", "options": SIZES},
        {"name": "gift", "kind": "checkbox"},
    ]
    form_values = {"name": name, "friend": friend, "city": city, "size": size, "gift": gift}
    steps = [fill('textbox "name"', name), fill('textbox "friend"', friend)]
    steps += [click(f'option "{city}"'), click(f'option "{size}"')]
    steps += [click('checkbox "gift"')] if gift else []
    order = f"Order for name {name}, friend {friend}, city {city}, size {size}, "
    return _make_form(f"{order}{'as' if gift else 'not as'} a gift.", fields, form_values, steps, "Order")


def extreme(rng: random.Random) -> Json:
    rows = list(zip(rng.sample(NAMES, 5), rng.sample(range(2, 99), 5), strict=True))
    most = rng.random() < 0.5
    goal = (max if most else min)(rows, key=lambda row: row[1])[0]
    return {
        "page": "table.html",
        "instruction": f"Click the name with the {'most' if most else 'fewest'} points.",
        "data": {"columns": ["name", "points"], "rows": rows},
        "checks": [make_condition("state.chosen", goal)],
        "oracle": [click(f'button "{goal}"')],
    }


def long_list(rng: random.Random) -> Json:
    rows = [f"{name} {number}" for name in NAMES for number in range(1, 5)]
    rng.shuffle(rows)
    goals = rng.sample(rows[10:], 3)
    return _make_list(f"Star {goals[0]}, {goals[1]} and {goals[2]}, then press Done.", "star", rows, goals)


def drag(rng: random.Random) -> Json:
    cards = rng.sample(WORDS, 4)
    goals = rng.sample(cards, 2)
    target = {goal: rng.choice(["left", "right"]) for goal in goals}
    steps: list[Json] = []
    for goal, box in target.items():
        steps.append({"action": "mouse_move", "element": f'button "{goal}"'})
        steps.append({"action": "left_click_drag", "element": f'listbox "{box}"'})
    moves = " and ".join(f"{goal} into the {box} box" for goal, box in target.items())
    return {
        "page": "drag.html",
        "instruction": f"Drag {moves}, then press Done.",
        "data": {"cards": cards, "boxes": ["left", "right"]},
        "checks": [*(make_condition(f"state.in[{json.dumps(goal)}]", box) for goal, box in target.items()), "over"],
        "oracle": [*steps, click('button "Done"')],
    }


def edit(rng: random.Random) -> Json:
    names = rng.sample(NAMES, 4)
    rows = [[name, str(value)] for name, value in zip(names, rng.sample(range(10, 99), 4), strict=True)]
    (name, old), (removed, removed_value) = rng.sample(rows, 2)
    new = str(rng.randint(100, 199))
    remaining = {
        other_name: (new if other_name == name else value) for other_name, value in rows if other_name != removed
    }
    return {
        "page": "edit.html",
        "instruction": f"Set {name} to {new} (double click), remove {removed} (right click) and press Save.",
        "data": {"rows": rows},
        "checks": [
            make_condition(
                "Object.entries(state.saved).sort()",
                sorted([other_name, value] for other_name, value in remaining.items()),
            )
        ],
        "oracle": [
            {"action": "double_click", "element": f'button "{name} {old}"'},
            key("ctrl", "a"),
            {"action": "type", "text": f"{new}\n"},
            {"action": "right_click", "element": f'button "{removed} {removed_value}"'},
            click('menuitem "Remove"'),
            click('button "Save"'),
        ],
    }


STEPS: dict[int, tuple[Maker, ...]] = {
    1: (colour, word, number, link, tick),
    2: (one_field, tick_two, pick, tab, delete_two),
    3: (whole_form, extreme, long_list, drag, edit),
}
"""The kinds of tasks of each step, which take turns."""


def generate(seed: int = SEED, splits: Mapping[str, int] = SPLITS) -> dict[str, list[Json]]:
    """The tasks of each split.

    Args:
        seed (`int`, *optional*, defaults to `4`): Seeds everything; the same seed gives the same tasks.
        splits (`Mapping`, *optional*, defaults to [`SPLITS`]): Tasks of each step in each split.
    """
    splits_of_tasks = make_splits(STEPS, _identify, _make_first_fields, seed=seed, splits=splits)
    return {split: [task | {"ends": "over"} for task in tasks] for split, tasks in splits_of_tasks.items()}


def _identify(task: Json) -> str:
    return json.dumps([task["instruction"], task["data"]], sort_keys=True)


def _make_first_fields(name: str, maker: Maker) -> Json:
    return {"id": f"{name}-{maker.__name__.replace('_', '-')}"}


if __name__ == "__main__":
    write_splits(read_folder(__doc__), generate())
