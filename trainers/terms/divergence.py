"""Estimate of the policy's divergence from the base model, for the gate.

The hidden states of both are compared a chunk at a time, so that no more logits than a chunk's are held: over a
vocabulary of 151,936 the logits of 1,024 tokens whole would take 0.6 GiB for each of their five copies.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from accelerate.utils import is_peft_model
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from clawrl_trl.trainers.inputs import Inputs, make_trained_mask
from clawrl_trl.trainers.terms.lm_head import (
    ForwardPasses,
    LMHead,
    map_chunks,
    select_hidden,
    unwrap_adapter,
)

if TYPE_CHECKING:
    from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer


class GateBase:
    """Keeps the base's hidden states of the gate's tokens out of the passes that a loss makes of the base.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: "AsyncGRPOTrainer") -> None:
        self._tokens = trainer.args.gate_tokens
        self._passes = ForwardPasses(unwrap_adapter(trainer.accelerator.unwrap_model(trainer.model)))

    @classmethod
    def of(cls, trainer: "AsyncGRPOTrainer") -> "GateBase | None":
        """That of a trainer whose loss has the gate's base; `None` where the gate must ask it itself."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        # A model divided among processes needs as many passes in each of them; an adapter "ref" is another base.
        divided = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
        if trainer.ref_model is not None or not is_peft_model(model) or divided or not trainer.args.disable_dropout:
            return None
        return None if "ref" in model.peft_config else cls(trainer)

    @contextmanager
    def keep(self, inputs: Inputs) -> Iterator[None]:
        """Add `gate_hidden_states` to a micro-batch's inputs if the block makes a pass of the base."""
        mask = select_gate_tokens(inputs, self._tokens)

        def look(output: BaseModelOutput, head: LMHead) -> None:
            inputs["gate_hidden_states"] = select_hidden(output, mask).detach()

        with self._passes.watch(look):
            yield


def select_gate_tokens(inputs: Inputs, tokens: int) -> torch.Tensor:
    """[B, T] bools: trained tokens among the first of each reply, `tokens` in all at most."""
    mask = make_trained_mask(inputs)
    mask[:, max(1, tokens // len(mask)) :] = False
    return mask


@torch.no_grad()
def compute_kl_to_base(trainer: "AsyncGRPOTrainer", inputs: Inputs) -> float | None:
    """Exact KL(policy || base) on a micro-batch's own replies, at temperature 1; called on every process.

    Args:
        trainer: The trainer. Its `gate_tokens` bounds the work: trained tokens per process.
        inputs: The micro-batch.

    Returns:
        Mean over the trained tokens of all processes, in nats; `None` without such tokens or a base to compare with.
    """
    accelerator, model = trainer.accelerator, trainer.accelerator.unwrap_model(trainer.model)
    if not is_peft_model(model) and trainer.ref_model is None:
        return None
    mask = select_gate_tokens(inputs, trainer.args.gate_tokens)
    training = trainer.model.training
    trainer.model.eval()  # dropout would be measured as divergence
    divergence = _compare_hidden(trainer, inputs, mask)
    trainer.model.train(training)
    # Sums are reduced and not means, so that every token counts alike however they are divided among processes.
    totals = accelerator.reduce(torch.stack([divergence.sum(), mask.sum().float()]), reduction="sum")
    return float(totals[0] / totals[1]) if totals[1] else None


def _cut(inputs: Inputs, mask: torch.Tensor) -> Inputs:
    """A micro-batch's inputs without the columns behind the last token that counts, which alone are trained."""
    width = int(mask.any(0).nonzero().max()) + 1 if mask.any() else 1
    # Between the tokens of a row with pictures none may be cut off.
    columns = mask.size(1) if "pixel_values" in inputs else width
    cut = inputs.copy()
    cut["completion_ids"] = inputs["completion_ids"][:, :columns]
    cut["completion_mask"] = inputs["completion_mask"][:, :columns]
    cut["tool_mask"] = mask[:, :columns].long()
    return cut


@contextmanager
def use_base(trainer: "AsyncGRPOTrainer") -> Iterator[torch.nn.Module]:
    """The gate's base inside the block: the reference model, or the policy without its adapter."""
    if trainer.ref_model is not None:
        yield trainer.ref_model
        return
    with trainer.accelerator.unwrap_model(trainer.model).disable_adapter():
        yield trainer.model


def _sum_gaps(policy: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """[N] KL(policy || base) in nats of [N, V] logits."""
    logps = policy.log_softmax(-1)
    return (logps.exp() * (logps - base.log_softmax(-1))).sum(-1)


def _compare_hidden(trainer: "AsyncGRPOTrainer", inputs: Inputs, mask: torch.Tensor) -> torch.Tensor:
    """[N] divergences of the tokens that count, in chunks out of the hidden states of both."""
    policy: PreTrainedModel = unwrap_adapter(trainer.accelerator.unwrap_model(trainer.model))
    base = policy if trainer.ref_model is None else unwrap_adapter(trainer.accelerator.unwrap_model(trainer.ref_model))
    cut = _cut(inputs, mask)
    mask = cut["tool_mask"].bool()
    kept: list[tuple[torch.Tensor, LMHead | None]] = []
    divergences: list[torch.Tensor] = []

    def keep(output: BaseModelOutput, head: LMHead) -> None:
        kept.append((select_hidden(output, mask), None if base is policy else head))

    def compare(output: BaseModelOutput, head: LMHead) -> None:
        states, own_head = kept[-1]
        # Inside the pass weights that are divided among the processes are whole, the base's no longer.
        base_head = own_head or head

        def diverge(policy_states: torch.Tensor, base_states: torch.Tensor) -> torch.Tensor:
            return _sum_gaps(head.logits(policy_states), base_head.logits(base_states))

        divergences.append(map_chunks(diverge, select_hidden(output, mask), states))

    if "gate_hidden_states" in inputs:
        kept.append((inputs["gate_hidden_states"], None))
    else:
        with ForwardPasses(base).watch(keep), use_base(trainer) as model:
            trainer.show_states(model, cut)
    with ForwardPasses(policy).watch(compare):
        trainer.show_states(trainer.model, cut)
    return divergences[-1]
