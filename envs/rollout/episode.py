"""Episodes and the groups that they are played in."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensordict import TensorDictBase

from clawrl_trl.ledger.episodes import MAX_HINTS


@dataclass(frozen=True)
class Episode:
    """One rollout of a task.

    Attributes:
        task (`int`): Position of the task.
        task_id (`str`): Its name.
        session_id (`str`): The session its turns are captured in.
        outcome (`float`, *optional*): In [-1, 1]; `None` when the episode was dropped.
        reason (`str`): Why it was dropped.
        steps (`int`): Actions taken.
        versions (`tuple[int, ...]`): Policy versions that acted, without repetition; known ones only.
        wall_s (`float`): Seconds it took.
        signals (`dict[str, float]`): Process scores of its steps in [-1, 1], by turn; of those that have one.
        hints (`dict[str, list[str]]`): The environment's words on steps that fell short, by turn.
    """

    task: int
    task_id: str
    session_id: str
    outcome: float | None
    reason: str
    steps: int
    versions: tuple[int, ...]
    wall_s: float
    signals: dict[str, float] = field(default_factory=dict)
    hints: dict[str, list[str]] = field(default_factory=dict)

    @property
    def success(self) -> bool:
        """True if the task was done in full."""
        return self.outcome is not None and self.outcome >= 1.0


@dataclass(frozen=True)
class Group:
    """The rollouts of one task.

    Attributes:
        id (`str`): Its name.
        episodes (`list[Episode]`): In the order they ended.
        settled (`Mapping`): What the gateway answered to the report; empty without a report.
    """

    id: str
    episodes: list[Episode]
    settled: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class OpenGroup:
    """A group under way; `missing` counts the episodes that have not ended yet."""

    id: str
    task: int
    missing: int
    episodes: list[Episode] = field(default_factory=list)


def read_hints(state: TensorDictBase, turns: Mapping[int, str]) -> dict[str, list[str]]:
    """Read the hints of an episode that has ended, by turn.

    Args:
        state (`TensorDictBase`): The last observation; an environment server of an earlier version has no `hints`.
        turns (`Mapping[int, str]`): The turn of each step; a step whose turn is unknown gets no hint.
    """
    by_step: dict[str, list[str]] = json.loads(state["hints"]) if "hints" in state else {}
    return {turns[int(step)]: words[:MAX_HINTS] for step, words in by_step.items() if int(step) in turns}


def compute_success_rate(groups: Sequence[Group]) -> float:
    """Return the share of the graded episodes that did their task in full; NaN when none was graded."""
    graded = [episode for group in groups for episode in group.episodes if episode.outcome is not None]
    return sum(episode.success for episode in graded) / len(graded) if graded else float("nan")
