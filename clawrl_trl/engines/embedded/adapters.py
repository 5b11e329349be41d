"""The policies an engine can sample from: the base model, adapters on it, full models beside it.

Each adapter is a PEFT model around its own tree of modules that *shares the base model's tensors*. So an adapter
costs its own weights only, is loaded on another thread while the engine decodes, can't disturb its neighbours or the
base even when it turns out to be broken half-way, and is gone when the last request that holds it has finished:
the lease is an ordinary reference. On a small float32 base, where the adapter's extra operations cost more than the
memory, LoRA is folded into a copy of the weights it adapts; the rest stays shared.
"""

import copy
import json
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from peft import PeftConfig, PeftModel, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from clawrl_trl.engines.context import read_window
from clawrl_trl.engines.embedded.cache import use_grouped_attention
from clawrl_trl.engines.embedded.compat import attention_name

BASE = "base"

MERGE_LIMIT = 256 * 2**20
"""Bytes of a float32 base model up to which adapters are folded into weights of their own."""


class AdapterError(Exception):
    """A policy folder that can't be served; the text says why and is meant for the client."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, eq=False)
class LoadedPolicy:
    """Weights under a name.

    Args:
        name (`str`): "base" or the name it was loaded under.
        model (`PreTrainedModel`): Computes the logits; adapters are already inside its modules.
        path (`str`): Folder the weights came from.
        eos_ids (`frozenset[int]`): Tokens that end a reply.
    """

    name: str
    model: PreTrainedModel
    path: str
    eos_ids: frozenset[int] = frozenset()
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def layers(self) -> int:
        return int(self.model.config.get_text_config(decoder=True).num_hidden_layers)

    @cached_property
    def vocab_size(self) -> int:
        return int(self.model.config.get_text_config(decoder=True).vocab_size)

    @cached_property
    def _window(self) -> tuple[int | None, bool]:
        """Tokens that a layer with a window attends to, and whether there are layers without one beside it."""
        config = self.model.config.get_text_config(decoder=True)
        return read_window(config), bool(getattr(config, "layer_types", None))

    def mask(self, visible: Tensor, distances: Tensor) -> Tensor | dict[str, Tensor]:
        """A mask in the form this model's attention takes; one for each kind of layer where these differ.

        Args:
            visible (`Tensor`): `[rows, 1, queries, keys]`, true where a query may see a key.
            distances (`Tensor`): `[queries, keys]`, how many tokens a key stands before a query.
        """
        window, mixes = self._window
        if window is None:
            return self._in_form(visible)
        near = self._in_form(visible & (distances < window))
        return {"full_attention": self._in_form(visible), "sliding_attention": near} if mixes else near

    def _in_form(self, visible: Tensor) -> Tensor:
        # SDPA takes true and false; eager attention adds its mask to the scores.
        if "sdpa" in attention_name(self.model):
            return visible
        hidden = torch.zeros(visible.shape, dtype=self.model.dtype, device=visible.device)
        return hidden.masked_fill_(~visible, torch.finfo(self.model.dtype).min)

    def stop_reason(self, token_id: int) -> int | None:
        """Return vLLM's `stop_reason`: the stop token, or nothing when it is the model's own end of text."""
        return None if token_id in self.eos_ids else token_id


def load_base(path: str, dtype: torch.dtype) -> PreTrainedModel:
    """Load a causal language model ready to serve, in evaluation mode and without gradients."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval().requires_grad_(False)
    use_grouped_attention(model)
    return model


