"""Short arithmetic word problems, with their worked steps, in two splits that share no question.

The wordings are the same in both splits; a question belongs to one of them by a hash of its text, so its
combination of numbers, names and objects is never seen on the other side. Numbers are small (every result
is at most 100), because the tiny model has to compute them without a slip at temperature 1.
"""

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

Split = Literal["train", "heldout"]
_HELDOUT_SHARE = 8  # one question in eight is held out


@dataclass(frozen=True)
class SolutionStep:
    """One step of a worked solution: a sentence of the question and what follows from it.

    Attributes:
        sentence: one of the question, without its full stop.
        equation: e.g. "5 + 7 = 12", or None for a fact that needs no computation.
    """

    sentence: str
    equation: str | None = None


@dataclass(frozen=True)
class Problem:
    """A word problem.

    Attributes:
        question: the text a pupil would paste, at most 40 words.
        answer: the integer that is asked for.
        kind: the operations it needs: add, sub, mul, div, add_add, add_sub, mul_add, mul_sub or div_add.
        steps: the worked solution; the last step with an equation yields the answer.
        name: the person in the story.
        unit: what is counted ("apples").
    """

    question: str
    answer: int
    kind: str
    steps: tuple[SolutionStep, ...] = field(default=(), compare=False, repr=False)
    name: str = field(default="", compare=False, repr=False)
    unit: str = field(default="", compare=False, repr=False)


_SHE = "Anna Mia Lucy Sara Nina Emma Lily Rosa Ella Zoe Maya Ruth Kate Amy Jane Leila"
_HE = "Tom Ben Sam Leo Max Paul Omar Jack Adam Luis Noah Finn Ravi Hugo Ivan Dan"
NAMES: dict[str, str] = dict.fromkeys(_SHE.split(), "She") | dict.fromkeys(_HE.split(), "He")
_COUNTED = (
    "apples pens books cards coins shells stamps marbles stickers cookies pencils oranges "
    "balls flowers candies eggs buttons beads photos badges plums toys cups tickets"
)
UNITS: tuple[str, ...] = tuple(_COUNTED.split())

Draw = Callable[[random.Random], dict[str, int]]


def _add(rng: random.Random) -> dict[str, int]:
    a, b = rng.randint(3, 30), rng.randint(2, 20)
    return {"a": a, "b": b, "x": a + b}


def _sub(rng: random.Random) -> dict[str, int]:
    a = rng.randint(6, 40)
    b = rng.randint(2, a - 2)
    return {"a": a, "b": b, "x": a - b}


def _mul(rng: random.Random) -> dict[str, int]:
    a, b = rng.randint(2, 10), rng.randint(2, 10)
    return {"a": a, "b": b, "x": a * b}


def _div(rng: random.Random) -> dict[str, int]:
    b, x = rng.randint(2, 10), rng.randint(2, 10)
    return {"a": b * x, "b": b, "x": x}


def _add_add(rng: random.Random) -> dict[str, int]:
    a, b, c = rng.randint(3, 20), rng.randint(2, 12), rng.randint(2, 10)
    return {"a": a, "b": b, "c": c, "x": a + b, "y": a + b + c}


def _add_sub(rng: random.Random) -> dict[str, int]:
    a, b = rng.randint(3, 20), rng.randint(2, 15)
    c = rng.randint(2, min(a + b - 1, 15))
    return {"a": a, "b": b, "c": c, "x": a + b, "y": a + b - c}


def _mul_add(rng: random.Random) -> dict[str, int]:
    a, b, c = rng.randint(2, 6), rng.randint(2, 9), rng.randint(2, 12)
    return {"a": a, "b": b, "c": c, "x": a * b, "y": a * b + c}


def _mul_sub(rng: random.Random) -> dict[str, int]:
    a, b = rng.randint(2, 6), rng.randint(3, 9)
    c = rng.randint(2, min(a * b - 1, 12))
    return {"a": a, "b": b, "c": c, "x": a * b, "y": a * b - c}


