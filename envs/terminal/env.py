"""TerminalEnv: a task in a real, persistent shell.

The agent works through four tools on one shell in a sandbox; what counts in the end is what the task's tests find in
the work folder once the shell and all that ran in it are gone. Services that were left running don't count.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from clawrl_trl.envs.base.agent import AgentEnv, Effect, Start, WorldBroken, combine_signals
from clawrl_trl.envs.base.message import Action, Call, Json
from clawrl_trl.envs.sandbox.backends import check_backend, default_backend
from clawrl_trl.envs.sandbox.sandbox import Limits
from clawrl_trl.envs.terminal.shell import Seen, Shell, ShellBroken, ShellRoom
from clawrl_trl.envs.terminal.task_folder import TaskFolder, load_tasks
from clawrl_trl.envs.terminal.task_world import TaskWorld

TOOL_TIMEOUT = 20.0
"""Seconds a tool may take."""
BUSY = (
    "A command is still running: look at it with shell_view, type to it with shell_write_to_process, "
    "end it with the input C-c."
)


class TerminalEnv(AgentEnv[TaskFolder]):
    """Work in a terminal, rewarded by the task's tests.

    The tools are `shell_exec(command)`, `shell_view()`, `shell_write_to_process(input)` and
    `write_file(path, content)`. There is one shell; an `id` of a shell, which some models give, is read over. A reply
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
        backend (`str`, *optional*): The sandbox's back end; default: [`default_backend`].
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
        self._backend = backend or default_backend()
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


Answer = tuple[str, float | None]
"""What a tool says, and the process score of calling it."""


class _Terminal:
    """The tools, on one shell."""

    def __init__(self, world: TaskWorld, timeout: float, *, sandboxed: bool) -> None:
        self._room = ShellRoom(sandboxed=sandboxed)
        self._sandbox = world.sandbox(self._room.bind)
        self._shell = Shell(self._sandbox, self._room)
        self._timeout = timeout
        self._tools: dict[str, tuple[dict[str, str], Callable[..., Answer]]] = {
            "shell_exec": ({"command": "command"}, self._execute),
            "shell_view": ({}, self._view),
            "shell_write_to_process": ({"input": "text", "command": "text"}, self._type),
            "write_file": ({"path": "path", "file_path": "path", "content": "content"}, self._write),
        }
        self._tools["shell_write_content_to_file"] = self._tools["write_file"]

    def start(self) -> None:
        """Have the shell come up while the policy thinks."""
        self._shell.start()

    def call(self, call: Call) -> Answer:
        """Do what a call asks; a mistake in it is answered in words."""
        if call.name not in self._tools:
            return _refused(f"there is no tool {call.name!r}; there are {', '.join(schema_names())}")
        names, tool = self._tools[call.name]
        given: dict[str, str] = {}
        for name, value in call.arguments.items():
            if name in _READ_OVER:
                continue
            if name not in names:
                return _refused(f"{call.name} has no argument {name!r}; it has {', '.join(names) or 'none'}")
            if not isinstance(value, str):
                return _refused(f"the argument {name!r} of {call.name} must be a text")
            given[names[name]] = value
        missing = [name for name, own in names.items() if own not in given]
        if missing:
            return _refused(f"{call.name} needs the argument {missing[0]!r}")
        return tool(**given)

    def close(self) -> None:
        """End the shell with all that runs in it."""
        self._shell.close()
        self._sandbox.close()
        self._room.close()

    def _execute(self, command: str) -> Answer:
        if not command.strip():
            return _refused("the command is empty")
        return (BUSY, -1.0) if self._shell.running else self._told(self._shell.execute(command, self._timeout))

    def _write(self, path: str, content: str) -> Answer:
        if self._shell.running:
            return BUSY, -1.0
        seen = self._shell.write_file(path, content, self._timeout)
        if seen.exit_code == 0:
            return f"Wrote {len(content)} characters to {path}.", 1.0
        return self._told(seen)

    def _view(self) -> Answer:
        return self._told(self._shell.view(self._timeout))

    def _type(self, text: str) -> Answer:
        if not self._shell.running:
            return _refused("nothing is running that could be typed to: use shell_exec")
        return self._told(self._shell.type(text, self._timeout))

    def _told(self, seen: Seen) -> Answer:
        text = seen.output.rstrip("\n")
        if seen.lost:
            note = f"[the shell is gone: {seen.lost}; the next command starts a new one]"
        elif seen.running:
            note = "[still running]"
        elif seen.exit_code:
            note = f"[exit code {seen.exit_code}]"
        else:
            note = "" if text else "[no output]"
        return "\n".join(part for part in (text, note) if part), _signal(seen)


def _refused(why: str) -> Answer:
    return f"Error: {why}.", -1.0


def _signal(seen: Seen) -> float | None:
    """The process score of what the terminal showed: its exit code; none where nothing has ended."""
    if seen.lost:
        return -1.0
    return None if seen.exit_code is None else (1.0 if seen.exit_code == 0 else -1.0)


_READ_OVER = ("id", "block", "timeout")


def _schema(name: str, description: str, **arguments: str) -> Json:
    properties: dict[str, Any] = {one: {"type": "string", "description": said} for one, said in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


SCHEMAS = [
    _schema("shell_exec", "Run a command in the shell and see what it prints.", command="The bash command."),
    _schema("shell_view", "See what the running command has printed since."),
    _schema(
        "shell_write_to_process",
        "Type a line to the running command.",
        input="The line, or one of the keys C-c, C-d, C-z.",
    ),
    _schema("write_file", "Write a file.", path="Where to write it.", content="What it is to hold."),
]
"""The tools' schemas, chat API."""


def schema_names() -> list[str]:
    """Names of the tools."""
    return [schema["function"]["name"] for schema in SCHEMAS]
