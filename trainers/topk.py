"""Distillation over the student's most likely tokens, with everything else as one.

The sampled-token form of on-policy distillation hears of one token per position. Here each position compares two
distributions: the student's candidates whose probability the teacher told, each by itself, and the tail, all other
tokens taken together. For a partition like this

    KL(student || teacher) = sum over candidates p (log p - log q)  +  p_tail (log p_tail - log q_tail)

is never more than the KL divergence over the whole vocabulary (the data-processing inequality) and equals it once the
candidates cover the vocabulary. Which tokens are candidates decides how tight the bound is, not whether it holds.
Formula: OpenClaw-RL (arXiv 2603.10165), as in TRL's experimental asynchronous distillation trainer.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from trl.trainer.utils import maybe_gather_lm_head_ctx

from clawrl_trl.trainers.collate import Inputs

CHUNK = 256
"""Positions whose logits over the whole vocabulary exist at one time."""

_TRANSFORMED = {
    "final_logit_softcapping": (None, 0.0),
    "logit_scale": (None, 1.0),
    "output_multiplier": (None, 1.0),
    "lm_head_multiplier": (None, 1.0),
    "logits_scaling": (None, 1.0),
}
"""Config entries with which logits are more than hidden states times the head, unless they have these values."""


def partition_kl(
    student: torch.Tensor, teacher: torch.Tensor, known: torch.Tensor, clip: float = math.inf
) -> torch.Tensor:
    """KL divergence over candidates and tail, whose gradient is finite wherever the masses lie.

    The log-ratios enter as constants: since the masses sum to 1, the gradient is that of the divergence, and neither
    the logarithm of a tail that is nearly empty nor its derivative is ever formed with a gradient. A log-ratio beyond
    `clip` is replaced by the bound; what is then computed is no divergence any more, but has a bounded gradient.

    Args:
        student: [..., K] log-probabilities of the candidates under the policy, with gradient.
        teacher: [..., K] the same under the teacher; anything in empty slots.
        known: [..., K] bools, false in empty slots.
        clip: Bound on each log-ratio `log p - log q`, the tail's included, in nats.

    Returns:
        [...] divergences in nats; 0 where no candidate is known.
    """
    masses = torch.where(known, student, -math.inf).exp()
    with torch.no_grad():
        gaps = torch.where(known, student - teacher, 0.0).clamp(-clip, clip)
        tail_gap = (log_tail(student, known) - log_tail(teacher, known)).clamp(-clip, clip)
    return (masses * gaps).sum(-1) + (1.0 - masses.sum(-1)) * tail_gap


def log_tail(logps: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """[...] log of the mass that the known entries of `logps` leave, at least the rounding error of 1."""
    inside = torch.where(known, logps, -math.inf).logsumexp(-1)
    return torch.log(-torch.expm1(inside.clamp(max=-torch.finfo(logps.dtype).eps)))


class CandidateLogProbs:
    """Log-probabilities of given tokens, taken out of the forward pass that the loss makes anyway.

    The loss needs one log-probability per position and forms no logits. A hook on the model's body sees the hidden
    states of the same pass, inside it (where sharded weights are whole), and multiplies those that are asked about
    with the head: a chunk at a time, again in the backward pass, so that no more logits than a chunk's are held.

    Args:
        model: The causal language model itself, without PEFT or distributed wrappers.

    Raises:
        ValueError: If its logits are more than hidden states times the head.
    """

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        odd = [name for name, plain in _TRANSFORMED.items() if getattr(config, name, None) not in plain]
        if odd:
            raise ValueError(f"opd_top_k does not work with models that transform their logits ({', '.join(odd)})")
        self._model = model
        self._ids: torch.Tensor | None = None
        self.logps: torch.Tensor | None = None
        """[B, T, K] log-probabilities at temperature 1 out of the last pass, 0 in empty slots, with gradient."""
        model.base_model.register_forward_hook(self._score, prepend=True)

    @contextmanager
    def of(self, ids: torch.Tensor) -> Iterator["CandidateLogProbs"]:
        """Take log-probabilities out of the forward passes inside the block.

        Args:
            ids: [B, T, K] candidates for the last T tokens, -1 in an empty slot.
        """
        self._ids = ids
        try:
            yield self
        finally:
            self._ids = self.logps = None

    def _score(self, module: Any, args: Any, output: Any) -> None:
        if self._ids is None:
            return
        ids, head = self._ids, self._model.get_output_embeddings()
        asked = (ids >= 0).any(-1)
        hidden = output.last_hidden_state[:, -ids.size(1) - 1 : -1][asked]
        weight, bias = (one.full_tensor() if isinstance(one, DTensor) else one for one in (head.weight, head.bias))
        chunks = zip(torch.split(hidden, CHUNK), torch.split(ids[asked].clamp(min=0), CHUNK), strict=True)
        scored = [checkpoint(_log_probs, *chunk, weight, bias, use_reentrant=False) for chunk in chunks]
        found = scored[0].new_zeros(ids.shape)
        self.logps = found.masked_scatter(asked[..., None].expand_as(ids), torch.cat(scored))


def _log_probs(
    hidden: torch.Tensor, ids: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    with maybe_gather_lm_head_ctx(weight, bias):
        logits = torch.nn.functional.linear(hidden.to(weight.dtype), weight, bias)
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return logits.gather(-1, ids).to(exact) - logits.to(exact).logsumexp(-1, keepdim=True)


def averaged(trainer: Any, per_token: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """A scalar out of [B, T] terms, as TRL's loss of the trainer's type averages its own."""
    mask: torch.Tensor = inputs["completion_mask"] * inputs["tool_mask"]
    training = trainer.model.training
    steps: int = trainer.current_gradient_accumulation_steps if training else 1
    totals, tokens = (per_token * mask).sum(-1), mask.sum(-1)
    if trainer.loss_type in ("grpo", "sapo"):
        return (totals / tokens.clamp(min=1)).mean() / steps
    if trainer.loss_type == "luspo":
        return totals.mean() / steps
    if trainer.loss_type == "bnpo":
        return totals.sum() / tokens.sum().clamp(min=1) / steps
    if trainer.loss_type == "dr_grpo":
        longest: int = trainer.max_completion_length
        return totals.sum() / (mask.size(0) * longest) / steps
    share: torch.Tensor = inputs["num_items_in_batch"].clamp(min=1) / trainer.accelerator.num_processes
    return totals.sum() / (share * steps / trainer.args.steps_per_generation if training else share)
