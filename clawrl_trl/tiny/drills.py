"""Dense practice for training: many small facts in a row, of which only the results are learnt.

A conversation teaches a sum or two in a hundred tokens; a drill teaches one in eight, so the arithmetic sits long
before the chat does. Drills are plain text without any chat markup and leave the model's habits alone.
"""

import json
import random

from clawrl_trl.tiny import actions, calculator
from clawrl_trl.tiny.problems import draw
from clawrl_trl.tiny.render import Piece

_ROWS = 12
_REPORTS = ("**Calculator:**", "**Final answer:**", "The calculator says", "So the answer is")


def sums(rng: random.Random) -> list[Piece]:
    """Equations as they occur in the problems; the results are learnt."""
    found: list[Piece] = []
    while len(found) < 3 * _ROWS:
        for step in draw(rng).steps:
            if step.equation:
                left, _, result = step.equation.rpartition(" ")
                found += [(left, "no"), (f" {result}", "yes"), ("\n", "no")]
    return found


def comparisons(rng: random.Random) -> list[Piece]:
    """What a student wrote beside the correct answer, equal half of the time; the verdicts are learnt."""
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
    """Screens and what is wanted of them; the numbers of the elements are learnt, of one or of all in any order."""
    found: list[Piece] = []
    for _ in range(_ROWS // 2):
        scene = actions.on_screen(rng)
        lines, refs = actions.outline(scene.task["data"])
        if rng.random() < 0.7:
            found.append(("\n".join(lines) + "\n", "no"))
            for item in rng.sample(sorted(refs), len(refs)):
                found += [(f'"{item}":', "no"), (f" {refs[item]}", "yes"), ("\n", "no")]
            continue
        call = scene.right[0]["tool_calls"][0]["function"]
        written, _, ref = json.dumps(call, ensure_ascii=False).partition('"ref":')
        number, _, rest = ref.partition("}")
        found += [(f'{scene.messages[0]["content"]}\n{written}"ref":', "no"), (number, "yes"), (f"}}{rest}\n", "no")]
    return found


def errands(rng: random.Random) -> list[Piece]:
    """Small wishes and the commands that fulfil them; the commands are learnt."""
    found: list[Piece] = []
    for _ in range(_ROWS):
        scene = actions.in_terminal(rng)
        command = scene.right[0]["tool_calls"][0]["function"]["arguments"]["command"]
        found += [(f"{scene.messages[0]['content']}\n$", "no"), (f" {command}", "yes"), ("\n", "no")]
    return found


_DRILLS = ((sums, 27), (comparisons, 27), (readings, 11), (look_ups, 20), (errands, 15))


def drill(rng: random.Random) -> list[Piece]:
    """One drill of any sort."""
    makers = [maker for maker, _ in _DRILLS]
    return rng.choices(makers, weights=[weight for _, weight in _DRILLS])[0](rng)
