"""One labelled message in its context."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """One labelled message in its context.

    Args:
        request, response, message: What was asked, what was replied, what the owner said next.
        label: -1 objection, 0 says nothing of the reply, +1 approval or moving on.
        group: Examples of one group are never on both sides of a cross-validation split.
        weight: Its share in the loss.
        probabilities: Of -1, 0 and +1, which are learnt in place of the label. Default: the label is.
    """

    request: str
    response: str
    message: str
    label: int
    group: str
    weight: float
    probabilities: tuple[float, float, float] | None = None

    @property
    def targets(self) -> tuple[float, float, float]:
        """What is learnt: probabilities of -1, 0 and +1."""
        return self.probabilities or (float(self.label == -1), float(self.label == 0), float(self.label == 1))

    @property
    def texts(self) -> tuple[str, str, str]:
        """Request, response, message."""
        return self.request, self.response, self.message
