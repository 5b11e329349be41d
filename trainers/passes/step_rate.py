"""The learning rate of a step with a part of its samples.

Adam divides a gradient by its own size, so a smaller gradient makes no smaller step; the rate does.
"""

from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class StepRate(TrainerCallback):  # type: ignore[misc]
    """Scales the learning rates for one step, and restores them after it."""

    def __init__(self) -> None:
        self._rates: list[tuple[dict[str, float], float]] = []

    def scale(self, optimizer: Optimizer, share: float) -> None:
        """Multiply the rates of the step that is under way; called again within it, nothing changes."""
        if self._rates or share == 1.0:
            return
        self._rates = [(group, group["lr"]) for group in optimizer.param_groups]
        for group, rate in self._rates:
            group["lr"] = rate * share

    def restore(self) -> None:
        """Set the rates to what they were before the step."""
        for group, rate in self._rates:
            group["lr"] = rate
        self._rates = []

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.restore()
