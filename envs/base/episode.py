"""Parts of an episode: a task, its start, the effects of actions, and the state in between; without torch."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from clawrl_trl.messages import Json


class Task(Protocol):
    """Protocol of a task: all that the base class needs of it."""

    @property
    def id(self) -> str:
        """A name that is unique within its task set."""


@dataclass(frozen=True)
class Start:
    """Begin of an episode.

    Attributes:
        messages (`list[dict]`): The first messages, chat API: an optional system message and the user's.
        tools (`list[dict]`): Schemas of the tools on offer, chat API.
    """

    messages: list[Json]
    tools: list[Json] = field(default_factory=list)


@dataclass(frozen=True)
class Effect:
    """Effect of an action.

    Attributes:
        results (`list[str]`): A text for each of its calls; for an action without calls that does not end the
            episode, one text that says what to do instead.
        ended (`bool`): Whether the agent is done (it submitted, gave its answer, or the world closed).
        parts (`list[dict]`): Further content parts (images) that follow the texts as a user message, chat API.
        signal (`float`, *optional*): The world's process score of the action, in [-1, 1].
        hint (`str`, *optional*): Where the action was refused, the form that it should have had; in the environment's
            own words, never in those of a program that the agent ran.
    """

    results: list[str]
    ended: bool = False
    parts: list[Json] = field(default_factory=list)
    signal: float | None = None
    hint: str | None = None


def combine_signals(signals: Iterable[float | None]) -> float | None:
    """Return the process score of calls made together: that of the worst; `None` where none has one."""
    return min((signal for signal in signals if signal is not None), default=None)


class WorldBroken(Exception):
    """The world can't go on for a reason that is not the policy's; the episode is dropped with this reason."""


@dataclass
class EpisodeState:
    """State of one episode; each reset makes a new one, so that nothing of an earlier episode is left.

    Attributes:
        is_open (`bool`): True from the reset until the world has been taken down.
        drop_reason (`str`): Why the episode is dropped; empty while it counts.
        signal (`float`, *optional*): The last action's process score.
        silences (`int`): Replies in a row that did not arrive.
        hints (`dict[int, list[str]]`): Hints by the step they belong to, from 0.
    """

    is_open: bool = False
    messages: list[Json] = field(default_factory=list)
    tools: list[Json] = field(default_factory=list)
    steps: int = 0
    faults: int = 0
    silences: int = 0
    drop_reason: str = ""
    signal: float | None = None
    hints: dict[int, list[str]] = field(default_factory=dict)
