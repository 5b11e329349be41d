"""Credit of a batch: what its samples train, and why the others train nothing."""

import logging
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from clawrl_trl.credit import CreditedSample, SampleBatch, TrainingSample
from clawrl_trl.credit.sample import FloatArray
from clawrl_trl.credit.source import find_excess
from clawrl_trl.trainers.async_grpo_config import AsyncGRPOConfig
from clawrl_trl.trainers.compat import record_metric
from clawrl_trl.trainers.micro_batch import CreditedBatch, measure_rows
from clawrl_trl.trainers.versioned_trainer import VersionedGRPOTrainer
from clawrl_trl.trainers.vision import Vision

logger = logging.getLogger(__name__)


class CreditingGRPOTrainer(VersionedGRPOTrainer):
    """Trainer that turns a source's samples into rows with their advantages; see [`AsyncGRPOTrainer`]."""

    args: AsyncGRPOConfig
    vision: Vision | None

    @abstractmethod
    def advantages(self, samples: Sequence[TrainingSample]) -> list[FloatArray]:
        """Per-token advantages of one batch, as in [`AsyncGRPOTrainer`]."""

    def distilled(self, sample: TrainingSample) -> FloatArray | None:
        """[T] weight of a term that the loss takes from the teacher's candidates; `None` without one."""
        return None

    def credit(self, samples: Sequence[TrainingSample]) -> list[CreditedSample]:
        """The samples of one batch with their weighted advantages, those included that train nothing."""
        credited = []
        for sample, advantages in zip(samples, self.advantages(samples), strict=True):
            # A token whose sampling probability is 0 has no importance ratio.
            known = np.isfinite(sample.logprobs) & self._can_be_shown(sample)
            distilled = self.distilled(sample)
            credited.append(
                CreditedSample(
                    sample,
                    np.where(known, advantages * sample.weight, np.nan),
                    None if distilled is None else distilled * sample.weight,
                )
            )
        return credited

    def credit_batch(self, batch: SampleBatch) -> CreditedBatch:
        """A batch as it is trained: its credited samples without those that train nothing."""
        credited = self.credit(batch.samples)
        excess = [find_excess(row.tokens, self.args.max_sample_tokens) for row in credited]
        dropped = batch.dropped.get("too long", 0) + sum(reason is not None for reason in excess)
        if dropped:
            self.note("dropped/too_long", dropped)
        reasons = [
            reason or ("" if row.trained_tokens else "nothing to train")
            for row, reason in zip(credited, excess, strict=True)
        ]
        # Row by row: samples of a list may have no ids, and none is left out for another's reason.
        rows = [row for row, reason in zip(credited, reasons, strict=True) if not reason]
        ids = [row.sample.sample_id for row in credited]
        left_out = {name: reason for name, reason in zip(ids, reasons, strict=True) if name and reason}
        for name, value in measure_rows(rows, self.policy_version).items():
            self.note(name, value)
        return CreditedBatch(batch, rows, left_out)

    def _can_be_shown(self, sample: TrainingSample) -> bool:
        if not sample.images:
            return True
        blind = "the model, or its processor, sees no pictures"
        fault = blind if self.vision is None else self.vision.find_fault(sample)
        if fault:
            logger.warning("sample %s is not trained: %s", sample.sample_id, fault)
        return fault is None

    def note(self, name: str, value: float) -> None:
        """Add a value to those of which the mean is logged under a name."""
        record_metric(self, name, value)
