"""Configuration of on-policy distillation from a teacher that read a hint."""

from dataclasses import dataclass, field

from clawrl_trl.trainers.async_grpo_config import AsyncGRPOConfig
from clawrl_trl.trainers.experimental_config import ExperimentalTeacherConfig


@dataclass
class OPDConfig(ExperimentalTeacherConfig, AsyncGRPOConfig):
    r"""
    Configuration class for the [`OPDTrainer`].

    This class includes only the parameters that are specific to on-policy distillation. For a full list of training
    arguments, please refer to the [`AsyncGRPOConfig`] documentation; what was tried with the bundled model alone is in
    [`~experimental_config.ExperimentalTeacherConfig`].

    Parameters:
        opd_clip (`float`, *optional*, defaults to `2.0`):
            Bound c on the teacher's gap `T_t - S_t`, in nats per token; above 0. With `opd_top_k` it bounds the gap of
            each candidate and of the tail; infinity leaves the KL divergence as it is.
        opd_top_k (`int`, *optional*, defaults to `0`):
            Number K of the policy's most likely tokens whose probabilities are compared with the teacher's at each
            position, all others taken together. 0 compares the sampled token alone. A judge that serves the run must
            ask the teacher for as many (`--teacher_top_k`); samples without candidates then have no teacher.
    """

    opd_clip: float = field(
        default=2.0, metadata={"help": "Bound on the gap between teacher and policy, in nats per token."}
    )

    opd_top_k: int = field(
        default=0,
        metadata={
            "help": "Most likely tokens of the policy that are compared with the teacher at each position, all others "
            "taken together (KL divergence); 0 compares the sampled token alone."
        },
    )

    def _check(self) -> None:
        super()._check()
        if self.opd_top_k < 0:
            raise ValueError(f"opd_top_k can't be negative, got {self.opd_top_k}")
        if not self.opd_clip > 0:
            raise ValueError(f"opd_clip must be above 0, got {self.opd_clip}")