def _div_add(rng: random.Random) -> dict[str, int]:
    b, x, c = rng.randint(2, 9), rng.randint(2, 10), rng.randint(2, 12)
    return {"a": b * x, "b": b, "c": c, "x": x, "y": x + c}


@dataclass(frozen=True)
class Kind:
    """A kind of problem: how it draws its numbers, and the equation that each sentence leads to."""

    draw: Draw
    equations: tuple[str | None, ...]
    answer: str
    stories: tuple[tuple[str, ...], ...]


# A story: its sentences, then the question. {n} name, {P} and {p} pronoun, {o} objects.
KINDS: dict[str, Kind] = {
    "add": Kind(
        _add,
        (None, "{a} + {b} = {x}"),
        "x",
        (
            ("{n} has {a} {o}", "{P} buys {b} more {o}", "How many {o} does {n} have now?"),
            ("{n} has {a} {o}", "A friend gives {n} {b} more", "How many {o} does {n} have in all?"),
            ("{n} found {a} {o} in the morning", "{P} found {b} more at noon", "How many {o} did {p} find?"),
            ("There are {a} red {o} here", "There are {b} blue {o} too", "How many {o} are there in all?"),
            ("A shop sold {a} {o} on Monday", "It sold {b} {o} on Tuesday", "How many {o} did it sell?"),
            ("{n} made {a} {o}", "Then {p} made {b} more", "How many {o} did {n} make in total?"),
        ),
    ),
    "sub": Kind(
        _sub,
        (None, "{a} - {b} = {x}"),
        "x",
        (
            ("{n} has {a} {o}", "{P} gives away {b} of them", "How many {o} are left?"),
            ("{n} had {a} {o}", "{P} lost {b} of them", "How many {o} does {n} still have?"),
            ("There were {a} {o} in a box", "{n} took {b} out", "How many {o} are still in the box?"),
            ("A shop had {a} {o}", "It sold {b} {o}", "How many {o} are left in the shop?"),
            ("{n} needs {a} {o}", "{P} already has {b}", "How many more {o} does {p} need?"),
            ("{n} packed {a} {o}", "{P} used {b} on the trip", "How many {o} remain?"),
        ),
    ),
    "mul": Kind(
        _mul,
        ("{a} x {b} = {x}",),
        "x",
        (
            ("{n} has {a} boxes with {b} {o} in each box", "How many {o} does {n} have?"),
            ("{n} fills {a} bags with {b} {o} each", "How many {o} are in the bags?"),
            ("There are {a} rows with {b} {o} in each row", "How many {o} are there?"),
            ("{n} buys {a} packs of {b} {o}", "How many {o} does {p} buy?"),
            ("{n} gives {b} {o} to each of {a} friends", "How many {o} does {p} give away?"),
        ),
    ),
    "div": Kind(
        _div,
        ("{a} / {b} = {x}",),
        "x",
        (
            ("{n} shares {a} {o} equally among {b} friends", "How many {o} does each friend get?"),
            ("{n} puts {a} {o} into {b} equal bags", "How many {o} are in each bag?"),
            ("A teacher gives {a} {o} to {b} children equally", "How many {o} does each child get?"),
            ("{n} packs {a} {o} into boxes of {b}", "How many boxes does {p} fill?"),
        ),
    ),
    "add_add": Kind(
        _add_add,
        (None, "{a} + {b} = {x}", "{x} + {c} = {y}"),
        "y",
        (
            ("{n} has {a} {o}", "{P} buys {b} more", "Then {p} finds {c} more", "How many {o} has {n} now?"),
            ("A shop sold {a} {o} on Monday", "It sold {b} on Tuesday", "It sold {c} on Friday",
             "How many {o} did it sell?"),
        ),
    ),
    "add_sub": Kind(
        _add_sub,
        (None, "{a} + {b} = {x}", "{x} - {c} = {y}"),
        "y",
        (
            ("{n} has {a} {o}", "{P} buys {b} more", "Then {p} gives away {c}", "How many {o} are left?"),
            ("{n} had {a} {o}", "A friend gave {n} {b} more", "Then {p} lost {c}", "How many {o} are left?"),
        ),
    ),
    "mul_add": Kind(
        _mul_add,
        ("{a} x {b} = {x}", "{x} + {c} = {y}"),
        "y",
        (
            ("{n} has {a} boxes with {b} {o} in each box", "{P} finds {c} more", "How many {o} has {p} in all?"),
            ("{n} buys {a} packs of {b} {o}", "A friend gives {n} {c} more", "How many {o} has {n} now?"),
        ),
    ),
    "mul_sub": Kind(
        _mul_sub,
        ("{a} x {b} = {x}", "{x} - {c} = {y}"),
        "y",
        (
            ("{n} has {a} bags with {b} {o} in each bag", "{P} gives away {c}", "How many {o} are left?"),
            ("{n} buys {a} packs of {b} {o}", "{P} loses {c} of them", "How many {o} does {p} still have?"),
        ),
    ),
    "div_add": Kind(
        _div_add,
        ("{a} / {b} = {x}", "{x} + {c} = {y}"),
        "y",
        (
            ("{n} and friends share {a} {o} equally among {b} people", "Then {n} finds {c} more",
             "How many {o} does {n} have now?"),
        ),
    ),
}  # fmt: skip
_WEIGHTS = {"add": 5, "sub": 5, "mul": 4, "div": 3, "add_add": 2, "add_sub": 2, "mul_add": 2, "mul_sub": 2}


