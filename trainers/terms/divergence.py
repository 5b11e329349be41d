"""Estimate of the policy's divergence from the base model, for the gate."""

from typing import TYPE_CHECKING

import torch
from accelerate.utils import is_peft_model

from clawrl_trl.trainers.inputs import Inputs
from clawrl_trl.trainers.vision import select_model_picture_inputs

if TYPE_CHECKING:
    from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer


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
    width = max(1, min(inputs["completion_ids"].size(1), trainer.args.gate_tokens // len(inputs["completion_ids"])))
    pictures, start = select_model_picture_inputs(inputs), inputs["prompt_ids"].size(1) - 1
    # Between the replies of one sequence there may be pictures, of which none may be cut off.
    columns = inputs["completion_ids"].size(1) if pictures else width
    positions = torch.arange(start, start + width + 1, device=inputs["prompt_ids"].device)
    arguments = {
        "input_ids": torch.cat([inputs["prompt_ids"], inputs["completion_ids"][:, :columns]], dim=1),
        "attention_mask": torch.cat([inputs["prompt_mask"], inputs["completion_mask"][:, :columns]], dim=1),
        "logits_to_keep": width + 1 if columns == width else positions,
        "use_cache": False,
        **pictures,
    }

    def log_probs(model: torch.nn.Module) -> torch.Tensor:
        return model(**arguments).logits[:, :-1].float().log_softmax(-1)  # type: ignore[no-any-return]

    training = trainer.model.training
    trainer.model.eval()  # dropout would be measured as divergence
    policy = log_probs(trainer.model)
    if trainer.ref_model is not None:
        base = log_probs(trainer.ref_model)
    else:
        with model.disable_adapter():
            base = log_probs(trainer.model)
    trainer.model.train(training)
    mask = inputs["tool_mask"][:, :width].bool()
    divergence = (policy.exp() * (policy - base)).sum(-1)
    # Sums are reduced and not means, so that every token counts alike however they are divided among processes.
    totals = accelerator.reduce(torch.stack([divergence[mask].sum(), mask.sum().float()]), reduction="sum")
    return float(totals[0] / totals[1]) if totals[1] else None
