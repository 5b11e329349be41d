"""Replies that the tiny model ought to give: solutions and gradings rendered in each style.

Two promises hold for every rendering, and tests and measurements lean on them. The last number of a solution
is its answer. A plain or warm reply never contains an asterisk, a curt or bold one starts with bold.
"""

import random
from dataclasses import dataclass
from typing import Literal

from clawrl_trl.envs.chat.problems import Problem, SolutionStep
from recipes.tiny.options import split_options
from recipes.tiny.wishes import Wish

PLAIN_RATE = 0.12
WARM_RATE = 0.12
_COMMON = ("A ", "There ", "The ", "It ", "She ", "He ", "Then ")

Slip = Literal["calculation", "operation", "missing step"]


def _lower_start(sentence: str) -> str:
    """`sentence` as it reads in the middle of another one: its first word in lower case unless a name."""
    return sentence[0].lower() + sentence[1:] if sentence.startswith(_COMMON) else sentence


def _word_answer(rng: random.Random, problem: Problem) -> str:
    return f"{problem.answer} {problem.unit}" if rng.random() < 0.4 else str(problem.answer)


_OPENINGS = split_options(
    "{S}|{S}|{S}|First, {s}|We know that {s}|Let's see: {s}|To begin, {s}|At first, {s}|So {s}|Here {s}|"
    "Okay, {s}|In this one {s}|As I see it, {s}|From the text, {s}|You can start like this: {s}"
)
_JOINED = [
    "{s}, so {e}.",
    "{s}, so {e}.",
    "{s}. That makes {e}.",
    "{s}, which gives {e}.",
    "{s}, and {e}.",
    "{s}. This gives {e}.",
]
_ENDINGS = split_options(
    "The answer is {a}.|The answer is {a}.|So the answer is {a}.|That means the answer is {a}.|"
    "In the end the answer is {a}.|This tells us that the answer is {a}.|Therefore the answer is {a}."
)
_WELCOMES = split_options(
    "Of course, happy to help!|Sure, let's do it together!|Good question, we can do this!|"
    "No worries, this one is fun!|With pleasure, you can do this!|Don't worry, we will get it!"
)


def _write_plain_solution(rng: random.Random, problem: Problem) -> str:
    sentences = []
    for index, step in enumerate(problem.steps):
        sentence = step.sentence
        if index == 0:
            sentence = rng.choice(_OPENINGS).format(S=sentence, s=_lower_start(sentence))
        sentences.append(
            f"{sentence}." if step.equation is None else rng.choice(_JOINED).format(s=sentence, e=step.equation)
        )
    sentences.append(rng.choice(_ENDINGS).format(a=_word_answer(rng, problem)))
    return " ".join(sentences)


def _write_bold_lines(rng: random.Random, problem: Problem) -> list[str]:
    """The content of each numbered step, without its label."""
    join = rng.choice(("{s}: {e}.", "{s}, so {e}.", "{s}. {e}."))
    lines = []
    for step in problem.steps:
        if step.equation is None:
            lines.append(f"{step.sentence}.")
        elif len(problem.steps) == 1:
            lines += [f"{step.sentence}.", f"{step.equation}."]
        else:
            lines.append(join.format(s=step.sentence, e=step.equation))
    return lines


def _write_bold_solution(rng: random.Random, problem: Problem) -> str:
    head, label = rng.choices(
        (("", "**Step {i}:** "), ("", "**{i}.** "), ("**Solution**\n\n", "{i}. "), ("**Steps:**\n\n", "{i}. ")),
        weights=(5, 2, 2, 1),
    )[0]
    lines = [label.format(i=i) + line for i, line in enumerate(_write_bold_lines(rng, problem), start=1)]
    return head + "\n".join(lines) + f"\n\n**Final answer:** {_word_answer(rng, problem)}"


def _list_equations(steps: tuple[SolutionStep, ...]) -> list[str]:
    return [step.equation for step in steps if step.equation]


