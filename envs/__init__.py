"""Environments: worlds that talk to the model through the gateway like anyone else.

Names are imported on first use, so that `clawrl_trl.envs.personas` costs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clawrl_trl.envs.actor import GatewayPolicy
    from clawrl_trl.envs.chat import ChatEnv
    from clawrl_trl.envs.evaluate import EvalReport, interactions_to_hold
    from clawrl_trl.envs.personas import Persona, Student, Teacher, persona
    from clawrl_trl.envs.plot import learning_curve

_HOME = {
    "ChatEnv": "chat",
    "EvalReport": "evaluate",
    "GatewayPolicy": "actor",
    "Persona": "personas",
    "Student": "personas",
    "Teacher": "personas",
    "interactions_to_hold": "evaluate",
    "learning_curve": "plot",
    "persona": "personas",
}

__all__ = [
    "ChatEnv",
    "EvalReport",
    "GatewayPolicy",
    "Persona",
    "Student",
    "Teacher",
    "interactions_to_hold",
    "learning_curve",
    "persona",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
