"""Options of a persona's chats."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from clawrl_trl.envs.runs.options import MeasuredArguments, RunOptions

MAX_TURNS = 3
"""Most messages that a persona sends in a session, unless `env_max_steps` says otherwise."""


@dataclass(kw_only=True)
class PersonaArguments(MeasuredArguments):
    """Flags of a training script for a persona's chats."""

    interactions: int = field(
        default=36, metadata={"help": "Interactions the persona plays, one problem each.", "at_least": 1}
    )
    think_time: float = field(
        default=0.8,
        metadata={"help": "Mean seconds the persona takes to read a reply before it writes.", "at_least": 0},
    )
    rollout_function_path: str | None = field(
        default=None,
        metadata={"help": "Own rollout, 'file.py:name', called as rollout(client, persona, interactions, seed)."},
    )
    custom_generate_function_path: str | None = field(
        default=None,
        metadata={"help": "Own generation, 'file.py:name', called as generate(client, model, messages, **sampling)."},
    )


@dataclass(kw_only=True)
class PersonaOptions(RunOptions, PersonaArguments):
    """Options of a persona's chats: its flags, and who it is.

    Args:
        persona (`str`, *optional*, defaults to `"student"`): Name of a scripted one, or a YAML file.
        stream_share (`float`, *optional*, defaults to `0.5`): Share of the requests that stream.
        patience (`float`, *optional*, defaults to `60.0`): Longest wait for a gateway that went away, in seconds.
        sampling (`dict`, *optional*): Sampling parameters of every request.
    """

    FILE_NAME: ClassVar[str] = "persona.json"

    persona: str = "student"
    stream_share: float = 0.5
    patience: float = 60.0
    sampling: dict[str, Any] = field(default_factory=lambda: {"max_tokens": 256})

    @property
    def max_turns(self) -> int:
        """Most messages that the persona sends in a session."""
        return self.env_max_steps or MAX_TURNS
