"""The pull to the base model, taken over the whole vocabulary at every trained token.

TRL estimates KL(policy || base) from the one token that was sampled. That says nothing of a token that grew likelier
without being sampled, and scores alone flatten a distribution: turning one opening down raises all others, sensible or
not. At one temperature the sum over the vocabulary at each position has the same expectation and no larger variance
(https://huggingface.co/papers/2504.10637), and its gradient pushes back each token by what it gained:

    KL_t = sum over v of p_t(v) (log p_t(v) - log q_t(v))

The divergence holds the policy to all the base does, a new manner's openings among it, so it can't be large. What is
never meant is a token that the base finds next to impossible: it grows likelier because its neighbours did. A penalty
on nothing else, the divergence with a slack of c nats, may be as large as it takes:

    S_t = sum over v of p_t(v) max(0, log p_t(v) - log q_t(v) - c)

It bounds the support of the policy rather than its density, as methods for offline learning do
(https://huggingface.co/papers/1906.00949). Policy p and base q are at temperature 1, as the gate's divergence is.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from accelerate.utils import is_peft_model
from transformers.modeling_outputs import BaseModelOutput

from clawrl_trl.trainers.inputs import Inputs, make_trained_mask
from clawrl_trl.trainers.terms.averaging import average
from clawrl_trl.trainers.terms.lm_head import ForwardPasses, LMHead, map_chunks, select_hidden, unwrap_adapter

if TYPE_CHECKING:
    from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer


class BasePull:
    """A trainer's divergence from its base, out of passes that its loss and its reference make anyway.

    Args:
        trainer: The trainer, which has a base: a reference model, or an adapter to switch off. Its arguments tell the
            coefficients `beta` and `support_coef`, and the slack.

    Raises:
        ValueError: If there is no base.
    """

    def __init__(self, trainer: "AsyncGRPOTrainer") -> None:
        if trainer.ref_model is None and not is_peft_model(trainer.model):
            raise ValueError("without an adapter, and with beta=0, there is no base that support_coef could hold to")
        self._trainer = trainer
        self._coefficients = {"kl": trainer.args.beta, "support": trainer.args.support_coef}
        self._slack = trainer.args.support_slack
        policy, reference = (
            None if model is None else unwrap_adapter(trainer.accelerator.unwrap_model(model))
            for model in (trainer.model, trainer.ref_model)
        )
        self._policy = ForwardPasses(policy)
        self._base = self._policy if reference is None else ForwardPasses(reference)
        self._head: LMHead | None = None  # the base's, if it has one of its own

    def read_base(self, inputs: Inputs) -> torch.Tensor:
        """[N, H] hidden states of the base before each trained token of a micro-batch."""
        mask, states = make_trained_mask(inputs), list[torch.Tensor]()

        def keep(output: BaseModelOutput, head: LMHead) -> None:
            states.append(select_hidden(output, mask).detach())
            self._head = None if self._base is self._policy else head

        with self._base.watch(keep):
            self._trainer.reference_logps(inputs)
        return states[-1]

    @contextmanager
    def divergences(self, inputs: Inputs) -> Iterator[list[torch.Tensor]]:
        """Take [B, T, 2] divergences in nats, without slack and with it, out of each pass of the policy in the block.

        They are 0 where nothing is trained. Without a coefficient the one with slack is left out.
        """
        mask, passes = make_trained_mask(inputs), list[torch.Tensor]()
        slacks = [-math.inf, self._slack] if self._coefficients["support"] else [-math.inf]

        def compare(output: BaseModelOutput, head: LMHead) -> None:
            base_head = self._head or head

            def divergence(hidden: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
                logps = head.logits(hidden).log_softmax(-1)
                # The base is a constant: where it shares its head with the policy, a gradient would flow into that.
                with torch.no_grad():
                    base_logps = base_head.logits(base).log_softmax(-1)
                gaps = logps - base_logps
                return torch.stack([(logps.exp() * clamp_below(gaps, slack)).sum(-1) for slack in slacks], dim=-1)

            per_token = map_chunks(divergence, select_hidden(output, mask), inputs["base_hidden_states"])
            passes.append(per_token.new_zeros(*mask.shape, len(slacks)).masked_scatter(mask[..., None], per_token))

        with self._policy.watch(compare):
            yield passes

    def add_to(self, loss: Callable[[], torch.Tensor], inputs: Inputs) -> torch.Tensor:
        """A loss that makes one pass of the policy, plus the divergences times their coefficients, averaged alike."""
        with self.divergences(inputs) as passes:
            policy_loss = loss()
        # Not strict: without a support coefficient there is only the first of the two.
        divergences = dict(zip(self._coefficients, passes[-1].unbind(-1), strict=False))
        self._log(divergences, make_trained_mask(inputs))
        pull = torch.stack([self._coefficients[name] * value for name, value in divergences.items()]).sum(0)
        return policy_loss + average(self._trainer, pull, inputs)

    def _log(self, divergences: dict[str, torch.Tensor], mask: torch.Tensor) -> None:
        """Log means over the trained tokens of all processes, which all come here at the same point."""
        sums = torch.stack([value.detach().sum().float() for value in (*divergences.values(), mask)])
        *totals, count = self._trainer.accelerator.reduce(sums, reduction="sum").tolist()
        for name, total in zip(divergences, totals, strict=True):
            if count:
                self._trainer.note(name, total / count)


def clamp_below(gaps: torch.Tensor, slack: float) -> torch.Tensor:
    """Log-ratios to the base less a slack, where they exceed it; as they are with a slack of minus infinity."""
    return gaps if slack == -math.inf else (gaps - slack).clamp(min=0.0)
