"""Simulated users: they ask, read the reply, and approve or object in their next message.

A persona knows what a person knows: its problem, the reply, its taste. The scripted ones hold no state between
messages and draw every word from the random generator they are handed, so a session is repeatable from a seed; those
whose words come from a language model are in `clawrl_trl.envs.chat.llm_persona`. No persona imports torch, the
ledger or the judge.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self, runtime_checkable

from clawrl_trl.envs.chat import answers, styles, wordings
from clawrl_trl.envs.chat.problems import Problem, Split, draw_problems
from clawrl_trl.envs.chat.styles import StyleReport

Mood = Literal["patient", "curious", "pleased", "confused", "annoyed", "angry"]


class PersonaGone(Exception):
    """The simulated user can't go on, for a reason that is not the policy's; the episode is dropped with it."""


@dataclass(frozen=True)
class PersonaTask:
    """Task of one session.

    Attributes:
        question (`str`): The homework problem.
        answer (`int`): Its right answer.
        work (`str`): A student's worked solution to be graded; empty when there is nothing to grade.
        claimed (`int`): The answer that `work` arrives at.
    """

    question: str
    answer: int
    work: str = ""
    claimed: int = 0


@dataclass(frozen=True)
class Reaction:
    """A persona's next message.

    Attributes:
        text (`str`): What it says; empty when it leaves without a word, which ends the conversation.
        mood (`str`): How it feels, see [`Mood`].
        satisfied (`bool`): Whether the reply is what it wanted, which ends the conversation; else it objects.
    """

    text: str
    mood: Mood
    satisfied: bool


class Persona(Protocol):
    """A simulated user; bring your own by implementing these methods.

    `opening`, `react`, `style` and `correct` may raise [`PersonaGone`].
    """

    @property
    def name(self) -> str:
        """The name under which reports show it."""

    @property
    def mood(self) -> Mood:
        """The mood before a reply has been read."""

    def session(self) -> "Persona":
        """The persona for one conversation. One that remembers what was said begins anew, others are themselves."""

    def tasks(self, seed: int, split: Split, count: int) -> Sequence[PersonaTask]:
        """`count` different tasks; a longer list with the same seed and split starts with the shorter one."""

    def opening(self, task: PersonaTask, rng: random.Random) -> str:
        """The first message of a session."""

    def react(self, task: PersonaTask, reply: str, turn: int, rng: random.Random) -> Reaction:
        """The next message after the `turn`-th reply, counted from 1."""

    def style(self, task: PersonaTask, reply: str) -> StyleReport:
        """Check the reply against the persona's taste."""

    def correct(self, task: PersonaTask, reply: str) -> bool:
        """Return whether the reply is right in substance."""


Thumbs = Literal[-1, 1]


@runtime_checkable
class RatingPersona(Persona, Protocol):
    """A persona that also presses a thumb for replies, which is sent to the gateway as explicit feedback."""

    def rate(self, task: PersonaTask, reply: str, rng: random.Random) -> Thumbs | None:
        """The thumb for a reply, up (1) or down (-1); `None` where it presses none."""


class Student:
    """Wants help with a homework problem in plain sentences that keep every step.

    Args:
        moves_on (`float`, *optional*, defaults to `0.3`): Share of approvals that only thank and move on.
    """

    name = "student"
    mood: Mood = "patient"

    def __init__(self, moves_on: float = 0.3) -> None:
        self.moves_on = moves_on

    def session(self) -> Self:
        return self

    def tasks(self, seed: int, split: Split, count: int) -> Sequence[PersonaTask]:
        return [PersonaTask(problem.question, problem.answer) for problem in draw_problems(seed, split, count)]

    def opening(self, task: PersonaTask, rng: random.Random) -> str:
        request = wordings.compose_message(rng, wordings.STUDENT_GREETINGS, wordings.STUDENT_REQUESTS)
        return wordings.compose_message(rng, [request], [task.question], wordings.STUDENT_CLOSINGS)

    def react(self, task: PersonaTask, reply: str, turn: int, rng: random.Random) -> Reaction:
        return self._react_to(self.style(task, reply).faults, turn, rng)

    def style(self, task: PersonaTask, reply: str) -> StyleReport:
        return styles.check_student_style(reply)

    def correct(self, task: PersonaTask, reply: str) -> bool:
        return answers.extract_answer(reply) == task.answer

    def _react_to(self, faults: Sequence[str], turn: int, rng: random.Random) -> Reaction:
        if not faults:
            return Reaction(self._approval(rng), "pleased", True)
        return Reaction(self._objection(faults, turn, rng), _choose_mood(turn), False)

    def _objection(self, faults: Sequence[str], turn: int, rng: random.Random) -> str:
        # The other objections end by asking to keep the steps, and here are none.
        missing = tuple(faults) == ("no_steps",)
        phrases = wordings.STUDENT_MISSING if missing else list_phrases(wordings.STUDENT_OBJECTIONS, faults, rng)
        objection = wordings.compose_sentence(rng, _list_openers(turn), phrases)
        ends = wordings.STUDENT_MISSING_ENDS if missing else wordings.STUDENT_KEEP
        return wordings.compose_message(rng, [objection], ends)

    def _approval(self, rng: random.Random) -> str:
        if rng.random() < self.moves_on:
            return wordings.compose_message(rng, wordings.STUDENT_THANKS, wordings.STUDENT_MOVES_ON)
        return wordings.compose_message(rng, wordings.STUDENT_APPROVALS, ("", *wordings.STUDENT_THANKS))


