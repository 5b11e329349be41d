"""The head of a model, applied to hidden states out of a pass that somebody else makes.

A loss needs one log-probability per position and forms no logits. A term that compares distributions looks at the
hidden states of the same pass, inside it (where sharded weights are whole), and multiplies those that it asks about
with the head: a chunk at a time, again in the backward pass, so that no more logits than a chunk's are held.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from accelerate.utils import is_peft_model
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from clawrl_trl.trainers.compat import maybe_gather_lm_head_ctx
from clawrl_trl.trainers.packing.packed_rows import PackedOutput

CHUNK = 256
"""Positions whose logits over the whole vocabulary exist at one time."""


def unwrap_adapter(model: PreTrainedModel) -> PreTrainedModel:
    """The causal language model itself, without PEFT's wrapper."""
    return model.get_base_model() if is_peft_model(model) else model


def read_scale(config: PreTrainedConfig) -> float:
    """What a family multiplies its logits with, before it caps them, as TRL's fused head does."""
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        if (factor := getattr(config, name, None)) is not None:
            return float(factor)
    divisor = getattr(config, "logits_scaling", None)
    if divisor is None:
        return 1.0
    return float(divisor if config.model_type == "hyperclovax" else 1 / divisor)


class LMHead:
    """Turns hidden states into logits.

    Args:
        weight: [V, H].
        bias: [V], if the model has one.
        scale: What the products are multiplied with (Cohere, Granite).
        cap: Bound that they approach, if the model has one (Gemma 2).
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, *, scale: float = 1.0, cap: float | None = None
    ) -> None:
        self.weight, self.bias = weight, bias
        self._scale, self._cap = scale, cap

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, V] logits of [N, H] hidden states, in float32 or better."""
        with maybe_gather_lm_head_ctx(self.weight, self.bias):
            logits = torch.nn.functional.linear(hidden.to(self.weight.dtype), self.weight, self.bias)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self._scale != 1.0:
            logits = logits * self._scale
        return torch.tanh(logits / self._cap) * self._cap if self._cap else logits


Look = Callable[[BaseModelOutput, LMHead], None]
"""Called with the output before the head, at temperature 1, and the head; `select_hidden` takes states out of it."""


class ForwardPasses:
    """Lets a function look at the forward passes of a model.

    Args:
        model: The causal language model itself, without PEFT or distributed wrappers.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        self._scale, self._cap = read_scale(config), getattr(config, "final_logit_softcapping", None)
        self._model = model
        self._look: Look | None = None

    @contextmanager
    def watch(self, look: Look) -> Iterator[None]:
        """Call `look` in every forward pass inside the block."""
        self._look = look
        # In front of other hooks: those of `RowTemperatures` scale the hidden states to the rows' temperatures.
        hook = self._model.base_model.register_forward_hook(self._show, prepend=True)
        try:
            yield
        finally:
            hook.remove()
            self._look = None

    def _show(self, module: torch.nn.Module, args: object, output: BaseModelOutput) -> None:
        if self._look is not None:
            head = self._model.get_output_embeddings()
            bias = None if head.bias is None else _gather(head.bias)
            # Collected once for all chunks: the processes have different numbers of them.
            with maybe_gather_lm_head_ctx(head.weight, head.bias):
                whole = LMHead(_gather(head.weight), bias, scale=self._scale, cap=self._cap)
                self._look(output, whole)


def _gather(weight: torch.Tensor) -> torch.Tensor:
    """The whole of a weight that FSDP has divided among the processes."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def select_hidden(output: BaseModelOutput, mask: torch.Tensor) -> torch.Tensor:
    """[N, H] hidden states before the selected ones of the last T tokens.

    Args:
        output: Of the model without its head.
        mask: [B, T] bools, true on the selected tokens; where samples share tokens, on trained ones alone.
    """
    hidden: torch.Tensor = output.last_hidden_state
    if isinstance(output, PackedOutput):
        return hidden[0][mask[output.trained]]
    return hidden[:, -mask.size(1) - 1 : -1][mask]


def map_chunks(function: Callable[..., torch.Tensor], *rows: torch.Tensor) -> torch.Tensor:
    """Apply `function` to rows a chunk at a time, and again in the backward pass."""
    chunks = zip(*(torch.split(tensor, CHUNK) for tensor in rows), strict=True)
    return torch.cat([checkpoint(function, *chunk, use_reentrant=False) for chunk in chunks])
