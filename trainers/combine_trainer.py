"""Scores and hints together: what was good or bad, and what would have been better."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from clawrl_trl.credit import TrainingSample, combine
from clawrl_trl.credit.sample import FloatArray
from clawrl_trl.trainers.async_grpo_config import AsyncGRPOConfig
from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer
from clawrl_trl.trainers.combine_config import CombineConfig
from clawrl_trl.trainers.opd_trainer import OPDTrainer


class CombineTrainer(OPDTrainer):
    """
    Trainer for Binary RL and on-policy distillation combined, as in
    [OpenClaw-RL](https://huggingface.co/papers/2603.10165).

    The advantage of a token is `w_rl A^rl_t + w_opd A^opd_t`. Either term may be absent: a reply with a score and no
    hint is trained by its score alone, which then weighs `w_rl_alone`, one with a hint and no score by the teacher
    alone. With `opd_top_k` the teacher's part is `w_opd` times a term of the loss, as in [`OPDTrainer`].

    Args and usage are those of [`AsyncGRPOTrainer`].
    """

    _tag_names: ClassVar[list[str]] = ["trl", "clawrl-trl", "combine"]
    _name = "Combine"

    method: ClassVar[str] = "combine"
    config_class: ClassVar[type[AsyncGRPOConfig]] = CombineConfig
    needs: ClassVar[tuple[str, ...]] = ("score", "teacher")

    args: CombineConfig

    @property
    def teacher_weight(self) -> float:
        """`w_opd`."""
        return self.args.w_opd

    def advantages(self, samples: Sequence[TrainingSample]) -> list[FloatArray]:
        """Weighted sum of both terms, token by token; NaN where both are absent."""
        scored = AsyncGRPOTrainer.advantages(self, samples)
        return [self._combine(sample, rl) for sample, rl in zip(samples, scored, strict=True)]

    def _combine(self, sample: TrainingSample, rl: ArrayLike) -> FloatArray:
        gap = self.gap(sample)
        w_rl = self.args.w_rl if np.isfinite(gap).any() else self.args.w_rl_alone
        return combine(rl, gap, w_rl=w_rl, w_opd=self.args.w_opd, length=len(sample.completion_ids))
