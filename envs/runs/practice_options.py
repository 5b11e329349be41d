"""Options of practice in an environment."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from clawrl_trl.config.flags import read_mapping, read_number
from clawrl_trl.envs.catalogue import get_environment
from clawrl_trl.envs.runs.options import MeasuredArguments, RunOptions
from clawrl_trl.envs.runs.wave import LEAD, Wave
from clawrl_trl.errors import UserError


@dataclass(kw_only=True)
class PracticeArguments(MeasuredArguments):
    """Flags of a training script for practice in an environment."""

    difficulty: int | None = field(
        default=None, metadata={"help": "Only tasks of this difficulty, 1 to 3.", "at_least": 1, "at_most": 3}
    )
    env_options: dict[str, object] | str | None = field(
        default=None, metadata={"help": "Further arguments of the environment, JSON (in a YAML file: a mapping)."}
    )
    episodes: int = field(
        default=400,
        metadata={"help": "Episodes of the environment to play, rounded up to whole groups.", "at_least": 1},
    )
    group_size: int = field(
        default=8, metadata={"help": "Episodes of one task, whose rewards are compared.", "at_least": 1}
    )
    max_tokens: int = field(
        default=256,
        metadata={"help": "Longest reply in an episode, in tokens; a part of --max_model_len.", "at_least": 1},
    )
    parallel_envs: int = field(
        default_factory=lambda: read_number("PARALLEL_ENVS", 4),
        metadata={"help": "Environments at a time.", "at_least": 1},
    )
    prm_coef: float = field(
        default=0.0,
        metadata={
            "help": "Weight of the steps' process scores in an environment's rewards: the environment's own, or with "
            "--judge llm those of the judge."
        },
    )
    stepwise: bool = field(
        default=False, metadata={"help": "Compare the rewards of a group of episodes step by step, not as wholes."}
    )
    keep_screenshots: bool = field(
        default=False, metadata={"help": "Keep the screenshots of the last 200 episodes, for 'clawrl inspect'."}
    )
    reward_function_path: str | None = field(
        default=None, metadata={"help": "Own reward of an episode, 'file.py:name', called as reward(episode)."}
    )

    def make_wave(self, actions: int) -> Wave:
        """Return the episodes under way at a time, of at most so many actions."""
        groups = -(-self.parallel_envs // self.group_size)
        return Wave(groups * self.group_size, actions, self.group_size)

    @property
    def requests_at_once(self) -> int:
        """Requests that the environments have under way at a time."""
        return self.parallel_envs


@dataclass(kw_only=True)
class PracticeOptions(RunOptions, PracticeArguments):
    """Options of practice: its flags, the task set, and what the trainer takes.

    Args:
        env (`str`): The environment's name.
        tasks (`str`): Path of its task set.
        hints (`tuple[str, ...]`): What the trainer needs of a sample (`score`, `teacher`), where the environment's
            words become hints for a teacher; empty for no hints.
        update_samples (`int`): Samples that the trainer takes for a policy version.
        lead (`int`): Versions' worth of samples that may wait when a group of episodes begins.
        lead_s (`float`): Longest that is waited for a trainer that is waiting itself, in seconds.

    Raises:
        UserError: If the weight of the process scores is no weight.
    """

    FILE_NAME: ClassVar[str] = "practice.json"

    env: str
    tasks: str
    hints: tuple[str, ...] = ()
    update_samples: int = 8
    lead: int = LEAD
    lead_s: float = 20.0

    def __post_init__(self) -> None:
        self.hints = tuple(self.hints)  # JSON has lists alone
        if not 0 <= self.prm_coef < float("inf"):
            raise UserError(f"--prm_coef {self.prm_coef} is no weight: use 0 or more.")

    def load_environments(self, split: str) -> tuple[Callable[[], Any], int]:
        """Load the tasks of a split; returns a maker of environments over them, and their number.

        Raises:
            UserError: If there are none, or the environment has no such argument.
        """
        return get_environment(self.env).make_factory(
            Path(self.tasks),
            split,
            difficulty=self.difficulty,
            max_steps=self.env_max_steps,
            options=read_mapping("env_options", self.env_options),
        )

    @property
    def sampling(self) -> dict[str, int]:
        """Sampling parameters of every request, in evaluations as in episodes that are trained on."""
        return {"max_tokens": self.max_tokens}

    @property
    def groups(self) -> int:
        """Groups to play in all."""
        return -(-self.episodes // self.group_size)
