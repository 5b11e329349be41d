"""Kinds of policies that an engine can serve, and how it serves each; decided in this module alone.

An adapter is served beside the base model under a name of its own, on every engine. A whole model is

- served by name too, several at once, by the embedded engine;
- exchanged *in place* by a vLLM server of ours (`vllm.policy`): there is one at a time, the versions before it and
  the base model are gone from the engine until they are put back, and adapters, made for the base, wait;
- beyond any other vLLM server.

What vLLM can't serve as an adapter (`adapter_obstacle`) is merged into a whole model, which lies in the policy's
folder beside the adapter (`served_folder`).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

MERGED = "merged"
"""Folder, inside a policy's own, with the model that the adapter was merged into."""

MAX_RANK = 512
"""Highest rank of an adapter that vLLM makes room for."""

_UNADAPTABLE = re.compile(r"(^|\.)(lm_head|embed_tokens|visual|vision\w*)(\.|$)")

CANT_EXCHANGE = (
    "this vLLM server can't exchange its model: train an adapter, or start the server with "
    "--middleware clawrl_trl.engines.vllm.policy.PolicyInPlace "
    "--worker-extension-cls clawrl_trl.engines.vllm.worker.WorkerExtension"
)


@dataclass(frozen=True)
class Serving:
    """The way in which an engine serves policies at this moment.

    Args:
        whole (`str`): How it serves whole models: `"by name"`, `"in place"`, or `"not"` at all.
        in_place (`int`, defaults to 0): The version in place of the base model; 0 is the base model.
        grammars (`bool`, defaults to `True`): Whether it may sample under a grammar: for strict tools, say.
    """

    whole: Literal["by name", "in place", "not"] = "by name"
    in_place: int = 0
    grammars: bool = True

    def exchanges(self, kind: str) -> bool:
        """Return whether a version of this kind takes the base model's place."""
        return kind == "full" and self.whole == "in place"

    def offers(self, number: int, kind: str) -> bool:
        """Return whether a version can be asked for now, once it is loaded."""
        if self.in_place:  # adapters were made for the base model, which is away
            return number == self.in_place
        return kind != "full" or self.whole == "by name"


def is_whole(folder: Path) -> bool:
    """Return whether a folder holds a whole model, no adapter."""
    return (folder / "config.json").is_file() and not (folder / "adapter_config.json").is_file()


def served_folder(folder: Path) -> Path:
    """Return the folder that an engine loads of a policy: the merged model if there is one."""
    merged = folder / MERGED  # there only where vLLM could not load the adapter itself
    return merged if merged.is_dir() else folder


def adapter_obstacle(config: Mapping[str, Any], modules: Iterable[str] = ()) -> str | None:
    """Why vLLM can't serve an adapter as such, or `None`.

    Args:
        config (`Mapping`): Its `adapter_config.json`.
        modules (`Iterable[str]`): Paths of the modules it changes. vLLM adapts the linear layers of the language
            model; an adapter on the output head it applies to replies, but not to the log-probs of prompts.
    """
    if config.get("peft_type") != "LORA":
        return f"it is of type {config.get('peft_type')}"
    if config.get("use_dora"):
        return "it is a DoRA adapter"
    if config.get("bias", "none") != "none" or config.get("lora_bias"):
        return "it trains biases"
    for name in ("modules_to_save", "trainable_token_indices", "target_parameters", "layer_replication"):
        if config.get(name):
            return f"it has {name}"
    if config.get("r", 0) > MAX_RANK:
        return f"its rank is {config['r']}"
    module = next((name for name in modules if _UNADAPTABLE.search(name)), None)
    return None if module is None else f"it changes {module}"
