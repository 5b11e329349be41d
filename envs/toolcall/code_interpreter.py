"""The `code_interpreter` tool: Python in the sandbox, with variables that last for the episode."""

import threading
from pathlib import Path

from clawrl_trl.envs.sandbox.sandbox import Limits, Sandbox, choose_backend
from clawrl_trl.envs.sandbox.worker import Worker, WorkerLost
from clawrl_trl.messages import Json

WORKER = Path(__file__).with_name("interpreter_worker.py")
LIMITS = Limits(cpu_s=3600)
"""Limits of a whole episode; a call has its own time limit."""
SCHEMA: Json = {
    "type": "function",
    "function": {
        "name": "code_interpreter",
        "description": "Run Python code and see what it prints. Variables stay from call to call.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code."}},
            "required": ["code"],
        },
    },
}


class CodeInterpreter:
    """A Python interpreter as a tool; a [`Toolset`](clawrl_trl.envs.toolcall.tools.Toolset).

    Each episode has its own sandbox (no network, no file of the host) and its own variables. Code that exceeds
    its time or its limits is ended, and the variables are lost with it; the result says so.

    Args:
        limits ([`Limits`], *optional*): What the code may use in an episode.
        backend (`str`, *optional*): The sandbox's back end.
        network (`bool`, *optional*, defaults to `False`): Whether the code may reach the network.

    Raises:
        UserError: If there is no sandbox on this machine.

    Examples:
        >>> tools = CodeInterpreter().open()
        >>> tools.call("code_interpreter", {"code": "x = 6"}, timeout=10.0)
        ''
        >>> tools.call("code_interpreter", {"code": "x * 7"}, timeout=10.0)
        '42'
        >>> tools.close()
    """

    def __init__(self, *, limits: Limits = LIMITS, backend: str | None = None, network: bool = False) -> None:
        self._limits = limits
        self._backend = backend or choose_backend()
        self._network = network

    def open(self) -> "Interpreter":
        """See [`Toolset`](clawrl_trl.envs.toolcall.tools.Toolset)."""
        return Interpreter(Sandbox(limits=self._limits, backend=self._backend, network=self._network))

    def close(self) -> None:
        """See [`Toolset`](clawrl_trl.envs.toolcall.tools.Toolset); nothing outlives an episode."""


class Interpreter:
    """The interpreter of one episode; see [`Tools`](clawrl_trl.envs.toolcall.tools.Tools)."""

    schemas = (SCHEMA,)

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._worker = Worker(sandbox, WORKER)
        self._lock = threading.Lock()  # parallel calls share the variables, one after another

    def call(self, name: str, arguments: Json, timeout: float) -> str:
        """See [`Tools`](clawrl_trl.envs.toolcall.tools.Tools)."""
        code = arguments.get("code")
        if not isinstance(code, str) or len(arguments) != 1:
            return 'Error: the only argument is "code", a text.'
        try:
            with self._lock:
                answer = self._worker.ask({"code": code}, timeout)
        except WorkerLost as lost:
            return f"Error: {lost}; the variables are lost."
        output = str(answer.get("output", "")).strip()
        return f"Error: {output}" if answer.get("failed") else output

    def close(self) -> None:
        """See [`Tools`](clawrl_trl.envs.toolcall.tools.Tools)."""
        self._worker.close()
        self._sandbox.close()
