"""On-policy distillation: the teacher is the base model that has read a hint from the user's next message."""

import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from clawrl_trl.credit import CreditedSample, TrainingSample, accepted_prefix, opd
from clawrl_trl.credit.sample import FloatArray
from clawrl_trl.trainers.async_grpo_config import AsyncGRPOConfig
from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer
from clawrl_trl.trainers.inputs import Inputs, make_trained_mask
from clawrl_trl.trainers.opd_config import OPDConfig
from clawrl_trl.trainers.terms.averaging import average
from clawrl_trl.trainers.terms.lm_head import unwrap_adapter
from clawrl_trl.trainers.terms.topk import CandidateLogProbs, partition_kl

logger = logging.getLogger(__name__)


class OPDTrainer(AsyncGRPOTrainer):
    """
    Trainer for on-policy distillation, as in [OpenClaw-RL](https://huggingface.co/papers/2603.10165).

    The advantage of a token is `clip(T_t - S_t, -c, c)`: how much more likely the teacher, which read a hint,
    finds it than the policy that sampled it, both at temperature 1. Tokens whose gap is not known are left out.

    With `opd_top_k` the advantage gives way to a term of the loss: the KL divergence of the policy from the teacher,
    over the policy's most likely tokens and all others together (see `partition_kl`), at temperature 1 and for the
    policy as it is now, so that it needs no importance weight. It is averaged as the loss type averages its own terms.

    Args and usage are those of [`AsyncGRPOTrainer`].
    """

    _tag_names: ClassVar[list[str]] = ["trl", "clawrl-trl", "opd"]
    _name = "OPD"

    method: ClassVar[str] = "opd"
    config_class: ClassVar[type[AsyncGRPOConfig]] = OPDConfig
    needs: ClassVar[tuple[str, ...]] = ("teacher",)

    args: OPDConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        model = unwrap_adapter(self.accelerator.unwrap_model(self.model))
        self._candidates = CandidateLogProbs(model) if self.args.opd_top_k else None

    # ---- Credit ----

    @property
    def teacher_weight(self) -> float:
        """Weight of the teacher beside other signals."""
        return 1.0

    def credit(self, samples: Sequence[TrainingSample]) -> list[CreditedSample]:
        """As in [`AsyncGRPOTrainer`], with at most `opd_top_k` candidates for each token."""
        unheard = sum(sample.teacher_logprobs is not None and sample.topk_ids is None for sample in samples)
        if self.args.opd_top_k and unheard:
            logger.warning(
                "%d of %d samples have a teacher but no candidates, so the teacher is not heard: serve the run with "
                "--teacher_top_k %d",
                *(unheard, len(samples), self.args.opd_top_k),
            )
        return super().credit([sample.with_candidates(self.args.opd_top_k) for sample in samples])

    def advantages(self, samples: Sequence[TrainingSample]) -> list[FloatArray]:
        """Per-token gaps to the teacher; NaN where there is none."""
        return [self.gap(sample) for sample in samples]

    def gap(self, sample: TrainingSample) -> FloatArray:
        """[T] clipped gap to the teacher, NaN where there is none; 0 where the loss has a term of its own instead."""
        if self.args.opd_top_k:
            # 0 and not NaN: the token must stay in the mask for the term of the loss, and add nothing to TRL's.
            return np.where(sample.covered, 0.0, np.nan)
        gap = opd(sample.teacher_logprobs, sample.plain_at_temperature_one, self.args.opd_clip)
        if gap is None or not np.isfinite(gap).any():
            return np.full(len(sample.completion_ids), np.nan)
        self.note("opd/gap", float(np.nanmean(gap)))
        self.note("opd/clipped", float(np.mean(np.abs(gap[np.isfinite(gap)]) >= self.args.opd_clip)))
        return gap * self._weigh_prefix(sample)

    def distilled(self, sample: TrainingSample) -> FloatArray | None:
        """[T] weight of the KL divergence to the teacher; `None` without candidates."""
        if not self.args.opd_top_k:
            return None
        return np.where(sample.covered, self.teacher_weight * self._weigh_prefix(sample), 0.0)

    def _weigh_prefix(self, sample: TrainingSample) -> FloatArray:
        """[T] probability that speculative sampling accepts every earlier token; 1 unless that is asked for."""
        length = len(sample.completion_ids)
        if not self.args.opd_accepted_prefix:
            return np.ones(length)
        return accepted_prefix(sample.teacher_logprobs, sample.plain_at_temperature_one, length)

    # ---- Loss ----

    def default_loss(self, model: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        """TRL's loss, and with `opd_top_k` the KL divergence to the teacher, out of one forward pass."""
        if self._candidates is None:
            return super().default_loss(model, inputs)
        sums = torch.zeros(3, device=self.accelerator.device)
        if "topk_ids" in inputs:
            # Tokens that count nothing are left out of the products with the head, which cost most.
            counts = (inputs["topk_weight"] != 0) & make_trained_mask(inputs)
            ids = inputs["topk_ids"].masked_fill(~counts[..., None], -1)
            with self._candidates.read(ids) as scored:
                loss = super().default_loss(model, inputs)
                assert scored.logps is not None
                term, sums = self._divergence(scored.logps, ids, inputs)
            loss = loss + term
        else:
            loss = super().default_loss(model, inputs)
        self._log_divergence(sums)
        return loss

    def _divergence(
        self, student: torch.Tensor, ids: torch.Tensor, inputs: Inputs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The term of the loss, and sums over positions of divergence, candidates' mass and 1."""
        known, weight = ids >= 0, inputs["topk_weight"]
        divergence = partition_kl(student, inputs["topk_logps"].to(student.dtype), known, self.args.opd_clip)
        with torch.no_grad():
            mass = torch.where(known, student, -torch.inf).exp()
            sums = torch.stack([divergence.sum(), mass.sum(), known.any(-1).sum()]).float()
        return average(self, divergence * weight, inputs), sums

    def _log_divergence(self, sums: torch.Tensor) -> None:
        """Log means over the positions of all processes, which all come here at the same point."""
        divergence, mass, count = self.accelerator.reduce(sums, reduction="sum").tolist()
        if count:
            self.note("opd/kl", divergence / count)
            self.note("opd/mass", mass / count)
