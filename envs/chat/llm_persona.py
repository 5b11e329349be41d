"""A simulated user whose words come from a language model: a goal, tastes, and a mood that changes.

The model reads the conversation and answers with the next message, its mood and whether it is satisfied, in one
request for each reply. With `rules` a scripted persona lends its problems, its taste and its knowledge: then the
rules decide what is liked, and the model only words it. A model that fails or babbles ends the session
([`clawrl_trl.envs.chat.personas.PersonaGone`]); nothing is ever made up in its place.
"""

import copy
import random
import re
from collections.abc import Sequence
from typing import Self

from clawrl_trl.envs.chat.personas import Mood, Persona, PersonaTask, Reaction
from clawrl_trl.envs.chat.problems import Split
from clawrl_trl.envs.chat.styles import StyleReport
from clawrl_trl.envs.chat.user_model import UserMessage, UserModel
from clawrl_trl.envs.chat.user_prompt import make_prompt

NAME = r"[A-Za-z0-9_.-]{1,40}"
UNSATISFIED = "unsatisfied"
"""The fault of a reply that the model does not like."""


class LLMPersona:
    """A user played by a language model.

    It remembers the conversation, so each one needs a [`session`] of its own; `opening` begins anew.

    Args:
        name (`str`): The user's name, in the prompt, in reports and in the ids of sessions: letters, digits, `_.-`.
        goals (`Sequence[str]`): What the user wants done, one for each session. With `rules`, `{question}` and
            `{work}` stand for the problem and the worked solution of the task.
        model ([`clawrl_trl.envs.chat.user_model.UserModel`]): What speaks.
        tastes (`str`, *optional*): What the user likes and dislikes in a reply.
        mood (`str`, *optional*, defaults to `"patient"`): How the user feels at first.
        heldout (`Sequence[str]`, *optional*): Goals of evaluations. Default: `goals`.
        rules ([`Persona`], *optional*): A scripted persona that gives the tasks and judges style and substance.

    Examples:
        >>> model = UserModel("qwen3", "http://127.0.0.1:8000/v1")
        >>> mia = LLMPersona("Mia", ["A name for her bakery."], model, tastes="One suggestion, no list.")
        >>> rollout = ChatEnv(mia).rollout(8, policy)
    """

    _messages: list[dict[str, str]]
    _last_reading: tuple[str, UserMessage] | None

    def __init__(
        self,
        name: str,
        goals: Sequence[str],
        model: UserModel,
        *,
        tastes: str = "",
        mood: Mood = "patient",
        heldout: Sequence[str] = (),
        rules: Persona | None = None,
    ) -> None:
        if not re.fullmatch(NAME, name):
            raise ValueError(f"{name!r} is no name for a persona: letters, digits and _.- go into a session's id")
        if not goals:
            raise ValueError("a user wants something: give at least one goal")
        self.name, self.model, self.tastes, self.rules = name, model, tastes, rules
        self.goals = {"train": list(goals), "heldout": list(heldout or goals)}
        self.mood: Mood = mood
        self._first_mood = mood
        self._begin(0)

    def session(self) -> Self:
        # Shallow: conversations share the model's client, which threads may share.
        copied = copy.copy(self)
        copied._begin(0)
        return copied

    def tasks(self, seed: int, split: Split, count: int) -> Sequence[PersonaTask]:
        """`count` tasks. Where there are fewer goals they come again, in another order."""
        if self.rules is not None:
            return self.rules.tasks(seed, split, count)
        rng = random.Random(f"goals-{seed}-{split}")
        goals: list[str] = []
        while len(goals) < count:
            goals += rng.sample(self.goals[split], len(self.goals[split]))
        return [PersonaTask(goal, answer=0) for goal in goals[:count]]

    def opening(self, task: PersonaTask, rng: random.Random) -> str:
        self._begin(rng.getrandbits(31))
        return self._speak(self._ask(task, []))

    def react(self, task: PersonaTask, reply: str, turn: int, rng: random.Random) -> Reaction:
        message = self._reading(task, reply)
        self._messages.append({"role": "assistant", "content": reply})
        self._last_reading = None
        return Reaction(self._speak(message), message.mood, message.satisfied)

    def style(self, task: PersonaTask, reply: str) -> StyleReport:
        if self.rules is not None:
            return self.rules.style(task, reply)
        return StyleReport(() if self._reading(task, reply).satisfied else (UNSATISFIED,))

    def correct(self, task: PersonaTask, reply: str) -> bool:
        """Return whether the reply is right by the rules; without any, whether the user is satisfied with it."""
        if self.rules is not None:
            return self.rules.correct(task, reply)
        return self._reading(task, reply).satisfied

    def _begin(self, seed: int) -> None:
        self.mood = self._first_mood
        self._seed = seed
        self._messages = []
        self._last_reading = None

    def _speak(self, message: UserMessage) -> str:
        self._messages.append({"role": "user", "content": message.text})
        self.mood = message.mood
        return message.text

    def _reading(self, task: PersonaTask, reply: str) -> UserMessage:
        """Return the model's reading of the last reply; it is asked once."""
        if self._last_reading is None or self._last_reading[0] != reply:
            self._last_reading = reply, self._ask(task, [*self._messages, {"role": "assistant", "content": reply}])
        return self._last_reading[1]

    def _ask(self, task: PersonaTask, talk: list[dict[str, str]]) -> UserMessage:
        reply = talk[-1]["content"] if talk else None
        faults = None if self.rules is None or reply is None else self.rules.style(task, reply).faults
        messages = make_prompt(
            name=self.name, goal=self._goal(task), tastes=self.tastes, mood=self.mood, talk=talk, faults=faults
        )
        # Before the first reply there is nothing to be satisfied with.
        satisfied = (None if faults is None else not faults) if talk else None
        return self.model.say(messages, seed=self._seed + len(talk), satisfied=satisfied)

    def _goal(self, task: PersonaTask) -> str:
        if self.rules is None:
            return task.question
        # By the question, so that a task has the same goal whenever it is played.
        goal = random.Random(task.question).choice(self.goals["train"])
        return goal.replace("{question}", task.question).replace("{work}", task.work)
