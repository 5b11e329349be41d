"""Dense practice for training: many small facts in a row, of which only the results are learnt.

A conversation teaches a sum or two in a hundred tokens; a drill teaches one in eight, so the arithmetic sits long
before the chat does. Drills are plain text without any chat markup and leave the model's habits alone.
"""

import random

from clawrl_trl.tiny.problems import draw, split_of
from clawrl_trl.tiny.render import Piece
from clawrl_trl.tiny.replies import attempt

_ROWS = 12


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
    """A correct answer beside what a student wrote; the verdicts are learnt."""
    found: list[Piece] = []
    while len(found) < 3 * _ROWS:
        problem = draw(rng)
        if split_of(problem.question) == "train":
            done = attempt(rng, problem, rng.random() < 0.5)
            shown = done.work if rng.random() < 0.5 else str(done.answer)
            text = f"Correct answer: {problem.answer}. The student wrote: {shown}.\n**Grade:**"
            found += [(text, "no"), (" correct." if done.slip is None else " incorrect.", "yes"), ("\n", "no")]
    return found


def drill(rng: random.Random) -> list[Piece]:
    """One drill of either sort."""
    return sums(rng) if rng.random() < 0.65 else comparisons(rng)
