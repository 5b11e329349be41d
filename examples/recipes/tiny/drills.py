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
from recipes.tiny.render import Piece, render_pieces

_ROWS = 12
_WORD = re.compile(r"[^\W\d_]+|\d")
_PART = re.compile(rf"(<\S+?>| ?(?:{_WORD.pattern}))")
_REPORTS = ("**Calculator:**", "**Final answer:**", "The calculator says", "So the answer is")


def make_sums(rng: random.Random) -> list[Piece]:
    """Equations as they occur in the problems; the results are learnt."""
    pieces: list[Piece] = []
    while len(pieces) < 3 * _ROWS:
        for step in draw_problem(rng).steps:
            if step.equation:
                expression, _, result = step.equation.rpartition(" ")
                pieces += [(expression, "no"), (f" {result}", "yes"), ("\n", "no")]
    return pieces


def make_comparisons(rng: random.Random) -> list[Piece]:
    """Pairs of a student's and the correct answer, equal half of the time; the verdicts are learnt."""
    pieces: list[Piece] = []
    highest = rng.choice((9, 20, 100))
    for _ in range(_ROWS):
        answer = rng.randint(2, highest)
        wrote = answer
        if rng.random() < 0.5:
            wrote = rng.choice((answer + rng.choice((-10, -2, -1, 1, 2, 10)), rng.randint(2, highest)))
        verdict = " correct" if wrote == answer else " incorrect"
        before, after = rng.choice(((". **Grade", ":**"), (", so this", " is")))
        pieces += [(f" {wrote}, expected {answer}{before}", "no"), (f"{after}{verdict}", "yes"), (".\n", "no")]
    return pieces


def make_readings(rng: random.Random) -> list[Piece]:
    """Results of a calculator in its various forms; the numbers read from them are learnt."""
    pieces: list[Piece] = []
    for _ in range(_ROWS):
        request = calculator.draw_sum(rng)
        response = f"<tool_response>\n{calculator.word_result(rng, request)}\n</tool_response>\n"
        pieces += [(response + rng.choice(_REPORTS), "no"), (f" {request.value}", "yes"), ("\n", "no")]
    return pieces


def make_look_ups(rng: random.Random) -> list[Piece]:
    """Screens and what is wanted of them; the lines of the wanted elements are learnt.

    They are numbered at random: counted through, the place of an element tells its number too, and a model that
    counts does not learn to read.
    """
    pieces: list[Piece] = []
    for _ in range(_ROWS // 4):
        items, kind = _draw_elements(rng), rng.choice(("button", "checkbox", "link"))
        refs = rng.sample(range(1, 10), len(items))
        lines = {item: str(Element(ref, kind, item)) for item, ref in zip(items, refs, strict=True)}
        screen = "".join(f"{line}\n" for line in lines.values())
        for item in rng.choices(items, k=6):
            pieces += [(f'Click "{item}".\n{screen}', "no"), (lines[item], "yes"), ("\n", "no")]
            screen = ""
    return pieces


def _draw_elements(rng: random.Random) -> list[str]:
    """Names of two to six elements of several screens."""
    count = rng.randint(2, 6)
    items: dict[str, None] = {}
    while len(items) < count:
        items |= dict.fromkeys(actions.make_screen_scene(rng).task["data"]["items"])
    return rng.sample(list(items), count)


def make_errands(rng: random.Random) -> list[Piece]:
    """Small wishes and the commands that fulfil them; the commands are learnt."""
    pieces: list[Piece] = []
    for _ in range(_ROWS):
        if rng.random() < 0.5:
            scene = actions.make_terminal_scene(rng)
            command = scene.right[0]["tool_calls"][0]["function"]["arguments"]["command"]
        else:
            scene = actions.make_repository_scene(rng)
            command = scene.right[0]["content"].splitlines()[1]
        pieces += [(f"{scene.messages[-1]['content']}\n$", "no"), (f" {command}", "yes"), ("\n", "no")]
    return pieces


def make_episodes(rng: random.Random) -> list[Piece]:
    """Tasks in a row as chats, each done right; only what a reply takes from its prompt is learnt.

    The descriptions of the tools, ten times as long, are left out.
    """
    env = rng.choice(actions.SAME_TOOLS)
    pieces: list[Piece] = []
    for _ in range(_ROWS // 2):
        scene = actions.SCENES[env](rng)
        prompt_words = set(_WORD.findall(scene.messages[-1]["content"]))
        for text, learnt in render_pieces(Dialogue([scene.messages[-1], *scene.right])):
            pieces += [(text, "no")] if learnt == "no" else _mark_copied(text, prompt_words)
    return pieces


def _mark_copied(text: str, prompt_words: set[str]) -> list[Piece]:
    """`text` in parts; those are learnt that are words of `given`."""
    runs = groupby(filter(None, _PART.split(text)), key=lambda part: part.strip() in prompt_words)
    return [("".join(parts), "yes" if copied else "no") for copied, parts in runs]


Sort = tuple[Callable[[random.Random], list[Piece]], int]
COUNTING: tuple[Sort, ...] = ((make_sums, 40), (make_comparisons, 40), (make_readings, 20))
COPYING: tuple[Sort, ...] = ((make_look_ups, 30), (make_errands, 20), (make_episodes, 50))


def draw_drill(rng: random.Random, copying: float) -> list[Piece]:
    """One drill of any sort, with that probability one where the prompt is to be copied from."""
    sorts = COPYING if rng.random() < copying else COUNTING
    maker = rng.choices([maker for maker, _ in sorts], weights=[weight for _, weight in sorts])[0]
    return maker(rng)