class LoadedPolicies:
    """All loaded policies by name. Thread-safe; loading never touches a model that is in use."""

    def __init__(self, base: LoadedPolicy) -> None:
        self.base = base
        self._loaded = {base.name: base}
        self._lock = threading.Lock()
        self._loading = threading.Lock()

    def get(self, name: str) -> LoadedPolicy | None:
        with self._lock:
            return self._loaded.get(name)

    def all(self) -> list[LoadedPolicy]:
        """The base model first, then the others in the order they were loaded."""
        with self._lock:
            return list(self._loaded.values())

    def load(self, name: str, path: str) -> None:
        """Load a PEFT adapter or a full model.

        Raises:
            AdapterError: If the name is taken or the folder can't be served. Nothing has changed then.
        """
        # A lock of its own for loading, which takes seconds: requests look names up meanwhile.
        with self._loading:
            if self.get(name) is not None:
                # The clients tell this refusal from others by "already", as in vLLM's.
                raise AdapterError(f"The lora adapter '{name}' has already been loaded.")
            policy = self._read(name, path)
            with self._lock:
                self._loaded[name] = policy

    def unload(self, name: str) -> None:
        """Forget a policy; requests that hold it finish on it, and then its memory is free.

        Raises:
            AdapterError: If there is no adapter of this name (404).
        """
        with self._lock:
            if name == BASE or name not in self._loaded:
                raise AdapterError(f"The lora adapter '{name}' cannot be found.", status=404)
            del self._loaded[name]

    def _read(self, name: str, path: str) -> LoadedPolicy:
        folder = Path(path)
        if (folder / "adapter_config.json").is_file():
            load_model = self._adapter
        elif (folder / "config.json").is_file():
            load_model = self._full_model
        else:
            raise AdapterError(f"Loading lora {name} failed: no adapter_config.json or config.json in {path}")
        try:
            model = load_model(folder)
        except AdapterError as error:
            raise AdapterError(f"Loading lora {name} failed: {error}") from error
        except Exception as error:  # a foreign folder can fail in any way, and must not take the engine with it
            raise AdapterError(f"Loading lora {name} failed: {_first_line(error)}") from error
        model.eval().requires_grad_(False)
        return LoadedPolicy(name, model, path, self.base.eos_ids)

    def _adapter(self, folder: Path) -> PreTrainedModel:
        config = PeftConfig.from_pretrained(str(folder))
        if config.is_prompt_learning:
            raise AdapterError(f"{config.peft_type.value} adapters are not supported, use LoRA")
        weights = load_file(folder / SAFETENSORS_WEIGHTS_NAME)
        _check_finite(weights.items())
        stored = set(weights)
        # PEFT puts its layers into the tree it is given, so the base model's own tree must not be it.
        model = PeftModel.from_pretrained(_copy_sharing_tensors(self.base.model), str(folder), config=config)
        expected = set(get_peft_model_state_dict(model, save_embedding_layers=False))
        # PEFT passes over tensors that fit nowhere, and would serve the base model under the adapter's name.
        if surplus := sorted(stored - expected):
            raise AdapterError(f"{len(surplus)} of its tensors fit no module of the base model, e.g. {surplus[0]}")
        if missing := sorted(expected - stored):
            raise AdapterError(f"{len(missing)} tensors are missing, e.g. {missing[0]}")
        return _merge(model) if self._may_merge(config) else model.get_base_model()

    def _may_merge(self, config: PeftConfig) -> bool:
        base = self.base.model
        small = sum(tensor.nbytes for tensor in base.parameters()) <= MERGE_LIMIT
        return bool(small and base.dtype == torch.float32 and config.peft_type == "LORA")

    def _full_model(self, folder: Path) -> PreTrainedModel:
        shape = json.loads((folder / "config.json").read_text())
        # Token ids are the base tokenizer's, whichever model is asked.
        if shape.get("vocab_size") != self.base.vocab_size:
            raise AdapterError(f"its vocabulary is {shape.get('vocab_size')}, the base model's {self.base.vocab_size}")
        model, report = AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=self.base.model.dtype, use_safetensors=True, output_loading_info=True
        )
        if report["missing_keys"] or report["mismatched_keys"]:
            raise AdapterError(f"its weights are incomplete: {sorted(report['missing_keys'])[:3]}")
        _check_finite(model.named_parameters())
        model.to(self.base.model.device)
        use_grouped_attention(model)
        return model


def _copy_sharing_tensors(model: PreTrainedModel) -> PreTrainedModel:
    """Copy the module tree, with the original's own tensors as parameters and buffers."""
    # deepcopy takes what its memo already holds for a copy.
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def _merge(model: PeftModel) -> PreTrainedModel:
    """Fold the adapter into weights of its own: a plain model that decodes as fast as the base."""
    # Merging adds to weights in place, and until here they are the base model's own tensors.
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            layer = module.get_base_layer()
            # The layer of an adapter on a parameter, such as a stack of experts, names it.
            for name in (getattr(module, "parameter_name", "weight"), "bias"):
                if (tensor := getattr(layer, name, None)) is not None:
                    setattr(layer, name, torch.nn.Parameter(tensor.clone(), requires_grad=False))
    return model.merge_and_unload()


def _check_finite(weights: Iterable[tuple[str, Tensor]]) -> None:
    for name, tensor in weights:
        if not torch.isfinite(tensor).all():
            raise AdapterError(f"tensor {name} holds values that are not finite numbers")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])[:300]}"
