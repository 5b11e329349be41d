"""Importance weights: what a token sampled by an older policy version counts for the current one.

A weight that carries no gradient and multiplies the policy term is the same as one on the advantage, so the weights
go there and the loss stays TRL's.
"""

import torch

from clawrl_trl.trainers.inputs import Inputs


def reweigh(inputs: Inputs, current: torch.Tensor, *, mode: str, cap: float) -> dict[str, float]:
    """Multiply a micro-batch's advantages by `exp(current - behaviour)`, bounded, token by token.

    Args:
        inputs: The micro-batch; its `advantages` are replaced.
        current: [B, T] log-probabilities under the current policy.
        mode: `"truncate"` caps the weights, `"mask"` leaves out tokens whose weight is outside `[1 / cap, cap]`.
        cap: Upper bound, above 1.

    Returns:
        What to log; empty when no token is trained.
    """
    trained = inputs["tool_mask"].bool()
    # Masked before the exponential: padding may hold anything, and an infinity times 0 is NaN.
    ratio = torch.exp(torch.where(trained, current - inputs["behaviour_logps"], 0.0))
    if mode == "truncate":
        weight = ratio.clamp(max=cap)
    else:
        weight = torch.where((ratio >= 1 / cap) & (ratio <= cap), ratio, 0.0)
    inputs["advantages"] = inputs["advantages"] * weight
    if not trained.any():
        return {}
    return {
        "importance/mean": float(ratio[trained].mean()),
        "importance/max": float(ratio[trained].max()),
        "importance/bounded": float((weight != ratio)[trained].float().mean()),
    }
