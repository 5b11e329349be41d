"""Labelled cases: a turn, what came after it, and what that says about the reply.

A file holds one case a line, as JSON:

- `id`, `kind`, `language`: how results are grouped; an id is unique over all files that are read together.
- `messages`: the request, as chat messages. `reply`: the assistant's message.
- `next`: the messages after it, each with `from`: owner, other, tool, client or event.
- `label`: -1, 0 or 1. `accept` (optional): all scores that are right, by default the label alone.
- `tools` (optional): the request's tool definitions.
- `hint` (optional, false): the owner's words hold a correction that a hint may be made of; `hint_words`: what a right
  hint contains.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from clawrl_trl.errors import UserError
from clawrl_trl.json_lines import split_lines
from clawrl_trl.judge.turn import JudgedTurn
from clawrl_trl.messages import Json, Message

Score = Literal[-1, 0, 1]
Source = Literal["owner", "other", "tool", "client", "event", "system", "assistant"]
_SOURCES: dict[str, Source] = {"user": "owner", "assistant": "assistant", "system": "system", "tool": "tool"}


class _NextMessage(BaseModel):
    model_config = ConfigDict(extra="allow")
    role: str
    sender: Source = Field(alias="from")


class _CaseRow(BaseModel):
    id: str
    kind: str
    language: str = "en"
    messages: list[Message] = Field(min_length=1)
    reply: Message
    next: list[_NextMessage]
    label: Score
    accept: list[Score] = Field(default_factory=list)
    hint: bool = False
    hint_words: list[str] = Field(default_factory=list)
    tools: list[Json] | None = None

    @model_validator(mode="after")
    def _accept_label(self) -> "_CaseRow":
        self.accept = self.accept or [self.label]
        if self.label not in self.accept:
            raise ValueError("the label is not among the scores of 'accept'")
        return self


@dataclass(frozen=True)
class JudgeCase:
    """One labelled case.

    Attributes:
        id: Unique in the set.
        kind: What happened, e.g. `sarcasm` or `parallel_tools`.
        language: Two letters, or `mixed`.
        turn: What a judge gets to see.
        label: The best score.
        accept: All scores that are right.
        has_hint: The owner's words hold a correction.
        hint_words: Texts that a right hint contains, in any case of letters.
    """

    id: str
    kind: str
    language: str
    turn: JudgedTurn
    label: int
    accept: frozenset[int]
    has_hint: bool
    hint_words: tuple[str, ...]

    @property
    def form(self) -> str:
        """What decides: the owner's `words`, else `results` of tools, else `others` (people, clients, events)."""
        sources = self.turn.next_state_provenance
        return "words" if "owner" in sources else "results" if "tool" in sources else "others"

    def is_right(self, score: int) -> bool:
        """Return whether a score is one of the right ones."""
        return score in self.accept

    def is_wrong_sign(self, score: int) -> bool:
        """Return whether a score would train the opposite of what was meant, or something where nothing was."""
        return score != 0 and score not in self.accept

    def is_right_hint(self, hint: str) -> bool:
        """Return whether a hint may be made of this case's words, and says what it should."""
        return self.has_hint and all(words.casefold() in hint.casefold() for words in self.hint_words)


def read_cases(paths: Iterable[Path]) -> list[JudgeCase]:
    """Read the cases of JSON-lines files, in order.

    Raises:
        UserError: For a file that can't be read or holds no case, a line that is no case, and an id that stands twice.
    """
    cases: dict[str, JudgeCase] = {}
    for path in paths:
        for number, case in _read_file(path):
            if case.id in cases:
                raise UserError(
                    f"{path}, line {number}: the id {case.id!r} stands twice; ids are unique over all files."
                )
            cases[case.id] = case
    if not cases:
        raise UserError("There are no cases: name at least one file with one case a line.")
    return list(cases.values())


def _read_file(path: Path) -> Iterator[tuple[int, JudgeCase]]:
    try:
        lines = split_lines(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} can't be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, make_case(json.loads(line))
        except ValidationError as error:
            # Its own text quotes the case, which may be private: only the places are told.
            fields = {".".join(map(str, problem["loc"])) or "accept" for problem in error.errors()}
            raise UserError(f"{path}, line {number} is no case: look at {', '.join(sorted(fields))}.") from None
        except ValueError:
            raise UserError(f"{path}, line {number} is not JSON: a file holds one case a line.") from None


def make_case(row: object) -> JudgeCase:
    """Make the case of a parsed line.

    Raises:
        ValidationError: If a field is missing or wrong.
    """
    parsed = _CaseRow.model_validate(row)
    next_state = tuple(message.model_dump(exclude={"sender"}) for message in parsed.next)
    turn = JudgedTurn(
        turn_id=parsed.id,
        session_id=parsed.id,
        messages=tuple(parsed.messages),
        tools=tuple(parsed.tools) if parsed.tools else None,
        response=parsed.reply,
        next_state=next_state,
        next_state_provenance=tuple(message.sender for message in parsed.next),
        feedback=(),
        policy_version=0,
        provenance=tuple(_SOURCES.get(str(message.get("role")), "client") for message in parsed.messages),
    )
    return JudgeCase(
        id=parsed.id,
        kind=parsed.kind,
        language=parsed.language,
        turn=turn,
        label=parsed.label,
        accept=frozenset(parsed.accept),
        has_hint=parsed.hint,
        hint_words=tuple(parsed.hint_words),
    )
