"""Dense practice for training: many small facts in a row, of which only the results are learnt.

A conversation teaches a sum or two in a hundred tokens; a drill teaches one in eight, so the arithmetic sits long
before the chat does. Drills are plain text without any chat markup and leave the model's habits alone.
"""

import random
import re
from collections.abc import Callable
from itertools import groupby

from clawrl_trl.envs.chat.problems import draw_problem
from clawrl_trl.envs.gui.screen import Element
from recipes.tiny import actions, calculator
from recipes.tiny.dialogues import Dialogue
from recipes.tiny.render import Piece, pieces

_ROWS = 12
_WORD = re.compile(r"[^\W\d_]+|\d")
_PART = re.compile(rf"(<\S+?>| ?(?:{_WORD.pattern}))")
_REPORTS = ("**Calculator:**", "**Final answer:**", "The calculator says", "So the answer is")


def sums(rng: random.Random) -> list[Piece]:
    """Equations as they occur in the problems; the results are learnt."""
    found: list[Piece] = []
    while len(found) < 3 * _ROWS:
        for step in draw_problem(rng).steps:
            if step.equation:
                left, _, result = step.equation.rpartition(" ")
                found += [(left, "no"), (f" {result}", "yes"), ("\n", "no")]
    return found


def comparisons(rng: random.Random) -> list[Piece]:
    """Pairs of a student's and the correct answer, equal half of the time; the verdicts are learnt."""
    found: list[Piece] = []
    highest = rng.choice((9, 20, 100))
    for _ in range(_ROWS):
        answer = rng.randint(2, highest)
        wrote = answer
        if rng.random() < 0.5:
            wrote = rng.choice((answer + rng.choice((-10, -2, -1, 1, 2, 10)), rng.randint(2, highest)))
        verdict = " correct" if wrote == answer else " incorrect"
        before, after = rng.choice(((". **Grade", ":**"), (", so this", " is")))
        found += [(f" {wrote}, expected {answer}{before}", "no"), (f"{after}{verdict}", "yes"), (".\n", "no")]
    return found


def readings(rng: random.Random) -> list[Piece]:
    """Results of a calculator in its various forms; the numbers read from them are learnt."""
    found: list[Piece] = []
    for _ in range(_ROWS):
        wanted = calculator.bare_sum(rng)
        given = f"<tool_response>\n{calculator.result(rng, wanted)}\n</tool_response>\n"
        found += [(given + rng.choice(_REPORTS), "no"), (f" {wanted.value}", "yes"), ("\n", "no")]
    return found


def look_ups(rng: random.Random) -> list[Piece]:
    """Screens and what is wanted of them; the lines of the wanted elements are learnt.

    They are numbered at random: counted through, the place of an element tells its number too, and a model that
    counts does not learn to read.
    """
    found: list[Piece] = []
    for _ in range(_ROWS // 4):
        items, kind = _elements(rng), rng.choice(("button", "checkbox", "link"))
        refs = rng.sample(range(1, 10), len(items))
        lines = {item: str(Element(ref, kind, item)) for item, ref in zip(items, refs, strict=True)}
        screen = "".join(f"{line}\n" for line in lines.values())
        for item in rng.choices(items, k=6):
            found += [(f'Click "{item}".\n{screen}', "no"), (lines[item], "yes"), ("\n", "no")]
            screen = ""
    return found


def _elements(rng: random.Random) -> list[str]:
    """Names of two to six elements of several screens."""
    wanted = rng.randint(2, 6)
    items: dict[str, None] = {}
    while len(items) < wanted:
        items |= dict.fromkeys(actions.on_screen(rng).task["data"]["items"])
    return rng.sample(list(items), wanted)


def errands(rng: random.Random) -> list[Piece]:
    """Small wishes and the commands that fulfil them; the commands are learnt."""
    found: list[Piece] = []
    for _ in range(_ROWS):
        if rng.random() < 0.5:
            scene = actions.in_terminal(rng)
            command = scene.right[0]["tool_calls"][0]["function"]["arguments"]["command"]
        else:
            scene = actions.in_repository(rng)
            command = scene.right[0]["content"].splitlines()[1]
        found += [(f"{scene.messages[-1]['content']}\n$", "no"), (f" {command}", "yes"), ("\n", "no")]
    return found


def episodes(rng: random.Random) -> list[Piece]:
    """Tasks in a row as chats, each done right; only what a reply takes from its prompt is learnt.

    The descriptions of the tools, ten times as long, are left out.
    """
    env = rng.choice(actions.SAME_TOOLS)
    found: list[Piece] = []
    for _ in range(_ROWS // 2):
        scene = actions.SCENES[env](rng)
        given = set(_WORD.findall(scene.messages[-1]["content"]))
        for text, learnt in pieces(Dialogue([scene.messages[-1], *scene.right])):
            found += [(text, "no")] if learnt == "no" else _taken(text, given)
    return found


def _taken(text: str, given: set[str]) -> list[Piece]:
    """`text` in parts; those are learnt that are words of `given`."""
    taken = groupby(filter(None, _PART.split(text)), key=lambda part: part.strip() in given)
    return [("".join(parts), "yes" if copied else "no") for copied, parts in taken]


Sort = tuple[Callable[[random.Random], list[Piece]], int]
COUNTING: tuple[Sort, ...] = ((sums, 40), (comparisons, 40), (readings, 20))
COPYING: tuple[Sort, ...] = ((look_ups, 30), (errands, 20), (episodes, 50))


def drill(rng: random.Random, copying: float) -> list[Piece]:
    """One drill of any sort, with that probability one where the prompt is to be copied from."""
    sorts = COPYING if rng.random() < copying else COUNTING
    maker = rng.choices([maker for maker, _ in sorts], weights=[weight for _, weight in sorts])[0]
    return maker(rng)
