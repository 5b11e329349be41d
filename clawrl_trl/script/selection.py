"""Choice of the preset and of the run folder, by the few flags on which the other defaults depend."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawrl_trl.config.presets import BUNDLED, NAMED, NONE, Preset, load_preset
from clawrl_trl.config.serving import DEFAULT_RUN
from clawrl_trl.script.arguments import CHAT


@dataclass(frozen=True)
class Selection:
    """The few values that decide which other flags and defaults there are."""

    method: str
    env: str | None
    persona: str | None
    preset: str | None
    model: str | None

    @classmethod
    def of_flags(cls, explicit: Mapping[str, Any]) -> "Selection":
        env = explicit.get("env") or os.environ.get("ENV_TYPE") or None
        persona = explicit.get("persona")
        if env == CHAT:
            persona = persona or explicit.get("tasks") or "student"
        return cls(
            method=explicit.get("method") or ("combine" if env in (None, CHAT) else "binary"),
            env=env,
            persona=persona,
            preset=explicit.get("preset"),
            model=explicit.get("model_name_or_path") or os.environ.get("MODEL_PATH") or None,
        )

    @property
    def default_folder(self) -> str:
        folder = os.environ.get("CLAWRL_RUN") or os.environ.get("CKPT_SAVE_DIR")
        practice_name = Path(self.persona).stem if self.persona else self.env
        return folder or (f"runs/{practice_name}-{self.method}" if practice_name else DEFAULT_RUN)

    def load_preset(self) -> Preset | None:
        """Load the preset that is asked for; else that of the bundled model, or of models that are named."""
        spec = self.preset or (BUNDLED if self.model is None else NAMED)
        return None if spec == NONE else load_preset(spec)

    @property
    def practises(self) -> bool:
        """True if the model works in an environment, where other values of a preset apply than in chats."""
        return self.env not in (None, CHAT)
