"""The list of files that may be published, and the copies of them that are.

Nothing is taken because it lies in a folder: each name is on the list below. Configurations are read and written
again without paths of this machine and without tokens.
"""

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clawrl_trl.errors import UserError

TRAINING_RECORD = "training.json"
"""Record of its training in a policy folder. Stays on the machine; a receipt repeats a part of it."""
RECEIPT = "training_receipt.json"
CARD = "README.md"

ADAPTER_CONFIG, MODEL_CONFIG = "adapter_config.json", "config.json"
ADAPTER_FILES = (ADAPTER_CONFIG, "adapter_model.safetensors")
MODEL_FILES = (MODEL_CONFIG, "model.safetensors", "model.safetensors.index.json")
GENERATION_CONFIG, TOKENIZER_CONFIG = "generation_config.json", "tokenizer_config.json"
TOKENIZER_FILES = (
    TOKENIZER_CONFIG,
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tekken.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
"""A tokenizer, and the processor of a vision-language model."""

_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_SECRET_KEYS = frozenset({"token", "hub_token", "hf_token", "use_auth_token", "api_key", "password"})
_PATH_KEYS = re.compile(r".*(name_or_path|_path|_file|_dir|folder)|is_local|local_files_only")
_LOCAL_PATH = re.compile(r"(/|~|\.\.?/|[A-Za-z]:[\\/]|file:).*|.*\\.*", re.DOTALL)


def may_be_published(name: str) -> bool:
    """Return `True` for the names on the list."""
    listed = (CARD, RECEIPT, *ADAPTER_FILES, *MODEL_FILES, GENERATION_CONFIG, *TOKENIZER_FILES)
    return name in listed or _SHARD.fullmatch(name) is not None


def list_weight_files(folder: Path) -> list[str]:
    """List the names of the weights that a folder may give away, and of their configuration.

    Raises:
        UserError: If it holds neither an adapter nor a model in safetensors.
    """
    listed = ADAPTER_FILES if (folder / ADAPTER_CONFIG).is_file() else MODEL_FILES
    names = [name for name in listed if (folder / name).is_file()]
    if listed is MODEL_FILES:
        names += sorted(path.name for path in folder.iterdir() if _SHARD.fullmatch(path.name))
    if listed[0] not in names or not any(name.endswith(".safetensors") for name in names):
        raise UserError(f"{folder} holds no adapter and no model in safetensors: choose another policy version.")
    return names


def stage(target: Path, weights: Path, others: Iterable[Path | None] = (), *, base: str | None, linked: bool) -> None:
    """Fill an empty folder with what may be published of a policy.

    Args:
        target: The folder to fill.
        weights: Folder with an adapter or a model.
        others: Folders in which the tokenizer, and the generation config, are looked for if not there.
        base: Public name of the base model, or `None`.
        linked: Link large files, which must then stay as they are, instead of copying them.

    Raises:
        UserError: If the first folder holds no weights.
    """
    for name in list_weight_files(weights):
        _copy_file(weights / name, target / name, linked=linked)
    folders = [weights, *(folder for folder in others if folder is not None)]
    for mark, names in {TOKENIZER_CONFIG: TOKENIZER_FILES, GENERATION_CONFIG: (GENERATION_CONFIG,)}.items():
        # All from one folder: files of two tokenizers do not go together.
        for source in [folder for folder in folders if (folder / mark).is_file()][:1]:
            for name in names:
                if (source / name).is_file():
                    _copy_file(source / name, target / name, linked=False)
    for name in (ADAPTER_CONFIG, MODEL_CONFIG):
        if (target / name).is_file():
            _clean_config(target / name, base)


def _copy_file(source: Path, target: Path, *, linked: bool) -> None:
    if source.name.endswith("config.json"):
        content = json.loads(source.read_text(encoding="utf-8"))
        target.write_text(json.dumps(_without_secrets(content), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    elif linked and source.suffix == ".safetensors":
        # A publication lives as long as its upload: copying gigabytes for it would be waste.
        target.symlink_to(source.resolve())
    else:
        shutil.copyfile(source, target)


def _clean_config(path: Path, base: str | None) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    if path.name == ADAPTER_CONFIG:
        config["base_model_name_or_path"] = base
    elif "model_type" not in config:  # some other file of this name, with whatever it holds
        raise UserError(f"{path.name} is not that of a model: choose another policy version.")
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _without_secrets(value: Any) -> Any:
    """Copy a JSON value without tokens, and without local paths under keys that hold paths."""
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    if not isinstance(value, dict):
        return value
    cleaned = {}
    for key, item in value.items():
        names_path = _PATH_KEYS.fullmatch(key) is not None
        if key in _SECRET_KEYS or (names_path and isinstance(item, bool)):
            continue
        local = names_path and isinstance(item, str) and _LOCAL_PATH.fullmatch(item) is not None
        cleaned[key] = None if local else _without_secrets(item)
    return cleaned
