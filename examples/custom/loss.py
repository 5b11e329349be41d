"""An own loss: the trainer's, plus a small pull towards short replies.

accelerate launch examples/train.py --custom_loss_function_path examples/custom/loss.py:brevity
"""

from collections.abc import Callable
from typing import Any

import torch

WEIGHT = 0.01


def brevity(
    trainer: Any,
    model: Any,
    inputs: dict[str, torch.Tensor],
    default_loss: Callable[[Any, dict[str, torch.Tensor]], torch.Tensor],
) -> torch.Tensor:
    """Add the mean log-probability of going on where the reply could have ended.

    Args:
        trainer (`AsyncGRPOTrainer`): The trainer that computes the loss.
        model (`PreTrainedModel`): The policy being trained.
        inputs (`dict`): The collated batch: `prompt_ids` [B, P], `completion_ids` [B, T], `advantages` [B, T], ...
            `tool_mask` [B, T] is 1 on the tokens to train; it may be 0 everywhere.
        default_loss (`Callable`): The trainer's own loss, of `model` and `inputs`; a scalar.

    Returns:
        `torch.Tensor`: A scalar to minimise; the step takes the mean over its rows, however they are divided.
    """
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    kept = inputs["completion_ids"].size(1)
    logits = model(input_ids=ids, attention_mask=mask).logits[:, -kept - 1 : -1]
    end = trainer.processing_class.eos_token_id
    log_end = logits.float().log_softmax(-1)[..., end]
    weights = inputs["tool_mask"].to(log_end.dtype)
    return default_loss(model, inputs) - WEIGHT * (log_end * weights).sum() / weights.sum().clamp(min=1.0)
