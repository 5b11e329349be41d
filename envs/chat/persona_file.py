"""A persona in a YAML file: who a language model plays, and where that model is.

```yaml
name: Mia
goal: A name for her new bakery.      # or `goals`, a list, one for each session; `heldout`: those of evaluations
tastes: One suggestion with its reason; no lists, no headings.
mood: patient                         # patient, curious, pleased, confused, annoyed or angry
model: qwen3                          # the model that plays her, behind any OpenAI-compatible API
base_url: http://127.0.0.1:8000/v1
key_env: OPENAI_API_KEY               # the environment variable with its key; default: CLAWRL_PERSONA_KEY
rules: student                        # optional: the scripted persona whose problems and style rules count
```
"""

import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from clawrl_trl.envs.chat.llm_persona import NAME, LLMPersona
from clawrl_trl.envs.chat.personas import PERSONAS, Mood, Persona
from clawrl_trl.envs.chat.students import STUDENTS
from clawrl_trl.envs.chat.user_model import UserModel
from clawrl_trl.errors import UserError

PERSONA_KEY = "CLAWRL_PERSONA_KEY"
SCRIPTED = {**PERSONAS, **STUDENTS}
"""The scripted personas by name."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=f"^{NAME}$")
    goals: list[str] = Field(min_length=1)
    heldout: list[str] = []
    tastes: str = ""
    mood: Mood = "patient"
    model: str
    base_url: str = Field(pattern=r"^https?://")
    key_env: str | None = None
    rules: str | None = None
    sampling: dict[str, Any] | None = None
    timeout: float = Field(default=60.0, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _check_document(cls, document: Any) -> Any:
        if not isinstance(document, dict):
            raise ValueError("it must be a mapping")
        if {"key", "api_key"} & set(document):
            raise ValueError(f"keys stay in the environment: set {PERSONA_KEY}, or name a variable with key_env")
        content = dict(document)
        if "goal" in content:
            content["goals"] = [content.pop("goal"), *content.get("goals", [])]
        return content


def persona(name: str) -> Persona:
    """The persona of that name, or the one that a YAML file describes.

    Raises:
        UserError: If there is none, or the file is wrong.
    """
    if name in SCRIPTED:
        return SCRIPTED[name]()
    if name.endswith((".yaml", ".yml")):
        return read_persona(name)
    raise UserError(f"--persona {name!r} is unknown: use {' or '.join(SCRIPTED)}, or a YAML file that describes one.")


def read_persona(path: str | Path) -> LLMPersona:
    """The persona that a YAML file describes.

    Raises:
        UserError: If the file can't be read, or says what it shouldn't.
    """
    try:
        description = _File.model_validate(yaml.safe_load(Path(path).read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"--persona {path} can't be read: {' '.join(str(error).split())}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"--persona {path}: {where + ': ' if where else ''}{first['msg']}.") from None
    if description.rules is not None and description.rules not in SCRIPTED:
        raise UserError(f"--persona {path}: rules {description.rules!r} is unknown: use {' or '.join(SCRIPTED)}.")
    if description.key_env is not None and not os.environ.get(description.key_env):
        raise UserError(f"--persona {path}: key_env names {description.key_env}, which is not set: export it.")
    model = UserModel(
        description.model,
        description.base_url,
        key=os.environ.get(description.key_env or PERSONA_KEY),
        sampling=description.sampling,
        timeout=description.timeout,
    )
    return LLMPersona(
        description.name,
        description.goals,
        model,
        tastes=description.tastes,
        mood=description.mood,
        heldout=description.heldout,
        rules=None if description.rules is None else SCRIPTED[description.rules](),
    )
