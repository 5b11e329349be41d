"""Examples composed out of the corpus: messages in their scenes, filled skeletons, and what depends on the context.

What a message says of a reply often lies between the two: the same words are a new task after one exchange and the
same request once more after another; "no" answers an agent's question, or objects to a statement. So generic messages
are put into drawn scenes, requests are put behind their own and behind foreign replies, and short answers behind
questions and statements. The same generator gives the same examples.
"""

import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from recipes.judge.corpus import Scene, Skeleton, read_generic, read_lexicon, read_scenes
from recipes.judge.example import Example

SKELETON_COUNT = 4
SKELETON_WEIGHT = 1.0
ANSWERS, STATEMENTS, OWN_AGAIN, FOREIGN_TASKS = 90, 40, 90, 120
TYPOS, LOWERED, NO_STOP, EMOJI = 0.06, 0.3, 0.4, 0.06
_SLOT = re.compile(r"\{(\w+)\}")
_PLEASED, _DISPLEASED = ("👍", "😊", ":)", "🙏", "!!", "❤️"), ("👎", "😕", ":(", "🙄", "!!", "😤")
# Requests in other words, made by frames around the request itself.
_FRAMES = ("I asked: {r}", "again: {r}", "{r}!", "my question was: {r}", "once more, {r}", "{r}", "so, {r}")
Item = TypeVar("Item")


class Composer:
    """Draws examples from the corpus.

    Args:
        random: Where every choice comes from.
        rounds: How many rounds of scenes belong to it.
    """

    def __init__(self, random: np.random.Generator, rounds: int = 1) -> None:
        self._random = random
        self._scenes = read_scenes(rounds)
        self._telling = [scene for scene in self._scenes if not scene.asks]
        self._slots, self._skeletons = read_lexicon()

    def compose(self) -> list[Example]:
        """One epoch's examples."""
        parts = (self._from_scenes(), self._generic(), self._from_skeletons(), self._requests(), self._answers())
        return [example for part in parts for example in part]

    def _pick(self, items: Sequence[Item]) -> Item:
        return items[int(self._random.integers(len(items)))]

    def _place(self, scene: Scene, message: str, label: int, group: str, weight: float = 1.0) -> Example:
        return Example(scene.request, scene.reply, self._vary(message, label), label, group, weight)

    def _from_scenes(self) -> Iterator[Example]:
        for scene in self._scenes:
            group = "scene " + scene.request
            for message, label in scene.messages:
                yield self._place(scene, message, label, group)
            for request in scene.again:
                yield self._place(scene, request, -1, group)
            for task in scene.tasks:
                yield self._place(scene, task, 1, group, 0.7)

    def _generic(self) -> Iterator[Example]:
        for message, label, kind in read_generic():
            scene = self._pick(self._scenes if label == -1 or kind == "off_topic" else self._telling)
            yield self._place(scene, message, label, "generic " + message)

    def _from_skeletons(self) -> Iterator[Example]:
        for skeleton in self._skeletons:
            for _ in range(SKELETON_COUNT):
                yield self._fill(skeleton)

    def _fill(self, skeleton: Skeleton) -> Example:
        message = self._fill_slots(skeleton.template)
        scene = self._pick(self._telling if skeleton.label else self._scenes)
        return self._place(scene, message, skeleton.label, "skeleton " + skeleton.template, SKELETON_WEIGHT)

    def _fill_slots(self, template: str) -> str:
        while _SLOT.search(template):
            template = _SLOT.sub(lambda slot: self._pick(self._slots[slot[1]]), template, count=1)
        return template

    def _requests(self) -> Iterator[Example]:
        """Requests after their own reply (once more) and after a foreign one (a new task)."""
        for _ in range(OWN_AGAIN):
            scene = self._pick(self._telling)
            again = self._pick(_FRAMES).format(r=self._pick([scene.request, *scene.again]))
            yield self._place(scene, again, -1, "scene " + scene.request, SKELETON_WEIGHT)
        for _ in range(FOREIGN_TASKS):
            scene, other = self._pick(self._scenes), self._pick(self._scenes)
            if scene is other:
                continue
            task = self._pick([other.request, *other.again, *other.tasks])
            yield self._place(scene, task, 1, "scene " + other.request, SKELETON_WEIGHT)

    def _answers(self) -> Iterator[Example]:
        """Short answers to a question of the agent's, and the same words after a statement."""
        for _ in range(ANSWERS):
            scene, question = self._pick(self._scenes), self._pick(self._slots["agent_question"])
            asking = Scene(scene.domain, scene.request, f"{scene.reply} {question}".strip())
            yield self._place(asking, self._pick(self._slots["answer"]), 0, "answer", SKELETON_WEIGHT)
        for _ in range(STATEMENTS):
            scene = self._pick(self._telling)
            word, label = self._pick((("no", -1), ("nah", -1), ("no!", -1), ("yes", 1), ("sure", 1), ("yep", 1)))
            yield self._place(scene, word, label, "answer", SKELETON_WEIGHT)

    def _vary(self, message: str, label: int) -> str:
        """Write a message as people do: in small letters, without the stop, with a slip or an emoji."""
        if self._random.random() < LOWERED:
            message = message.lower()
        if self._random.random() < NO_STOP:
            message = message.removesuffix(".")
        if self._random.random() < TYPOS and len(message) > 12:
            place = int(self._random.integers(1, len(message) - 2))
            message = message[:place] + message[place + 1] + message[place] + message[place + 2 :]
        if label and self._random.random() < EMOJI:
            message = f"{message} {self._pick(_PLEASED if label > 0 else _DISPLEASED)}"
        return message
