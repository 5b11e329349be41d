"""Presets: named defaults of a training script's flags, one YAML file each; a new file is a new preset.

Training scripts and `clawrl presets` use `load_preset` and `preset_names`. A preset is weaker than a `--config` file
and than flags. Its keys:

- `summary`: what it is for, one line; `measured`: the page with its results.
- `extends`: the preset that it starts from, by name or by a path relative to this file. Each of its own values is
  stronger than any of that preset's.
- `all`: values of flags, by name; `methods`: more of them for `binary`, `opd` or `combine`.
- `practice`: the same two keys, for what differs with `--env`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from clawrl_trl.errors import UserError

FOLDER = Path(__file__).parent
BUNDLED = "tiny"
"""The preset of the bundled model."""
NAMED = "named"
"""The preset of a model that is named."""
NONE = "none"
"""Value of `--preset` for no preset."""

_KEYS = frozenset({"summary", "measured", "extends", "all", "methods", "practice"})
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Preset:
    """Named defaults of flags, as their file has them.

    Attributes:
        name (`str`): Its name, or its path.
        summary (`str`): What it is for.
        measured (`str`): Where its results are; empty if nothing was measured.
        shared (`Mapping`): Values of flags for every method.
        methods (`Mapping`): Values of flags for a method, by its name.
        practice (`Mapping`): The keys `all` and `methods`, for what differs with `--env`.
        base (`Preset`, *optional*): The preset that it extends.
    """

    name: str
    summary: str
    measured: str = ""
    shared: Values = field(default_factory=dict)
    methods: Mapping[str, Values] = field(default_factory=dict)
    practice: Mapping[str, Any] = field(default_factory=dict)
    base: "Preset | None" = None

    def select_values(self, method: str, *, with_env: bool) -> dict[str, Any]:
        """Return the values of flags for a method, in an environment or with chats."""
        values = self.base.select_values(method, with_env=with_env) if self.base else {}
        values |= {**self.shared, **self.methods.get(method, {})}
        if with_env:
            values |= {**self.practice.get("all", {}), **self.practice.get("methods", {}).get(method, {})}
        return values


def list_presets() -> list[str]:
    """Return the names of the shipped presets."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_preset(spec: str) -> Preset:
    """Load a shipped preset by its name, or one of the user's by its path.

    Raises:
        UserError: If there is none, or its file is wrong.
    """
    return _load(spec, Path(), ())


def _load(spec: str, folder: Path, extending: tuple[Path, ...]) -> Preset:
    """Load a preset; `extending` are the files that extend it, directly or not."""
    is_file = spec.endswith((".yaml", ".yml"))
    # Only an ending makes it a path: a folder of that name beside the script must not hide a preset.
    if not is_file and spec not in list_presets():
        raise UserError(f"--preset {spec!r} is unknown: use {', '.join(list_presets())}, none, or a YAML file.")
    path = folder / Path(spec).expanduser() if is_file else FOLDER / f"{spec}.yaml"
    if path.resolve() in extending:
        raise UserError(f"--preset {spec} extends itself: leave its extends out.")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"--preset {spec} can't be read: {error}.") from None
    _check(spec, content)
    base = content.get("extends")
    return Preset(
        name=spec,
        summary=str(content.get("summary") or ""),
        measured=str(content.get("measured") or ""),
        shared=content.get("all") or {},
        methods=content.get("methods") or {},
        practice=content.get("practice") or {},
        base=_load(str(base), path.parent, (*extending, path.resolve())) if base else None,
    )


def _check(spec: str, content: Any) -> None:
    if not isinstance(content, dict):
        raise UserError(f"--preset {spec} must be a YAML mapping.")
    practice = content.get("practice") or {}
    # Refused: values at the top level, where they look right, would have no effect.
    wrong = [str(key) for key in content if key not in _KEYS]
    wrong += [f"practice.{key}" for key in practice if key not in ("all", "methods")] if _is_map(practice) else []
    if wrong:
        raise UserError(f"--preset {spec} has {wrong[0]!r}, which means nothing: values stand under all or methods.")
    maps = {"practice": practice}
    for place, section in (("", content), ("practice.", practice if _is_map(practice) else {})):
        methods = section.get("methods") or {}
        maps |= {f"{place}all": section.get("all") or {}, f"{place}methods": methods}
        maps |= {f"{place}methods.{name}": part or {} for name, part in (methods if _is_map(methods) else {}).items()}
    misplaced = next((place for place, part in maps.items() if not _is_map(part)), None)
    if misplaced is not None:
        raise UserError(f"--preset {spec}: {misplaced} must be a mapping.")


def _is_map(value: object) -> bool:
    return isinstance(value, dict)