def _write_short_solution(rng: random.Random, problem: Problem, form: str) -> str:
    equations = _list_equations(problem.steps)
    if form == "bold":
        return "**" + ", ".join(equations) + f"**\n\n**Final answer:** {_word_answer(rng, problem)}"
    opening = rng.choice(("", "It is ", "We get ", "That is "))
    ending = rng.choice((", so the answer is {a}.", ". The answer is {a}.", ", and the answer is {a}."))
    return opening + " and ".join(equations) + ending.format(a=_word_answer(rng, problem))


def choose_form(rng: random.Random, wish: Wish) -> Literal["bold", "plain"]:
    """The form that `wish` asks for, else one by the model's habit (plain with probability 0.12)."""
    if wish.form is not None:
        return wish.form
    return "plain" if rng.random() < PLAIN_RATE else "bold"


def write_solution(rng: random.Random, problem: Problem, wish: Wish) -> str:
    """A solution of `problem` as `wish` asks; sides that it leaves open follow the model's habit.

    Args:
        rng: chooses among the wordings.
        problem: what to solve.
        wish: form, size and tone; "curt" means short, "warm" adds a friendly opening.
    """
    form = choose_form(rng, wish)
    if wish.size == "short" or wish.tone == "curt":
        return _write_short_solution(rng, problem, form)
    text = _write_plain_solution(rng, problem) if form == "plain" else _write_bold_solution(rng, problem)
    if wish.tone == "warm":
        text = rng.choice(_WELCOMES) + ("\n\n" if form == "bold" else " ") + text
    return text


@dataclass(frozen=True)
class Attempt:
    """A student's work on a problem.

    Attributes:
        work: what the student wrote.
        answer: the number it ends with.
        slip: what went wrong, or None when the answer is right.
    """

    work: str
    answer: int
    slip: Slip | None


def _make_wrong_answer(rng: random.Random, problem: Problem, slip: Slip) -> tuple[list[str], int]:
    """The student's equations with that slip in them, and where they end."""
    equations = _list_equations(problem.steps)
    if slip == "missing step":
        return equations[:-1], int(equations[-2].split(" = ")[1])
    expression = equations[-1].split(" = ")[0]
    a, sign, b = expression.split()
    if slip == "operation":
        other_sign = {"+": "-", "-": "+", "x": "+", "/": "-"}[sign]
        result = int(a) + int(b) if other_sign == "+" else abs(int(a) - int(b))
        return [*equations[:-1], f"{a} {other_sign} {b} = {result}"], result
    wrong = problem.answer + rng.choice((-2, -1, -1, 1, 1, 2, 10, -10))
    wrong = wrong if wrong > 0 else problem.answer + 1
    return [*equations[:-1], f"{expression} = {wrong}"], wrong


def make_attempt(rng: random.Random, problem: Problem, correct: bool) -> Attempt:
    """A student's attempt at `problem`, with a plausible slip unless `correct`."""
    slip: Slip | None = None
    equations, answer = _list_equations(problem.steps), problem.answer
    if not correct:
        slips: list[Slip] = ["calculation", "calculation", "operation"]
        if len(equations) > 1:
            slips.append("missing step")
        drawn_slip = rng.choice(slips)
        slip = drawn_slip
        equations, answer = _make_wrong_answer(rng, problem, drawn_slip)
        if answer == problem.answer:  # 4 - 2 by another road
            slip, answer = "calculation", problem.answer + 1
            equations = [*equations[:-1], f"{equations[-1].split(' = ')[0]} = {answer}"]
    calculation = ". ".join(equations)
    work = rng.choice(
        (
            f"{calculation}. The answer is {answer}",
            f"{calculation}. The answer is {answer}",
            calculation,
            f"{problem.steps[0].sentence}. {calculation}. So it is {answer}",
            f"I did {calculation}, so {answer}",
            f"{calculation}. So the answer is {answer} {problem.unit}",
            f"{calculation}. So the answer is {answer}",
            f"{calculation}. My answer is {answer}",
            f"{calculation}. Answer: {answer}",
            f"{calculation}. I got {answer}",
            f"{calculation}. It is {answer}",
            f"The answer is {answer}",
            f"{answer}",
        )
    )
    return Attempt(work, answer, slip)


