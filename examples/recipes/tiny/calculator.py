"""The one tool the tiny model knows: its schema, what it is asked to compute, and what it answers."""

import random
from dataclasses import dataclass
from typing import Any

from clawrl_trl.envs.chat.problems import Problem
from recipes.tiny.options import options

_ABOUT = options(
    "Evaluates an arithmetic expression.|Evaluate an arithmetic expression.|A calculator.|"
    "Compute the value of an expression.|Calculate."
)
_USE = options(
    "Use the calculator.|Please use the calculator.|Use the calculator tool.|Use the tool.|"
    "Please use the tool.|Check with the calculator.|Compute it with the calculator.|"
    "Use your calculator for this.|Can you use the calculator?|Let the calculator do it.|"
    "Please calculate with the tool."
)
QUESTIONS = options(
    "What is {e}?|Compute {e}.|Calculate {e}.|How much is {e}?|{e}?|{e} = ?|Please compute {e}.|"
    "I need {e}.|Can you work out {e}?"
)
"""How people ask for the value of an expression."""


@dataclass(frozen=True)
class Wanted:
    """Something to compute.

    Attributes:
        question: the question in the user's words.
        expression: what to send to the calculator, without spaces.
        value: its value.
    """

    question: str
    expression: str
    value: int


def schema(rng: random.Random, usual: bool = False) -> dict[str, Any]:
    """The tool's schema in OpenAI's format; its wording varies unless `usual`."""
    about = rng.choice(_ABOUT)
    value: dict[str, Any] = {"type": "string"}
    if rng.random() < 0.5:
        value["description"] = rng.choice(("The expression, e.g. 2+3", "Arithmetic expression", "What to compute"))
    parameters = {"type": "object", "properties": {"expression": value}, "required": ["expression"]}
    return {"type": "function", "function": {"name": "calculator", "description": about, "parameters": parameters}}


def wanted(rng: random.Random, problem: Problem) -> Wanted:
    """Either `problem`, or a bare sum with larger numbers than problems have."""
    if rng.random() < 0.45:
        first, *rest = [step.equation.split(" = ")[0] for step in problem.steps if step.equation]
        expression = first + "".join(" " + " ".join(equation.split()[1:]) for equation in rest)
        return Wanted(problem.question, expression.replace("x", "*").replace(" ", ""), problem.answer)
    return bare_sum(rng)


def bare_sum(rng: random.Random) -> Wanted:
    """A sum, difference or product of two numbers."""
    a, b = rng.randint(2, 999), rng.randint(2, 99)
    a, b = max(a, b), min(a, b)
    sign = rng.choice("+-*")
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    said = rng.choice(("x", "*", "times")) if sign == "*" else sign
    spaced = rng.choice((f"{a} {said} {b}", f"{a} {said} {b}", f"{a}{sign}{b}"))
    return Wanted(rng.choice(QUESTIONS).format(e=spaced), f"{a}{sign}{b}", value)


def request(rng: random.Random, wanted: Wanted) -> str:
    """The question with the wish that the tool be used."""
    use = rng.choice(_USE)
    return rng.choice((f"{use} {wanted.question}", f"{wanted.question} {use}"))


def result(rng: random.Random, wanted: Wanted) -> str:
    """Return the calculator's answer, in one of the forms that calculators have."""
    value = wanted.value
    shown = (f"{value}", f"{value}", f"{value}.0", f"{wanted.expression} = {value}", f'{{"result": {value}}}')
    return rng.choice(shown)
