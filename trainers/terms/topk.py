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

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from clawrl_trl.trainers.terms.lm_head import ForwardPasses, LMHead, map_chunks, select_hidden


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
        # Masked before it is clipped: an empty slot holds anything, minus infinity included.
        gaps = torch.where(known, student - teacher, 0.0).clamp(-clip, clip)
        tail_gap = (log_tail(student, known) - log_tail(teacher, known)).clamp(-clip, clip)
    return (masses * gaps).sum(-1) + (1.0 - masses.sum(-1)) * tail_gap


def log_tail(logps: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """[...] log of the mass that the known entries of `logps` leave, at least the rounding error of 1."""
    inside = torch.where(known, logps, -math.inf).logsumexp(-1)
    return torch.log(-torch.expm1(inside.clamp(max=-torch.finfo(logps.dtype).eps)))


class CandidateLogProbs:
    """Log-probabilities of given tokens, taken out of the forward pass that the loss makes anyway.

    Args:
        model: The causal language model itself, without PEFT or distributed wrappers.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._passes = ForwardPasses(model)
        self.logps: torch.Tensor | None = None
        """[B, T, K] log-probabilities at temperature 1 out of the last pass, 0 in empty slots, with gradient."""

    @contextmanager
    def read(self, ids: torch.Tensor) -> Iterator["CandidateLogProbs"]:
        """Take log-probabilities out of the forward passes inside the block.

        Args:
            ids: [B, T, K] candidates for trained ones of the last T tokens, -1 in an empty slot.
        """
        mask = (ids >= 0).any(-1)

        def score(output: BaseModelOutput, head: LMHead) -> None:
            def log_probs(hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
                logits = head.logits(hidden)
                return logits.gather(-1, ids) - logits.logsumexp(-1, keepdim=True)

            # -1 marks an empty slot and is no index; what is read in its place is masked later.
            scores = map_chunks(log_probs, select_hidden(output, mask), ids[mask].clamp(min=0))
            self.logps = scores.new_zeros(ids.shape).masked_scatter(mask[..., None].expand_as(ids), scores)

        try:
            with self._passes.watch(score):
                yield self
        finally:
            self.logps = None
