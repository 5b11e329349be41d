"""TerminalEnv: a task in a real, persistent shell.

The agent works through four tools on one shell in a sandbox. The outcome is what the task's tests find in the work
folder once the shell and all that ran in it have ended; services that were left running don't count.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from clawrl_trl.envs.base.agent import AgentEnv, Effect, Start, WorldBroken
from clawrl_trl.envs.base.episode import combine_signals
from clawrl_trl.envs.base.message import Action, Call
from clawrl_trl.envs.sandbox.backends import check_backend, choose_backend
from clawrl_trl.envs.sandbox.sandbox import Limits
from clawrl_trl.envs.terminal.shell import CommandFolder, Shell, ShellBroken, ShellOutput
from clawrl_trl.envs.terminal.task_folder import TaskFolder, load_tasks
from clawrl_trl.envs.terminal.task_world import TaskWorld
from clawrl_trl.messages import Json

TOOL_TIMEOUT = 20.0
"""Seconds a tool may take."""
BUSY = (
    "A command is still running: look at it with shell_view, type to it with shell_write_to_process, "
    "end it with the input C-c."
)


class TerminalEnv(AgentEnv[TaskFolder]):
    """Work in a terminal, rewarded by the task's tests.

    The tools are `shell_exec(command)`, `shell_view()`, `shell_write_to_process(input)` and
    `write_file(path, content)`. There is one shell; an `id` of a shell, which some models give, is ignored. A reply
    without a call ends the episode. The outcome is 2 * passed / tests - 1; the signal of an action is 1 for exit code
    0, -1 for any other and for a call that can't be carried out. Observations, action and the ends of an episode: see
    [`AgentEnv`].

    Args:
        tasks (`str`, `Path` or `Sequence[TaskFolder]`): The tasks, or where they are, see [`load_tasks`].
        max_steps (`int`, *optional*, defaults to `10`): Most actions of an episode.
        tool_timeout (`float`, *optional*, defaults to `20.0`): Seconds a tool may take; a command that takes longer
            goes on and can be looked at.
        system (`str`, *optional*): A system message.
        limits ([`Limits`], *optional*): What the agent's commands may use.
        backend (`str`, *optional*): The sandbox's back end; default: [`choose_backend`].
        network (`bool`, *optional*, defaults to `False`): Whether the agent may reach the network.
        first_task (`int`, *optional*, defaults to `0`): Position of the task that the first reset starts.
        device (`torch.device`, *optional*): Where the flags live.

    Raises:
        UserError: If the tasks can't be read or there is no sandbox.

    Examples:
        ```python
        env = TerminalEnv("examples/tasks/terminal/train.jsonl")
        state = env.reset()
        call = '<tool_call>{"name": "shell_exec", "arguments": {"command": "echo 7 > a.txt"}}</tool_call>'
        state = env.step(state.set("action", call))["next"]
        state = env.step(state.set("action", "Done."))["next"]
        state["outcome"]
        ```
    """

    def __init__(
        self,
        tasks: str | Path | Sequence[TaskFolder],
        *,
        max_steps: int = 10,
        tool_timeout: float = TOOL_TIMEOUT,
        system: str | None = None,
        limits: Limits | None = None,
        backend: str | None = None,
        network: bool = False,
        first_task: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        self._backend = backend or choose_backend()
        check_backend(self._backend)
        self._system = system
        self._timeout = tool_timeout
        self._limits = limits
        self._network = network
        self._world: TaskWorld | None = None
        self._terminal: _Terminal | None = None
        loaded = load_tasks(tasks) if isinstance(tasks, str | Path) else tasks
        super().__init__(loaded, max_steps=max_steps, first_task=first_task, device=device)

    def begin(self, task: TaskFolder) -> Start:
        """See [`AgentEnv`]."""
        self._world = TaskWorld(task, limits=self._limits, backend=self._backend, network=self._network)
        self._world.set_up()
        self._terminal = _Terminal(self._world, self._timeout, sandboxed=self._backend != "none")
        self._terminal.start()
        system = [{"role": "system", "content": self._system}] if self._system else []
        return Start([*system, {"role": "user", "content": task.instruction}], SCHEMAS)

    def act(self, action: Action) -> Effect:
        """See [`AgentEnv`]."""
        if not action.calls:
            return Effect([], ended=True)
        assert self._terminal is not None
        try:
            answers = [self._terminal.call(call) for call in action.calls]
        except ShellBroken as error:
            raise WorldBroken(str(error)) from error
        return Effect([text for text, _ in answers], signal=combine_signals(signal for _, signal in answers))

    def evaluate(self) -> float:
        """See [`AgentEnv`]."""
        assert self._world is not None
        # First, so that nothing of the agent's runs beside the tests.
        self._end_terminal()
        return self._world.verify().outcome

    def finish(self) -> None:
        """See [`AgentEnv`]."""
        try:
            self._end_terminal()
        finally:
            if self._world is not None:
                self._world.close()
                self._world = None

    def _end_terminal(self) -> None:
        if self._terminal is not None:
            self._terminal.close()
            self._terminal = None


ToolAnswer = tuple[str, float | None]
"""Result of a tool in words, and the process score of calling it."""


class _Terminal:
    """The agent's tools on one shell."""

    def __init__(self, world: TaskWorld, timeout: float, *, sandboxed: bool) -> None:
        self._commands = CommandFolder(sandboxed=sandboxed)
        self._sandbox = world.open_sandbox(self._commands.bind)
        self._shell = Shell(self._sandbox, self._commands)
        self._timeout = timeout
        self._tools: dict[str, tuple[dict[str, str], Callable[..., ToolAnswer]]] = {
            "shell_exec": ({"command": "command"}, self._execute),
            "shell_view": ({}, self._view),
            "shell_write_to_process": ({"input": "text", "command": "text"}, self._type),
            "write_file": ({"path": "path", "file_path": "path", "content": "content"}, self._write_file),
        }
        # Its name in OpenClaw-RL's terminal environment.
        self._tools["shell_write_content_to_file"] = self._tools["write_file"]

    def start(self) -> None:
        """Start the shell, which gets ready while the policy samples its first action."""
        self._shell.start()

    def call(self, call: Call) -> ToolAnswer:
        """Carry a call out; a mistake in it is answered in words, for the model to mend."""
        if call.name not in self._tools:
            return _refuse(f"there is no tool {call.name!r}; there are {', '.join(list_tool_names())}")
        names, tool = self._tools[call.name]
        values: dict[str, str] = {}
        for name, value in call.arguments.items():
            if name in _IGNORED_ARGUMENTS:
                continue
            if name not in names:
                return _refuse(f"{call.name} has no argument {name!r}; it has {', '.join(names) or 'none'}")
            if not isinstance(value, str):
                return _refuse(f"the argument {name!r} of {call.name} must be a text")
            values[names[name]] = value
        missing = [name for name, parameter in names.items() if parameter not in values]
        if missing:
            return _refuse(f"{call.name} needs the argument {missing[0]!r}")
        return tool(**values)

    def close(self) -> None:
        """End the shell with all that runs in it."""
        self._shell.close()
        self._sandbox.close()
        self._commands.close()

    def _execute(self, command: str) -> ToolAnswer:
        if not command.strip():
            return _refuse("the command is empty")
        return (BUSY, -1.0) if self._shell.running else self._describe(self._shell.execute(command, self._timeout))

    def _write_file(self, path: str, content: str) -> ToolAnswer:
        if self._shell.running:
            return BUSY, -1.0
        output = self._shell.write_file(path, content, self._timeout)
        if output.exit_code == 0:
            return f"Wrote {len(content)} characters to {path}.", 1.0
        return self._describe(output)

    def _view(self) -> ToolAnswer:
        return self._describe(self._shell.view(self._timeout))

    def _type(self, text: str) -> ToolAnswer:
        if not self._shell.running:
            return _refuse("nothing is running that could be typed to: use shell_exec")
        return self._describe(self._shell.type(text, self._timeout))

    def _describe(self, output: ShellOutput) -> ToolAnswer:
        text = output.text.rstrip("\n")
        if output.end_reason:
            note = f"[the shell is gone: {output.end_reason}; the next command starts a new one]"
        elif output.running:
            note = "[still running]"
        elif output.exit_code:
            note = f"[exit code {output.exit_code}]"
        else:
            note = "" if text else "[no output]"
        return "\n".join(part for part in (text, note) if part), _score_output(output)


def _refuse(why: str) -> ToolAnswer:
    return f"Error: {why}.", -1.0


def _score_output(output: ShellOutput) -> float | None:
    """Score an output by its exit code: 1 or -1; `None` while the command runs."""
    if output.end_reason:
        return -1.0
    return None if output.exit_code is None else (1.0 if output.exit_code == 0 else -1.0)


_IGNORED_ARGUMENTS = ("id", "block", "timeout")


def _build_schema(name: str, description: str, **arguments: str) -> Json:
    properties: Json = {argument: {"type": "string", "description": text} for argument, text in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


SCHEMAS = [
    _build_schema("shell_exec", "Run a command in the shell and see what it prints.", command="The bash command."),
    _build_schema("shell_view", "See what the running command has printed since."),
    _build_schema(
        "shell_write_to_process",
        "Type a line to the running command.",
        input="The line, or one of the keys C-c, C-d, C-z.",
    ),
    _build_schema("write_file", "Write a file.", path="Where to write it.", content="What it is to hold."),
]
"""Schemas of the tools, in the chat API's form."""


def list_tool_names() -> list[str]:
    """List the names of the tools."""
    return [schema["function"]["name"] for schema in SCHEMAS]
