"""Configuration of scores and hints trained together."""

from dataclasses import dataclass, field

from clawrl_trl.trainers.opd_config import OPDConfig


@dataclass
class CombineConfig(OPDConfig):
    r"""
    Configuration class for the [`CombineTrainer`].

    This class includes only the parameters that are specific to the combination. For a full list of training
    arguments, please refer to the [`OPDConfig`] and [`AsyncGRPOConfig`] documentation.

    Parameters:
        w_rl (`float`, *optional*, defaults to `1.0`):
            Weight of the score's advantage.
        w_rl_alone (`float`, *optional*, defaults to `1.0`):
            The same for a reply that no teacher scored: its score is all that it teaches, as with a user who only
            presses thumbs.
        w_opd (`float`, *optional*, defaults to `1.0`):
            Weight of the teacher's advantage.
    """

    w_rl: float = field(default=1.0, metadata={"help": "Weight of the score's advantage."})
    w_rl_alone: float = field(
        default=1.0, metadata={"help": "Weight of the score's advantage where a reply has a score and no teacher."}
    )
    w_opd: float = field(default=1.0, metadata={"help": "Weight of the teacher's advantage."})

    def _check(self) -> None:
        super()._check()
        if self.w_rl < 0 or self.w_opd < 0 or self.w_rl + self.w_opd == 0:
            raise ValueError(f"w_rl and w_opd can't be negative or both 0, got {self.w_rl} and {self.w_opd}")
        if self.w_rl_alone < 0:
            raise ValueError(f"w_rl_alone can't be negative, got {self.w_rl_alone}")
