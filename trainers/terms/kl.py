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
from typing import Any

import torch
from accelerate.utils import is_peft_model

from clawrl_trl.trainers.collate import Inputs, trained
from clawrl_trl.trainers.terms.averaging import averaged
from clawrl_trl.trainers.terms.lm_head import Head, Passes, bare, by_chunk, last

PURPOSE = "kl_estimator 'exact'"


class BasePull:
    """A trainer's divergence from its base, out of passes that its loss and its reference make anyway.

    Args:
        trainer: The trainer, which has a base: a reference model, or an adapter to switch off. Its arguments tell the
            coefficients `beta` and `support_coef`, and the slack.

    Raises:
        ValueError: If there is no base, or logits are more than hidden states times the head.
    """

    def __init__(self, trainer: Any) -> None:
        if trainer.ref_model is None and not is_peft_model(trainer.model):
            raise ValueError("without an adapter, and with beta=0, there is no base that support_coef could hold to")
        self._trainer = trainer
        self._coefficients = {"kl": trainer.args.beta, "support": trainer.args.support_coef}
        self._slack = trainer.args.support_slack
        policy, reference = (
            None if one is None else bare(trainer.accelerator.unwrap_model(one))
            for one in (trainer.model, trainer.ref_model)
        )
        self._policy = Passes(policy, PURPOSE)
        self._base = self._policy if reference is None else Passes(reference, PURPOSE)
        self._head: Head | None = None  # the base's, if it has one of its own

    def read_base(self, inputs: Inputs) -> torch.Tensor:
        """[N, H] hidden states of the base before each trained token of a micro-batch."""
        asked, found = trained(inputs), []

        def keep(hidden: torch.Tensor, head: Head) -> None:
            found.append(last(hidden, asked).detach())
            self._head = None if self._base is self._policy else head

        with self._base.shown_to(keep):
            self._trainer.reference_logps(inputs)
        return found[-1]

    @contextmanager
    def divergences(self, inputs: Inputs) -> Iterator[list[torch.Tensor]]:
        """Take [B, T, 2] divergences in nats, without slack and with it, out of each pass of the policy in the block.

        They are 0 where nothing is trained. Without a coefficient the one with slack is left out.
        """
        asked, found = trained(inputs), list[torch.Tensor]()
        slacks = [-math.inf, self._slack] if self._coefficients["support"] else [-math.inf]

        def compare(hidden: torch.Tensor, head: Head) -> None:
            base_head = self._head or head

            def divergence(hidden: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
                logps = head.logits(hidden).log_softmax(-1)
                with torch.no_grad():
                    wanted = base_head.logits(base).log_softmax(-1)
                gaps = logps - wanted
                return torch.stack([(logps.exp() * beyond(gaps, slack)).sum(-1) for slack in slacks], dim=-1)

            per_token = by_chunk(divergence, last(hidden, asked), inputs["base_hidden_states"])
            found.append(per_token.new_zeros(*asked.shape, len(slacks)).masked_scatter(asked[..., None], per_token))

        with self._policy.shown_to(compare):
            yield found

    def added(self, loss: Callable[[], torch.Tensor], inputs: Inputs) -> torch.Tensor:
        """A loss that makes one pass of the policy, plus the divergences times their coefficients, averaged alike."""
        with self.divergences(inputs) as found:
            policy_loss = loss()
        measured = dict(zip(self._coefficients, found[-1].unbind(-1), strict=False))
        self._note(measured, trained(inputs))
        pull = torch.stack([self._coefficients[name] * value for name, value in measured.items()]).sum(0)
        return policy_loss + averaged(self._trainer, pull, inputs)

    def _note(self, measured: dict[str, torch.Tensor], asked: torch.Tensor) -> None:
        """Log means over the trained tokens of all processes, which all come here at the same point."""
        sums = torch.stack([value.detach().sum().float() for value in (*measured.values(), asked)])
        *totals, count = self._trainer.accelerator.reduce(sums, reduction="sum").tolist()
        for name, total in zip(measured, totals, strict=True):
            if count:
                self._trainer._note(name, total / count)


def beyond(gaps: torch.Tensor, slack: float) -> torch.Tensor:
    """Log-ratios to the base less a slack, where they exceed it; as they are with a slack of minus infinity."""
    return gaps if slack == -math.inf else (gaps - slack).clamp(min=0.0)
