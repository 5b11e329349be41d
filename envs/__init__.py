"""Environments: TorchRL environments in which a model works on tasks, as a client of the gateway.

The names below are for users; each is imported on first use, so that importing this package loads no torch. The
packages: `base` (what every environment is made of), `chat`, `terminal`, `gui`, `swe`, `toolcall` (environments),
`sandbox`, `rollout` (episodes in groups), `pool` (environments on other machines), `runs` (measured runs of a training
script). `catalogue` knows environments by name; `check_tasks` checks task sets.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clawrl_trl.envs.base.actor import GatewayPolicy
    from clawrl_trl.envs.base.agent import AgentEnv, Effect, Start, WorldBroken
    from clawrl_trl.envs.chat.env import ChatEnv
    from clawrl_trl.envs.chat.evaluation import EvalReport, interactions_to_hold
    from clawrl_trl.envs.chat.ledger_env import LedgerEnv, recorded, trajectories
    from clawrl_trl.envs.chat.llm_persona import LLMPersona
    from clawrl_trl.envs.chat.persona_file import persona, read_persona
    from clawrl_trl.envs.chat.personas import Persona, PersonaGone, Student, Teacher
    from clawrl_trl.envs.chat.user_model import UserModel
    from clawrl_trl.envs.gui.env import GUIEnv
    from clawrl_trl.envs.gui.miniwob_tasks import miniwob_names, miniwob_tasks
    from clawrl_trl.envs.gui.tasks import WebTask
    from clawrl_trl.envs.rollout.rollout import Rollout
    from clawrl_trl.envs.runs.learning_curve import learning_curve
    from clawrl_trl.envs.sandbox.sandbox import Bind, Limits, Sandbox
    from clawrl_trl.envs.swe.env import SWEEnv
    from clawrl_trl.envs.swe.tasks import SweTask, read_swe_tasks
    from clawrl_trl.envs.terminal.env import TerminalEnv
    from clawrl_trl.envs.toolcall.code_interpreter import CodeInterpreter
    from clawrl_trl.envs.toolcall.env import ToolCallEnv
    from clawrl_trl.envs.toolcall.mcp_tools import McpServer
    from clawrl_trl.envs.toolcall.tasks import ToolTask, read_tool_tasks
    from clawrl_trl.envs.toolcall.tools import FunctionTools
    from clawrl_trl.envs.toolcall.tools_config import load_tools

_HOME = {
    "AgentEnv": "base.agent",
    "Bind": "sandbox.sandbox",
    "ChatEnv": "chat.env",
    "CodeInterpreter": "toolcall.code_interpreter",
    "Effect": "base.agent",
    "EvalReport": "chat.evaluation",
    "FunctionTools": "toolcall.tools",
    "GUIEnv": "gui.env",
    "GatewayPolicy": "base.actor",
    "LLMPersona": "chat.llm_persona",
    "LedgerEnv": "chat.ledger_env",
    "Limits": "sandbox.sandbox",
    "McpServer": "toolcall.mcp_tools",
    "Persona": "chat.personas",
    "PersonaGone": "chat.personas",
    "Rollout": "rollout.rollout",
    "SWEEnv": "swe.env",
    "Sandbox": "sandbox.sandbox",
    "Start": "base.agent",
    "Student": "chat.personas",
    "SweTask": "swe.tasks",
    "Teacher": "chat.personas",
    "TerminalEnv": "terminal.env",
    "ToolCallEnv": "toolcall.env",
    "ToolTask": "toolcall.tasks",
    "UserModel": "chat.user_model",
    "WebTask": "gui.tasks",
    "WorldBroken": "base.agent",
    "interactions_to_hold": "chat.evaluation",
    "learning_curve": "runs.learning_curve",
    "load_tools": "toolcall.tools_config",
    "miniwob_names": "gui.miniwob_tasks",
    "miniwob_tasks": "gui.miniwob_tasks",
    "persona": "chat.persona_file",
    "read_persona": "chat.persona_file",
    "read_swe_tasks": "swe.tasks",
    "read_tool_tasks": "toolcall.tasks",
    "recorded": "chat.ledger_env",
    "trajectories": "chat.ledger_env",
}

__all__ = [
    "AgentEnv",
    "Bind",
    "ChatEnv",
    "CodeInterpreter",
    "Effect",
    "EvalReport",
    "FunctionTools",
    "GUIEnv",
    "GatewayPolicy",
    "LLMPersona",
    "LedgerEnv",
    "Limits",
    "McpServer",
    "Persona",
    "PersonaGone",
    "Rollout",
    "SWEEnv",
    "Sandbox",
    "Start",
    "Student",
    "SweTask",
    "Teacher",
    "TerminalEnv",
    "ToolCallEnv",
    "ToolTask",
    "UserModel",
    "WebTask",
    "WorldBroken",
    "interactions_to_hold",
    "learning_curve",
    "load_tools",
    "miniwob_names",
    "miniwob_tasks",
    "persona",
    "read_persona",
    "read_swe_tasks",
    "read_tool_tasks",
    "recorded",
    "trajectories",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
