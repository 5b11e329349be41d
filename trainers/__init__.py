"""Trainers on TRL: binary RL, on-policy distillation, and both combined.

Users take the names below. A training script also uses `update_log` (a line for each update) and `process_group`. Each
batch of a source (`clawrl_trl.credit`) becomes a policy version (`clawrl_trl.policies`).
"""

from clawrl_trl.trainers.async_grpo_config import AsyncGRPOConfig
from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer
from clawrl_trl.trainers.combine_config import CombineConfig
from clawrl_trl.trainers.combine_trainer import CombineTrainer
from clawrl_trl.trainers.opd_config import OPDConfig
from clawrl_trl.trainers.opd_trainer import OPDTrainer

__all__ = [
    "AsyncGRPOConfig",
    "AsyncGRPOTrainer",
    "CombineConfig",
    "CombineTrainer",
    "OPDConfig",
    "OPDTrainer",
]
