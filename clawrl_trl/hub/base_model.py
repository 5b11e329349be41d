"""The base model of a publication, named without the paths of this machine."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clawrl_trl.tiny import MODEL_PATH

BUNDLED_NAME = "clawrl-tiny"
"""Name of the bundled model, which is no repository of the Hub."""

_REPO_ID = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
_CACHED = re.compile(r"models--(?P<id>[\w.-]+)/snapshots/(?P<revision>[0-9a-f]{40})")
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,40}")
_BUNDLED_TAIL = MODEL_PATH.parts[-3:]


@dataclass(frozen=True)
class BaseModel:
    """Facts about a base model.

    Args:
        kind: `"hub"`, `"bundled"` or `"local"`.
        name: Repository on the Hub, or the bundled model's name; `None` for a local folder.
        revision: Commit or branch of the repository, if known.
        licence: Identifier of its licence, if known.
        architecture: Its `model_type`, if its configuration is at hand.
        folder: Where its files lie on this machine; never published.
    """

    kind: str
    name: str | None = None
    revision: str | None = None
    licence: str | None = None
    architecture: str | None = None
    folder: Path | None = None

    @classmethod
    def of(cls, model: str | None, revision: str | None = None) -> "BaseModel":
        """Describe a model by its folder or its id on the Hub; `None` is the bundled one. Needs no network."""
        path = MODEL_PATH if model is None else Path(model).expanduser()
        # By the end of its path: a run may have been made with another installation of this package.
        if path.parts[-3:] == _BUNDLED_TAIL:
            return cls("bundled", BUNDLED_NAME, None, "apache-2.0", "qwen3", MODEL_PATH)
        if match := _CACHED.search(path.as_posix()):
            return cls._on_hub(match["id"].replace("--", "/", 1), match["revision"])
        # A folder comes before a repository of the same name, as with `from_pretrained`.
        if path.is_dir() or path.is_absolute() or not _REPO_ID.fullmatch(str(model)):
            return cls(
                "local", None, None, _read_licence(path), _read_architecture(path), path if path.is_dir() else None
            )
        return cls._on_hub(str(model), revision)

    @classmethod
    def _on_hub(cls, repo_id: str, revision: str | None) -> "BaseModel":
        folder = _find_cached_folder(repo_id, revision)
        licence, architecture = (None, None) if folder is None else (_read_licence(folder), _read_architecture(folder))
        return cls("hub", repo_id, revision, licence, architecture, folder)

    def to_facts(self) -> dict[str, Any]:
        """Return the facts for a receipt."""
        names = ("kind", "name", "revision", "licence", "architecture")
        return {name: getattr(self, name) for name in names}


def _find_cached_folder(repo_id: str, revision: str | None) -> Path | None:
    """Find the snapshot of a repository in the Hub's cache; `None` without one."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(repo_id, "config.json", revision=revision)
    except HFValidationError:
        # The pattern above lets through what the Hub forbids, such as two dashes in a row.
        return None
    return Path(config).parent if isinstance(config, str) else None


def _read_architecture(folder: Path) -> str | None:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    kind = config.get("model_type") if isinstance(config, Mapping) else None
    return kind if isinstance(kind, str) and re.fullmatch(r"\w{1,40}", kind) else None


def _read_licence(folder: Path) -> str | None:
    """Read the licence that a model card's header names; `None` without one."""
    try:
        header = re.match(r"---\n(.*?)\n---", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
        licence = yaml.safe_load(header[1]).get("license") if header else None
    except (OSError, ValueError, AttributeError, yaml.YAMLError):
        return None
    return licence if isinstance(licence, str) and _LICENCE.fullmatch(licence) else None
