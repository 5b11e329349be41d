"""The terms that TRL adds to a loss as means over a pass: the entropy bonus and the experts' auxiliary loss."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clawrl_trl.trainers.compat import collect_metrics
from clawrl_trl.trainers.inputs import Inputs
from clawrl_trl.trainers.terms.custom_loss import ROW_MEAN_LOSSES

if TYPE_CHECKING:
    from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer


@contextmanager
def share_bonuses(trainer: "AsyncGRPOTrainer", inputs: Inputs) -> Iterator[None]:
    """Let both count by the pass's share of the step's tokens inside the block, so that all passes make one mean.

    With most types the whole loss is weighed by a share of the step afterwards, and these terms with it. With the
    others it is a part of the step's sum already, and a mean that every pass adds whole would count once for each.
    The coefficient is logged as it was given, and the policy's loss as what the pass adds to that of the micro-batch.
    """
    if trainer.use_adaptive_entropy:  # its micro-batches are one pass
        yield
        return
    weight = weigh_loss(trainer.loss_type, inputs)
    share = inputs["token_share"] / weight if weight else 0.0
    before = trainer.entropy_coef, trainer.router_aux_loss_coef
    trainer.entropy_coef, trainer.router_aux_loss_coef = (value * share for value in before)
    try:
        with collect_metrics(trainer) as metrics:
            yield
    finally:
        trainer.entropy_coef, trainer.router_aux_loss_coef = before
    # TRL logs what it sees: the pass's share of the coefficient, and the policy's loss before it is weighed.
    logged = {"entropy_coef": [before[0]], "policy_loss": [value * weight for value in metrics["policy_loss"]]}
    for name, values in metrics.items():
        for value in logged.get(name, values):
            trainer.note(name, value)


def weigh_loss(loss_type: str, inputs: Inputs) -> float:
    """The weight of a pass's loss in the step: its share of tokens or rows where the loss is a mean over them."""
    if loss_type == "bnpo":
        return inputs["token_share"]
    return inputs["row_share"] if loss_type in ROW_MEAN_LOSSES else 1.0
