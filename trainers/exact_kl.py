"""The pull to the base model, taken over the whole vocabulary at every trained token.

TRL estimates KL(policy || base) from the one token that was sampled. That says nothing of a token that grew likelier
without being sampled, and scores alone flatten a distribution: turning one opening down raises all others, sensible or
not. At one temperature the sum over the vocabulary at each position has the same expectation and no larger variance
(https://huggingface.co/papers/2504.10637), and its gradient pushes back each token by what it gained:

    KL_t = sum over v of p_t(v) (log p_t(v) - log q_t(v))

Policy p and base q are at temperature 1, as the gate's divergence is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from clawrl_trl.trainers.averaging import averaged
from clawrl_trl.trainers.collate import Inputs, trained
from clawrl_trl.trainers.head import Head, Passes, bare, by_chunk, last

PURPOSE = "kl_estimator 'exact'"


class BasePull:
    """A trainer's divergence from its base, out of passes that its loss and its reference make anyway.

    Args:
        trainer: The trainer, which has a base: a reference model, or an adapter to switch off.

    Raises:
        ValueError: If logits are more than hidden states times the head.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
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
        """Take [B, T] divergences in nats, 0 where not trained, out of each pass of the policy inside the block."""
        asked, found = trained(inputs), list[torch.Tensor]()

        def compare(hidden: torch.Tensor, head: Head) -> None:
            base_head = self._head or head

            def divergence(hidden: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
                logits = head.logits(hidden)
                with torch.no_grad():
                    gaps = logits.log_softmax(-1) - base_head.logits(base).log_softmax(-1)
                return (logits.softmax(-1) * gaps).sum(-1)  # probabilities sum to 1: constant gaps, the same gradient

            per_token = by_chunk(divergence, last(hidden, asked), inputs["base_hidden_states"])
            found.append(per_token.new_zeros(asked.shape).masked_scatter(asked, per_token))

        with self._policy.shown_to(compare):
            yield found

    def added(self, loss: Callable[[], torch.Tensor], inputs: Inputs, beta: float) -> torch.Tensor:
        """A loss that makes one pass of the policy, plus `beta` times the divergence, averaged as its other terms."""
        with self.divergences(inputs) as found:
            policy_loss = loss()
        kl = found[-1]
        sums = torch.stack([kl.detach().sum().float(), trained(inputs).sum().float()])
        total, count = self._trainer.accelerator.reduce(sums, reduction="sum").tolist()
        if count:
            self._trainer._note("kl", total / count)
        return policy_loss + beta * averaged(self._trainer, kl, inputs)
