"""The one tool the tiny model knows: its schema, what it is asked to compute, and what it answers."""

import random
from dataclasses import dataclass
from typing import Any

from clawrl_trl.envs.chat.problems import Problem
from recipes.tiny.options import split_options

_ABOUT = split_options(
    "Evaluates an arithmetic expression.|Evaluate an arithmetic expression.|A calculator.|"
    "Compute the value of an expression.|Calculate."
)
_USE = split_options(
    "Use the calculator.|Please use the calculator.|Use the calculator tool.|Use the tool.|"
    "Please use the tool.|Check with the calculator.|Compute it with the calculator.|"
    "Use your calculator for this.|Can you use the calculator?|Let the calculator do it.|"
    "Please calculate with the tool."
)
QUESTIONS = split_options(
    "What is {e}?|Compute {e}.|Calculate {e}.|How much is {e}?|{e}?|{e} = ?|Please compute {e}.|"
    "I need {e}.|Can you work out {e}?"
)
"""How people ask for the value of an expression."""


@dataclass(frozen=True)
class ToolRequest:
    """Something to compute.

    Attributes:
        question: the question in the user's words.
        expression: what to send to the calculator, without spaces.
        value: its value.
    """

    question: str
    expression: str
    value: int


def make_schema(rng: random.Random, usual: bool = False) -> dict[str, Any]:
    """The tool's schema in OpenAI's format; its wording varies unless `usual`."""
    about = rng.choice(_ABOUT)
    value: dict[str, Any] = {"type": "string"}
    if rng.random() < 0.5:
        value["description"] = rng.choice(("The expression, e.g. 2+3", "Arithmetic expression", "What to compute"))
    parameters = {"type": "object", "properties": {"expression": value}, "required": ["expression"]}
    return {"type": "function", "function": {"name": "calculator", "description": about, "parameters": parameters}}


def draw_request(rng: random.Random, problem: Problem) -> ToolRequest:
    """Either `problem`, or a bare sum with larger numbers than problems have."""
    if rng.random() < 0.45:
        first, *rest = [step.equation.split(" = ")[0] for step in problem.steps if step.equation]
        expression = first + "".join(" " + " ".join(equation.split()[1:]) for equation in rest)
        return ToolRequest(problem.question, expression.replace("x", "*").replace(" ", ""), problem.answer)
    return draw_sum(rng)


def draw_sum(rng: random.Random) -> ToolRequest:
    """A sum, difference or product of two numbers."""
    a, b = rng.randint(2, 999), rng.randint(2, 99)
    a, b = max(a, b), min(a, b)
    sign = rng.choice("+-*")
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    operator = rng.choice(("x", "*", "times")) if sign == "*" else sign
    spaced = rng.choice((f"{a} {operator} {b}", f"{a} {operator} {b}", f"{a}{sign}{b}"))
    return ToolRequest(rng.choice(QUESTIONS).format(e=spaced), f"{a}{sign}{b}", value)


def word_request(rng: random.Random, request: ToolRequest) -> str:
    """The question with the wish that the tool be used."""
    use = rng.choice(_USE)
    return rng.choice((f"{use} {request.question}", f"{request.question} {use}"))


def word_result(rng: random.Random, request: ToolRequest) -> str:
    """Return the calculator's answer, in one of the forms that calculators have."""
    value = request.value
    forms = (f"{value}", f"{value}", f"{value}.0", f"{request.expression} = {value}", f'{{"result": {value}}}')
    return rng.choice(forms)