def assign_split(question: str) -> Split:
    """Return the split of a question, by a hash of its text."""
    # Python's own `hash` of a text differs from process to process.
    return "heldout" if zlib.crc32(question.encode()) % _HELDOUT_SHARE == 0 else "train"


def draw_problem(rng: random.Random) -> Problem:
    """One random problem of either split."""
    kind_name = rng.choices([*_WEIGHTS, "div_add"], weights=[*_WEIGHTS.values(), 1])[0]
    kind = KINDS[kind_name]
    *sentences, last_question = rng.choice(kind.stories)
    numbers = kind.draw(rng)
    name = rng.choice(tuple(NAMES))
    unit = rng.choice(UNITS)
    words = {"n": name, "P": NAMES[name], "p": NAMES[name].lower(), "o": unit, **numbers}
    steps = tuple(
        SolutionStep(sentence.format_map(words), equation.format_map(words) if equation else None)
        for sentence, equation in zip(sentences, kind.equations, strict=True)
    )
    question = " ".join([*(f"{step.sentence}." for step in steps), last_question.format_map(words)])
    counted = "boxes" if "How many boxes" in last_question else unit
    return Problem(question, numbers[kind.answer], kind_name, steps, name, counted)


def stream_problems(rng: random.Random, split: Split) -> Iterator[Problem]:
    """Endless problems of one split, drawn with `rng`."""
    while True:
        problem = draw_problem(rng)
        if assign_split(problem.question) == split:
            yield problem


def draw_problems(seed: int, split: Split, count: int) -> list[Problem]:
    """`count` different problems of one split; the same seed gives the same list.

    Args:
        seed: seeds the draw.
        split: "train" (what the bundled model may have seen) or "heldout" (what it has never seen).
        count: how many; there are hundreds of thousands in each split.

    Raises:
        ValueError: if `split` is neither "train" nor "heldout" or `count` is negative.
    """
    if split not in ("train", "heldout"):
        raise ValueError(f"split must be 'train' or 'heldout', not {split!r}")
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}")
    drawn_by_question: dict[str, Problem] = {}
    source = stream_problems(random.Random(f"{seed}-{split}"), split)
    while len(drawn_by_question) < count:
        problem = next(source)
        drawn_by_question.setdefault(problem.question, problem)
    return list(drawn_by_question.values())
