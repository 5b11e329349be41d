"""Per-token log-probabilities at each sample's own temperature.

TRL's fused LM head knows one temperature for all rows, set when it is built. A sample must be scored at the
temperature it was sampled at, so rows that differ have the hidden states scaled before the head: `(h s) W = s (h W)`,
exact for a head without bias or soft cap. Models for which that does not hold, and float64, which the fused head
would round to float32, take the plain way through the logits.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from clawrl_trl.trainers.compat import selective_log_softmax
from clawrl_trl.trainers.packing.packed_rows import PackedOutput


class RowTemperatures:
    """Applies row temperatures to one model that has TRL's fused LM head.

    Args:
        model: The causal language model itself, without PEFT or distributed wrappers.
        built_in: Temperature of its fused head.
    """

    def __init__(self, model: PreTrainedModel, built_in: float) -> None:
        self.built_in = built_in
        self.rows: torch.Tensor | None = None
        self._scale: torch.Tensor | None = None
        head, config = model.get_output_embeddings(), model.config.get_text_config()
        self._scalable = head.bias is None and getattr(config, "final_logit_softcapping", None) is None
        self._float64 = head.weight.dtype == torch.float64
        model.base_model.register_forward_hook(self._scale_hidden_states)

    @contextmanager
    def use(self, rows: torch.Tensor) -> Iterator[None]:
        """Score at these temperatures inside the block.

        Args:
            rows: [B] temperatures, above 0.
        """
        uniform = bool((rows == self.built_in).all())
        before = self.rows, self._scale
        self.rows = rows
        self._scale = None if uniform or not self.can_fuse(rows) else self.built_in / rows
        try:
            yield
        finally:
            self.rows, self._scale = before

    @property
    def always_fuses(self) -> bool:
        """True if the fused head can score rows of any temperatures."""
        return self._scalable and not self._float64

    def can_fuse(self, rows: torch.Tensor) -> bool:
        """Return whether the fused head can score these rows."""
        return not self._float64 and (self._scalable or bool((rows == self.built_in).all()))

    def _scale_hidden_states(self, module: torch.nn.Module, args: object, output: BaseModelOutput) -> BaseModelOutput:
        if self._scale is not None:
            hidden = output.last_hidden_state
            scale = self._scale.to(hidden.dtype)[:, None, None]
            if isinstance(output, PackedOutput):
                scale = scale.expand(-1, output.trained.size(1), -1)[output.trained]
            output.last_hidden_state = hidden * scale
        return output


def compute_logps(
    model: torch.nn.Module,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    logits_to_keep: int,
    temperature: torch.Tensor,
    *,
    router_logits: bool = False,
    pictures: Mapping[str, Any] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Log-probabilities and entropies of the last tokens, from the full logits.

    Args:
        model: Causal language model, wrapped or not.
        input_ids: [B, L].
        attention_mask: [B, L].
        logits_to_keep: T, the number of last tokens to score.
        temperature: [B].
        router_logits: Also ask a mixture of experts for its auxiliary loss.
        pictures: What the model takes of the prompts' pictures.

    Returns:
        `([B, T] log-probabilities, [B, T] entropies, auxiliary loss or None)`, 0 on masked positions.
    """
    # One position more, whose last is dropped: the logits at a position are those of the token after it.
    extra = {"output_router_logits": True} if router_logits else {}
    output = model(
        input_ids=input_ids,
        attention_mask=attention_mask,
        logits_to_keep=logits_to_keep + 1,
        use_cache=False,
        **(pictures or {}),
        **extra,
    )
    logits = output.logits[:, :-1] / temperature[:, None, None].to(output.logits.dtype)
    keep = attention_mask[:, -logits_to_keep:].bool()
    logps = selective_log_softmax(logits, input_ids[:, -logits_to_keep:])
    log_all = logits.log_softmax(-1)
    entropies = -(log_all.exp() * log_all).sum(-1)
    return (
        logps.masked_fill(~keep, 0.0),
        entropies.masked_fill(~keep, 0.0),
        getattr(output, "aux_loss", None) if router_logits else None,
    )
