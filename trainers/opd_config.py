"""Configuration of on-policy distillation from a teacher that read a hint."""

from dataclasses import dataclass, field

from clawrl_trl.trainers.async_grpo_config import AsyncGRPOConfig


@dataclass
class OPDConfig(AsyncGRPOConfig):
    r"""
    Configuration class for the [`OPDTrainer`].

    This class includes only the parameters that are specific to on-policy distillation. For a full list of training
    arguments, please refer to the [`AsyncGRPOConfig`] documentation.

    Parameters:
        opd_clip (`float`, *optional*, defaults to `2.0`):
            Bound c on the teacher's gap `T_t - S_t`, in nats per token; above 0.
    """

    opd_clip: float = field(
        default=2.0, metadata={"help": "Bound on the gap between teacher and policy, in nats per token."}
    )

    def _check(self) -> None:
        super()._check()
        if not self.opd_clip > 0:
            raise ValueError(f"opd_clip must be above 0, got {self.opd_clip}")
