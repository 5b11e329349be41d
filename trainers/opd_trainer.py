"""On-policy distillation: the teacher is the base model that has read a hint from the user's next message."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from clawrl_trl.credit import TrainingSample, opd
from clawrl_trl.credit.sample import FloatArray
from clawrl_trl.trainers.async_grpo_config import AsyncGRPOConfig
from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer
from clawrl_trl.trainers.opd_config import OPDConfig


class OPDTrainer(AsyncGRPOTrainer):
    """
    Trainer for on-policy distillation, as in [OpenClaw-RL](https://huggingface.co/papers/2603.10165).

    The advantage of a token is `clip(T_t - S_t, -c, c)`: how much more likely the teacher, which read a hint,
    finds it than the policy that sampled it, both at temperature 1. Tokens whose gap is not known are left out.

    Args and usage are those of [`AsyncGRPOTrainer`].
    """

    _tag_names: ClassVar[list[str]] = ["trl", "clawrl-trl", "opd"]
    _name = "OPD"

    config_class: ClassVar[type[AsyncGRPOConfig]] = OPDConfig
    needs: ClassVar[tuple[str, ...]] = ("teacher",)

    args: OPDConfig

    def advantages(self, samples: Sequence[TrainingSample]) -> list[FloatArray]:
        """Per-token gaps to the teacher; NaN where there is none."""
        return [self.gap(sample) for sample in samples]

    def gap(self, sample: TrainingSample) -> FloatArray:
        """[T] clipped gap to the teacher, all NaN when the sample has no teacher."""
        gap = opd(sample.teacher_logprobs, sample.plain_at_temperature_one, self.args.opd_clip)
        if gap is None or not np.isfinite(gap).any():
            return np.full(len(sample.completion_ids), np.nan)
        self._note("opd/gap", float(np.nanmean(gap)))
        self._note("opd/clipped", float(np.mean(np.abs(gap[np.isfinite(gap)]) >= self.args.opd_clip)))
        return gap