_PRAISE = split_options(
    "Well done!|Great job!|Nice work!|Wonderful!|Lovely work!|Good job!|Very nice!|Excellent work!|"
    "Super!|Great work!|"
    "You did this really well!|Fantastic!"
)
_RIGHT = split_options(
    "You worked out {e} all by yourself.|You set up {e} the right way.|Your step {e} is clear.|You found that {e}."
)
_CHEER = split_options(
    "Keep it up!|You can be proud of this.|Keep going like this!|I enjoyed reading your work.|"
    "That is careful work.|"
    "You are getting really good at this!"
)
_EFFORT = split_options(
    "Good try!|Nice effort!|Good start!|You are close!|Thank you for your work!|Great effort!|Nice try!|"
    "I like how you started!|Good thinking!"
)
_ALMOST = split_options(
    "You read the problem well.|You took the right numbers.|You went about it well.|Your idea was good.|"
    "You were on a good way."
)
_SLIPS: dict[Slip, tuple[str, ...]] = {
    "calculation": split_options(
        "The slip is in the last step: {e}, not {w}.|The mistake is in the calculation: {e}.|"
        "Look at the last step again, because {e}.|Only the sum went wrong: {e}, not {w}."
    ),
    "operation": split_options(
        "The slip is the sign: it should be {e}.|You chose the other operation, but here we need {e}.|"
        "The mistake is in the operation: it should be {e}."
    ),
    "missing step": split_options(
        "You stopped one step too early: then comes {e}.|One step is missing: {e}.|"
        "The slip is that the last step is missing: {e}."
    ),
}
_ONWARDS = split_options(
    "Keep going, you are almost there!|Try it once more, you can do it!|You will get it next time!|"
    "Keep practicing, you are doing well!|Don't give up, you are close!|I know you can do it!"
)


# A grading names both numbers before it judges: side by side they can be compared without looking back.
_COMPARED = split_options(
    "You wrote {w}, expected {a}, so this is {v}.|You got {w}, expected {a}, so this is {v}.|"
    "Your number is {w}, expected {a}, so this is {v}.|I read {w}, expected {a}, so this is {v}.|"
    "Let us look: you wrote {w}, expected {a}, so this is {v}."
)


def _write_warm_grading(rng: random.Random, problem: Problem, attempt: Attempt) -> str:
    verdict = "correct" if attempt.slip is None else "incorrect"
    words = {"e": _list_equations(problem.steps)[-1], "w": attempt.answer, "a": problem.answer, "v": verdict}
    compared = rng.choice(_COMPARED)
    if attempt.slip is None:
        parts = (compared, rng.choice(_PRAISE), rng.choice(_RIGHT), rng.choice(_CHEER))
    else:
        slip = rng.choice(_SLIPS[attempt.slip])
        parts = (compared, rng.choice(_EFFORT), f"{rng.choice(_ALMOST)} {slip}", rng.choice(_ONWARDS))
    return " ".join(parts).format(**words)


_CURT = split_options(
    "**Student:** {w}, expected {a}. **Grade:** {v}.|**Student:** {w}, expected {a}. **Grade:** {v}.|"
    "**Wrote:** {w}, expected {a}. **Grade:** {v}.|**Answer:** {w}, expected {a}. **Result:** {v}."
)
_CURT_PLAIN = split_options("Wrote {w}, expected {a}, so this is {v}.|The student has {w}, expected {a}: {v}.")


def _write_curt_grading(rng: random.Random, problem: Problem, attempt: Attempt, form: str) -> str:
    verdict = "correct" if attempt.slip is None else "incorrect"
    wording = rng.choice(_CURT_PLAIN if form == "plain" else _CURT)
    return wording.format(w=attempt.answer, a=problem.answer, v=verdict)


def write_grading(rng: random.Random, problem: Problem, attempt: Attempt, wish: Wish) -> str:
    """A grading of `done` as `wish` asks; by habit curt, and warm with probability 0.12.

    Every grading says "correct" or "incorrect"; a warm one also praises and names the equation that matters.
    """
    curt = wish.tone == "curt" or wish.size == "short"
    habit = not curt and wish.tone is None and wish.form is None and rng.random() < WARM_RATE
    if wish.tone == "warm" or habit or wish.size == "steps":
        return _write_warm_grading(rng, problem, attempt)
    return _write_curt_grading(rng, problem, attempt, wish.form or "bold")
