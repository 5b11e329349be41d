"""Messages about homework, its grading and some everyday matters, composed out of `data/homework.json`.

Hand-written messages are paired with requests and replies of their domain. To these come composed ones, because
what the judge must not confuse is combinatorial: a new problem in the wording of the last one (move on) and the same
request in other words (redo); thanks before a new task and thanks before a change. The same seed gives the same
examples. Hand-written messages weigh 1, composed ones less.
"""

import json
from typing import Any

import numpy as np

from recipes.judge.corpus import DATA
from recipes.judge.example import Example

PATH = DATA / "homework.json"
COMPOSED_WEIGHT = 0.8
NEW_TASKS, THANKS_AND_TASK, THANKS_AND_CHANGE, CHANGE_AND_THANKS, CHANGES, SAME_TASK = 140, 90, 60, 50, 60, 50
OPENED_CHANGES = 240
OBJECTIONS, REASSURANCES = 80, 60


def compose(random: np.random.Generator) -> list[Example]:
    """One epoch's examples: hand-written messages in a drawn context, then composed ones."""
    composer = _Composer(json.loads(PATH.read_text(encoding="utf-8")), random)
    return [*composer.written(), *composer.repeats(), *composer.composed()]


class _Composer:
    def __init__(self, data: dict[str, Any], random: np.random.Generator) -> None:
        self._data, self._random = data, random
        self._contexts: dict[str, list[list[str]]] = data["contexts"]
        self._everywhere = [pair for pairs in self._contexts.values() for pair in pairs]

    def written(self) -> list[Example]:
        examples = []
        for message in self._data["messages"]:
            domain, text = message["context"], message["text"]
            request, response = self._pick(self._everywhere if domain == "general" else self._contexts[domain])
            examples.append(Example(request, response, text, message["label"], text, 1.0))
        return examples

    def repeats(self) -> list[Example]:
        """The same request in other words; and each of those words after another request: a new task."""
        rows = self._data["repeats"]
        found = []
        for index, (request, response, again) in enumerate(rows):
            other = rows[(index + 5) % len(rows)]
            found.append(Example(request, response, again, -1, again, 1.0))
            found.append(Example(other[0], other[1], again, 1, again, 1.0))
        return found

    def composed(self) -> list[Example]:
        makers = (
            (NEW_TASKS, self._new_task),
            (THANKS_AND_TASK, self._thanks_and_task),
            (THANKS_AND_CHANGE, self._thanks_and_change),
            (CHANGE_AND_THANKS, self._change_and_thanks),
            (CHANGES, self._change),
            (OPENED_CHANGES, self._opened_change),
            (SAME_TASK, self._same_task),
            (OBJECTIONS, self._objection),
            (REASSURANCES, self._reassurance),
        )
        return [make() for count, make in makers for _ in range(count)]

    def _pick(self, values: list[Any]) -> Any:
        return values[int(self._random.integers(len(values)))]

    def _task(self) -> tuple[str, str]:
        """A homework problem or a paper to grade, and the bare problem in it."""
        small, large = sorted(int(value) for value in self._random.integers(2, 60, size=2))
        name, friend = self._random.permutation(self._data["names"])[:2]
        problem = self._pick(self._data["problems"]).format(a=large, b=small, n=name, m=friend)
        if self._random.random() < 0.6:
            return self._pick(self._data["frames"]).format(p=problem), problem
        right, wrong = large + small, large - small + int(self._random.integers(0, 2))
        work = self._pick(self._data["work"]).format(a=large, b=small, c=right, d=wrong)
        return self._pick(self._data["grades"]).format(p=problem, c=right, w=work), problem

    def _reply(self) -> str:
        domain = "homework" if self._random.random() < 0.5 else "grading"
        return str(self._pick(self._contexts[domain])[1])

    def _new_task(self) -> Example:
        text, problem = self._task()
        return Example(self._task()[0], self._reply(), text, 1, problem, COMPOSED_WEIGHT)

    def _same_task(self) -> Example:
        text, problem = self._task()
        again = text if self._random.random() < 0.3 else self._pick(self._data["frames"]).format(p=problem)
        return Example(text, self._reply(), again, -1, problem, COMPOSED_WEIGHT)

    def _thanks_and_task(self) -> Example:
        thanks, (text, problem) = self._pick(self._data["thanks"]), self._task()
        request, response = self._task()[0], self._reply()
        if self._random.random() < 0.4:
            text = problem = self._pick(self._data["tasks"])
            request, response = self._pick(self._everywhere)
        return Example(request, response, f"{thanks}. {text}", 1, problem, COMPOSED_WEIGHT)

    def _change_and_thanks(self) -> Example:
        example = self._change()
        text = example.message.rstrip(". ")
        message = f"{text[:1].upper()}{text[1:]}. {self._pick(self._data['farewells'])}"
        return Example(example.request, example.response, message, -1, example.group, COMPOSED_WEIGHT)

    def _thanks_and_change(self) -> Example:
        example = self._change()
        but = self._pick([", but ", ". But ", ", though ", ", only ", ". ", ", now "])
        # Who praises warmly and wishes for one thing more approves: only plain thanks make these.
        message = f"{self._pick(self._data['plain_thanks'])}{but}{example.message}"
        return Example(example.request, example.response, message, -1, example.group, COMPOSED_WEIGHT)

    def _change(self) -> Example:
        domain = self._pick(list(self._data["changes"]))
        change = self._pick(self._data["changes"][domain])
        request, response = self._pick(self._contexts[domain])
        if self._random.random() < 0.4:
            request = self._task()[0] if domain in ("homework", "grading") else request
        end = self._pick(["", ".", " please", ", please."])
        return Example(request, response, change + end, -1, change, COMPOSED_WEIGHT)

    def _opened_change(self) -> Example:
        """A wish about the homework's or the comment's style between an opening and an end."""
        domain = self._pick(["homework", "grading", "grading"])
        change = self._pick(self._data["changes"][domain])
        ask = self._pick(["", "", "please ", "could you ", "can you "])
        opening = self._pick(["", *self._data["change_openings"]])
        end = self._pick(["", "", *self._data["change_ends"][domain]])
        sentence = f"{opening} {ask}{change}{'?' if 'you' in ask else '.'}".strip()
        request, response = self._task()[0], self._pick(self._contexts[domain])[1]
        message = f"{sentence[:1].upper()}{sentence[1:]} {end}".strip()
        return Example(request, response, message, -1, change, COMPOSED_WEIGHT)

    def _objection(self) -> Example:
        """A plain objection: an opening, what is wrong, and often what would be right."""
        parts = self._data["objections"]
        request, response = self._pick(self._everywhere)
        complaint = self._pick(parts["complaints"])
        message = complaint
        if self._random.random() < 0.7:
            message = f"{self._pick(parts['openings'])}{self._pick([', ', ' ', ', '])}{complaint}"
        if self._random.random() < 0.5:
            reason = self._pick(parts["reasons"]).format(x=self._pick(parts["values"]))
            message += f"{self._pick([': ', ', ', '. ', ' - '])}{reason}"
        return Example(request, response, message + self._pick(["", ".", "!"]), -1, complaint, COMPOSED_WEIGHT)

    def _reassurance(self) -> Example:
        """An approval that opens like an objection."""
        parts = self._data["reassurances"]
        request, response = self._pick(self._everywhere)
        approval = self._pick(parts["approvals"])
        message = f"{self._pick(parts['openings'])}, {approval}" if self._random.random() < 0.8 else approval
        thanks = self._pick(["", "", ", thanks", ". Thank you"])
        return Example(request, response, message + thanks + self._pick(["", ".", "!"]), 1, approval, COMPOSED_WEIGHT)
