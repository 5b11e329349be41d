"""Environments: worlds that talk to the model through the gateway like anyone else.

Names are imported on first use, so that `clawrl_trl.envs.personas` costs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clawrl_trl.envs.actor import GatewayPolicy
    from clawrl_trl.envs.agent import AgentEnv, Effect, Start, WorldBroken
    from clawrl_trl.envs.chat import ChatEnv
    from clawrl_trl.envs.code_interpreter import CodeInterpreter
    from clawrl_trl.envs.evaluate import EvalReport, interactions_to_hold
    from clawrl_trl.envs.gui import GUIEnv
    from clawrl_trl.envs.gui_tasks import WebTask
    from clawrl_trl.envs.ledger_env import LedgerEnv, recorded, trajectories
    from clawrl_trl.envs.llm_persona import LLMPersona
    from clawrl_trl.envs.mcp_tools import McpServer
    from clawrl_trl.envs.miniwob_tasks import miniwob_names, miniwob_tasks
    from clawrl_trl.envs.persona_file import read_persona
    from clawrl_trl.envs.personas import Persona, PersonaGone, Student, Teacher, persona
    from clawrl_trl.envs.plot import learning_curve
    from clawrl_trl.envs.rollout import Rollout
    from clawrl_trl.envs.sandbox import Bind, Limits, Sandbox
    from clawrl_trl.envs.swe import SWEEnv
    from clawrl_trl.envs.swe_tasks import SweTask, read_swe_tasks
    from clawrl_trl.envs.terminal import TerminalEnv
    from clawrl_trl.envs.toolcall import ToolCallEnv
    from clawrl_trl.envs.toolcall_tasks import ToolTask, read_tool_tasks
    from clawrl_trl.envs.tools import FunctionTools
    from clawrl_trl.envs.tools_config import load_tools
    from clawrl_trl.envs.user_model import UserModel

_HOME = {
    "AgentEnv": "agent",
    "Bind": "sandbox",
    "ChatEnv": "chat",
    "CodeInterpreter": "code_interpreter",
    "Effect": "agent",
    "EvalReport": "evaluate",
    "FunctionTools": "tools",
    "GUIEnv": "gui",
    "GatewayPolicy": "actor",
    "LLMPersona": "llm_persona",
    "LedgerEnv": "ledger_env",
    "Limits": "sandbox",
    "McpServer": "mcp_tools",
    "Persona": "personas",
    "PersonaGone": "personas",
    "Rollout": "rollout",
    "SWEEnv": "swe",
    "Sandbox": "sandbox",
    "Start": "agent",
    "Student": "personas",
    "SweTask": "swe_tasks",
    "Teacher": "personas",
    "TerminalEnv": "terminal",
    "ToolCallEnv": "toolcall",
    "ToolTask": "toolcall_tasks",
    "UserModel": "user_model",
    "WebTask": "gui_tasks",
    "WorldBroken": "agent",
    "interactions_to_hold": "evaluate",
    "learning_curve": "plot",
    "load_tools": "tools_config",
    "miniwob_names": "miniwob_tasks",
    "miniwob_tasks": "miniwob_tasks",
    "persona": "personas",
    "read_persona": "persona_file",
    "read_swe_tasks": "swe_tasks",
    "read_tool_tasks": "toolcall_tasks",
    "recorded": "ledger_env",
    "trajectories": "ledger_env",
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
