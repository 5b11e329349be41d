"""Arguments of a training script itself, beside those of its trainer, its model and the serving half."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clawrl_trl.config.flags import list_flags, read_number
from clawrl_trl.config.idle_flags import refuse_idle
from clawrl_trl.envs.runs.options import MeasuredArguments, check_declared_ranges
from clawrl_trl.envs.runs.persona_options import PersonaArguments
from clawrl_trl.envs.runs.practice_options import PracticeArguments
from clawrl_trl.envs.runs.wave import Wave
from clawrl_trl.errors import UserError

TEACHING = ("opd", "combine")
"""Methods that train on a teacher's log-probs."""
CHAT = "chat"
"""The environment that a persona is."""

_PLUGINS = ("rollout_function_path", "custom_generate_function_path")
_MEASURED = list_flags([MeasuredArguments])
_OF_PERSONA = [name for name in list_flags([PersonaArguments]) if name not in _MEASURED]
_OF_PRACTICE = ["env_hints", *(name for name in list_flags([PracticeArguments]) if name not in _MEASURED)]


@dataclass(kw_only=True)
class ScriptArguments(PersonaArguments, PracticeArguments):
    """Arguments of the script itself, beside those of the trainer, the model and the serving half."""

    method: str = field(
        default="combine",
        metadata={"help": "Credit: binary, opd (distillation) or combine. Default with --env: binary."},
    )
    preset: str | None = field(
        default=None,
        metadata={
            "help": "Defaults of the other flags: a name ('clawrl presets' lists them), a YAML file, or 'none'. "
            "Default: 'tiny' for the bundled model, 'named' for others."
        },
    )
    persona: str | None = field(
        default=None,
        metadata={
            "help": "Simulated user that chats with the model: student, teacher, thumbs, noisy_student, curt, "
            "bilingual or a YAML file."
        },
    )
    env: str | None = field(
        default_factory=lambda: os.environ.get("ENV_TYPE") or None,
        metadata={"help": "Environment to practise in: terminal, gui, swe, toolcall or chat (a --persona)."},
    )
    tasks: str | None = field(
        default=None,
        metadata={"help": "Task set: a path, or the name of a shipped one; of chat: the persona. Default: its own."},
    )
    env_vars: dict[str, object] | str | None = field(
        default=None, metadata={"help": "Environment variables to set, JSON (in a YAML file: a mapping)."}
    )
    env_hints: bool | None = field(
        default=None,
        metadata={
            "help": "Hints for a teacher in the words of the environment's own checker. Default: with --method opd or "
            "combine, where the environment has some."
        },
    )
    custom_loss_function_path: str | None = field(
        default=None,
        metadata={"help": "Own loss, 'file.py:name', called as loss(trainer, model, inputs, default_loss)."},
    )

    def __post_init__(self) -> None:
        check_declared_ranges(self)

    def find_hint_needs(self) -> tuple[str, ...]:
        """Return what training on an environment's hints needs of a sample; empty without hints.

        Raises:
            UserError: If the method needs a teacher that there is not, or the hints would teach nobody.
        """
        from clawrl_trl.envs.catalogue import BUILTIN_ENVIRONMENTS, get_environment

        assert self.env is not None
        if self.method not in TEACHING:
            if self.env_hints:
                raise UserError(f"--env_hints has no effect with --method {self.method}: use --method combine or opd.")
            return ()
        if not get_environment(self.env).hints:
            those = ", ".join(name for name, entry in BUILTIN_ENVIRONMENTS.items() if entry.hints)
            raise UserError(
                f"--method {self.method} needs a teacher, and --env {self.env} has no hints for one ({those} has): "
                "use --method binary."
            )
        if self.env_hints is False:
            raise UserError(f"--method {self.method} needs --env_hints: leave them on, or use --method binary.")
        return ("teacher",) if self.method == "opd" else ("score", "teacher")

    def read_action_limit(self) -> None:
        """Take the most actions of an episode from the variable `MAX_STEPS`, where no flag gives it.

        Raises:
            UserError: If it is no number above 0.
        """
        if self.env is not None and self.env_max_steps is None:
            self.env_max_steps = read_number("MAX_STEPS", None)
            check_declared_ranges(self)

    def find_wave(self) -> Wave:
        """Return the episodes that are under way at a time in the environment.

        Raises:
            UserError: If there is no such environment.
        """
        from clawrl_trl.envs.catalogue import get_environment

        assert self.env is not None
        return self.make_wave(self.env_max_steps or get_environment(self.env).max_steps)

    def refuse_idle_flags(self, explicit: Mapping[str, Any]) -> None:
        """Reject flags that would be ignored.

        Args:
            explicit (`Mapping`): Values of the flags that the user has set.

        Raises:
            UserError: If a flag of a persona, or of an environment, is given without one.
        """
        practises = self.env not in (None, CHAT)
        if self.persona is not None and practises:
            raise UserError(f"--persona and --env {self.env} exclude each other: one teaches at a time.")
        live = self.persona is None and self.env is None
        reasons = dict.fromkeys(_OF_PERSONA if practises or live else (), "it is for a --persona")
        reasons |= dict.fromkeys(() if practises else _OF_PRACTICE, "it is for an --env other than chat")
        if live:
            reasons |= dict.fromkeys(
                _PLUGINS, "people's own clients ask and the engine answers; it is for a --persona"
            )
            reasons["eval_problems"] = "nothing is evaluated; it is for a --persona or an --env"
            reasons["env_max_steps"] = "it is for a --persona or an --env; see --max_steps for training"
        elif practises:
            reasons |= dict.fromkeys(_PLUGINS, "the environment plays its episodes itself; it is for a --persona")
        if self.env is None:
            reasons["tasks"] = "it is for an --env"
        refuse_idle(explicit, reasons, [ScriptArguments])