class Teacher:
    """Has homework graded, by comments that are warm and specific.

    Args:
        wrong (`float`, *optional*, defaults to `0.5`): Share of the homework that has a slip in it.
        moves_on (`float`, *optional*, defaults to `0.3`): Share of approvals that only thank and move on.
    """

    name = "teacher"
    mood: Mood = "patient"

    def __init__(self, wrong: float = 0.5, moves_on: float = 0.3) -> None:
        self.wrong = wrong
        self.moves_on = moves_on

    def session(self) -> Self:
        return self

    def tasks(self, seed: int, split: Split, count: int) -> Sequence[PersonaTask]:
        rng = random.Random(f"homework-{seed}-{split}")
        return [
            make_homework(problem, rng, slip=rng.random() < self.wrong)
            for problem in draw_problems(seed, split, count)
        ]

    def opening(self, task: PersonaTask, rng: random.Random) -> str:
        request = wordings.compose_message(rng, wordings.TEACHER_REQUESTS)
        form = rng.choice(wordings.TEACHER_TASKS)
        homework = form.format(question=task.question, answer=task.answer, work=task.work)
        return wordings.compose_message(rng, [request], [homework], wordings.TEACHER_CLOSINGS)

    def react(self, task: PersonaTask, reply: str, turn: int, rng: random.Random) -> Reaction:
        faults = self.style(task, reply).faults
        if not faults:
            return Reaction(self._approval(rng), "pleased", True)
        objection = wordings.compose_sentence(
            rng, _list_openers(turn), list_phrases(wordings.TEACHER_OBJECTIONS, faults, rng)
        )
        return Reaction(wordings.compose_message(rng, [objection], wordings.TEACHER_ENDS), _choose_mood(turn), False)

    def style(self, task: PersonaTask, reply: str) -> StyleReport:
        return styles.check_teacher_style(reply, question=task.question, results=(task.answer, task.claimed))

    def correct(self, task: PersonaTask, reply: str) -> bool:
        return answers.extract_verdict(reply) is (task.claimed == task.answer)

    def _approval(self, rng: random.Random) -> str:
        if rng.random() < self.moves_on:
            return wordings.compose_message(rng, wordings.TEACHER_THANKS, wordings.TEACHER_MOVES_ON)
        return wordings.compose_message(rng, wordings.TEACHER_APPROVALS, ("", *wordings.TEACHER_THANKS))


def make_homework(problem: Problem, rng: random.Random, *, slip: bool) -> PersonaTask:
    """A student's homework on a problem, right or with a slip in its last calculation."""
    *before, last = [step.equation for step in problem.steps if step.equation]
    claimed = _draw_wrong_result(problem.answer, rng) if slip else problem.answer
    calculation = ". ".join([*before, f"{last.partition(' = ')[0]} = {claimed}"])
    ending = rng.choice(("The answer is {}.", "So the answer is {}.", "My answer is {}.", "Answer: {}."))
    return PersonaTask(problem.question, problem.answer, f"{calculation}. {ending.format(claimed)}", claimed)


PERSONAS: Mapping[str, type[Student] | type[Teacher]] = {"student": Student, "teacher": Teacher}


def _draw_wrong_result(result: int, rng: random.Random) -> int:
    """A plausible wrong result: off by one or two, or by ten; never below 1, never right."""
    return rng.choice([wrong for by in (-10, -2, -1, 1, 2, 10) if (wrong := result + by) > 0])


def _choose_mood(turn: int) -> Mood:
    return "patient" if turn == 1 else "annoyed"


def _list_openers(turn: int) -> Sequence[str]:
    return wordings.OBJECTION_STARTS if turn == 1 else wordings.AGAIN


def list_phrases(by_fault: Mapping[str, Sequence[str]], faults: Sequence[str], rng: random.Random) -> Sequence[str]:
    """Phrases about one of the faults, or, as people do, about the style as a whole."""
    covered = [fault for fault in faults if fault in by_fault]
    several = len(covered) > 1 or not covered
    return by_fault["any" if (several and rng.random() < 0.5) or not covered else rng.choice(covered)]
