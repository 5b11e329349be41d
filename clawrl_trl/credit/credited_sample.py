"""A sample with the advantages that a method gave it, as trainers take it."""

from dataclasses import dataclass

import numpy as np

from clawrl_trl.credit.sample import FloatArray, TrainingSample


@dataclass(frozen=True, eq=False)
class CreditedSample:
    """A sample with its advantages.

    Args:
        sample: The reply.
        advantages: `[T]`, NaN on tokens that get no credit and are left out of the loss.
        distilled: `[T]` weight of the teacher's term over the sample's candidates, 0 where there is none. Default:
            none anywhere.
    """

    sample: TrainingSample
    advantages: FloatArray
    distilled: FloatArray | None = None

    @property
    def tokens(self) -> int:
        """Number of tokens of its prompt and its reply."""
        return len(self.sample.prompt_ids) + len(self.sample.completion_ids)

    @property
    def trained_tokens(self) -> int:
        """Number of tokens the loss counts."""
        return int(np.isfinite(self.effective_advantages).sum())

    @property
    def effective_advantages(self) -> FloatArray:
        """`[T]` advantages with NaN on tokens that the completion mask excludes."""
        mask = self.sample.completion_mask
        return self.advantages if mask is None else np.where(mask, self.advantages, np.nan)

    @property
    def effective_distilled(self) -> FloatArray:
        """`[T]` weights of the teacher's term, 0 on tokens that are not trained."""
        if self.distilled is None:
            return np.zeros(len(self.advantages))
        return np.where(np.isfinite(self.effective_advantages), self.distilled, 0.0)
