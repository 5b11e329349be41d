"""Students who react in ways of their own: by thumbs alone, against their meaning, in few words, in two languages.

Each has the student's problems, style rules and openings, unless it says otherwise.
"""

import random
from collections.abc import Mapping, Sequence

from clawrl_trl.envs.chat import wordings
from clawrl_trl.envs.chat.personas import PersonaTask, Reaction, Student, Thumbs, list_phrases
from clawrl_trl.envs.chat.wordings_bilingual import GERMAN, SPANISH, Phrases
from clawrl_trl.envs.chat.wordings_curt import CURT_AGAIN, CURT_APPROVALS, CURT_OBJECTIONS, CURT_REQUESTS


class ThumbsStudent(Student):
    """Presses a thumb for each reply, says nothing about it, and goes on to the next problem in a new conversation."""

    name = "thumbs"

    def rate(self, task: PersonaTask, reply: str, rng: random.Random) -> Thumbs:
        return -1 if self.style(task, reply).faults else 1

    def react(self, task: PersonaTask, reply: str, turn: int, rng: random.Random) -> Reaction:
        reaction = super().react(task, reply, turn, rng)
        return Reaction("", reaction.mood, reaction.satisfied)


class NoisyStudent(Student):
    """Says now and then the opposite of what it means: approves what it dislikes, objects to what it likes.

    Args:
        reversed_share (`float`, *optional*, defaults to `0.15`): Share of the reactions that are reversed.
        moves_on (`float`, *optional*, defaults to `0.3`): Share of approvals that only thank and move on.
    """

    name = "noisy_student"

    def __init__(self, reversed_share: float = 0.15, moves_on: float = 0.3) -> None:
        super().__init__(moves_on)
        self.reversed_share = reversed_share

    def react(self, task: PersonaTask, reply: str, turn: int, rng: random.Random) -> Reaction:
        faults = self.style(task, reply).faults
        if rng.random() < self.reversed_share:
            faults = () if faults else ("any",)
        return self._react_to(faults, turn, rng)


class CurtStudent(Student):
    """Says the same in few words, also when it asks."""

    name = "curt"

    def opening(self, task: PersonaTask, rng: random.Random) -> str:
        return f"{rng.choice(CURT_REQUESTS)} {task.question}".strip()

    def _objection(self, faults: Sequence[str], turn: int, rng: random.Random) -> str:
        again = rng.choice(CURT_AGAIN) if turn > 1 else ""
        return f"{again} {rng.choice(list_phrases(CURT_OBJECTIONS, faults, rng))}".strip()

    def _approval(self, rng: random.Random) -> str:
        return rng.choice(CURT_APPROVALS)


class BilingualStudent(Student):
    """Asks in English and reacts in German or Spanish as often as in English.

    Args:
        foreign_share (`float`, *optional*, defaults to `0.5`): Share of the reactions that are not in English.
        moves_on (`float`, *optional*, defaults to `0.3`): Share of English approvals that only thank and move on.
    """

    name = "bilingual"

    def __init__(self, foreign_share: float = 0.5, moves_on: float = 0.3) -> None:
        super().__init__(moves_on)
        self.foreign_share = foreign_share

    def _objection(self, faults: Sequence[str], turn: int, rng: random.Random) -> str:
        phrases = self._choose_language(rng)
        if phrases is None:
            return super()._objection(faults, turn, rng)
        again = phrases.again if turn > 1 else ("",)
        if tuple(faults) == ("no_steps",):
            return wordings.compose_message(rng, again, phrases.missing)
        return wordings.compose_message(rng, again, list_phrases(phrases.objections, faults, rng), phrases.keep)

    def _approval(self, rng: random.Random) -> str:
        phrases = self._choose_language(rng)
        return super()._approval(rng) if phrases is None else rng.choice(phrases.approvals)

    def _choose_language(self, rng: random.Random) -> Phrases | None:
        """The other language of a reaction; `None` for English."""
        return rng.choice((GERMAN, SPANISH)) if rng.random() < self.foreign_share else None


STUDENTS: Mapping[str, type[Student]] = {
    "thumbs": ThumbsStudent,
    "noisy_student": NoisyStudent,
    "curt": CurtStudent,
    "bilingual": BilingualStudent,
}
