"""Software environment: an issue, a repository, one bash block a turn, and hidden tests at the end.

The protocol is mini-swe-agent's: each command runs in a new shell in the repository, and one that prints the sentinel
submits. The submission is the diff, and only the diff reaches the fresh sandbox in which it is graded. That package's
environment classes are not used: its local and bubblewrap ones give a command the network, the host's environment and
its processes, and bound neither its memory nor its output.
"""

import importlib.util
import re
import shutil
import time
from collections.abc import Sequence

import torch

from clawrl_trl.envs.base.agent import AgentEnv, Effect, Start
from clawrl_trl.envs.base.excerpt import excerpt
from clawrl_trl.envs.base.message import Action
from clawrl_trl.envs.sandbox.sandbox import CommandResult, Limits, choose_backend
from clawrl_trl.envs.swe.checkout import LIMITS, Checkout
from clawrl_trl.envs.swe.grading import Grade, grade
from clawrl_trl.envs.swe.tasks import SENTINEL, SweTask
from clawrl_trl.errors import UserError
from clawrl_trl.messages import Json

SYSTEM = f"""Solve the issue in this git repository. Every reply holds one bash block:
```bash
command
```
It runs in a new shell in the repository; files stay, variables do not. When the issue is solved, reply:
```bash
echo {SENTINEL}
```"""
BASH: Json = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a bash command in the repository.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
        },
    },
}

_BLOCK = re.compile(r"```(?:bash|sh|mswea_bash_command)[ \t]*\n(.*?)\n?```", re.DOTALL)


class SWEEnv(AgentEnv[SweTask]):
    """Issues in repositories.

    An action is a text with one bash block, or, with `tool=True`, one call of the tool `bash`; either is understood
    in either case. The outcome is 1.0 when all tests of FAIL_TO_PASS and PASS_TO_PASS pass with the submitted diff,
    else -1.0; the signal of an action is 1 for a command that returned 0, else -1.

    Args:
        tasks (`Sequence[SweTask]`): The tasks.
        max_steps (`int`, *optional*, defaults to `20`): Most commands.
        command_timeout (`float`, *optional*, defaults to `180.0`): Seconds for a command.
        episode_timeout (`float`, *optional*, defaults to `1800.0`): Seconds from the beginning until no more command
            is run.
        grading_timeout (`float`, *optional*, defaults to `900.0`): Seconds for the hidden tests.
        head (`int`, *optional*, defaults to `5000`): Characters shown of the beginning of a long output.
        tail (`int`, *optional*, defaults to `5000`): Characters shown of its end.
        submit_at_limit (`bool`, *optional*, defaults to `False`): Whether what stands at the end counts as submitted
            also where steps or time ran out first; else nothing was.
        tool (`bool`, *optional*, defaults to `False`): Whether the tool `bash` is on offer.
        system (`str`, *optional*): The system message; `None` for none.
        limits ([`Limits`], *optional*): What a command may use.
        backend (`str`, *optional*): The sandbox's back end.
        first_task (`int`, *optional*, defaults to `0`): Position of the task that the first reset starts.
        device (`torch.device`, *optional*): Where the flags live.

    Raises:
        UserError: If there is no sandbox on this machine, or git, pytest or, for tasks with images, Docker is missing.

    Examples:
        >>> env = SWEEnv(read_swe_tasks("examples/tasks/swe/train.jsonl"))
        >>> rollout = env.rollout(20, policy)  # policy(td) sets td["action"]
    """

    def __init__(
        self,
        tasks: Sequence[SweTask],
        *,
        max_steps: int = 20,
        command_timeout: float = 180.0,
        episode_timeout: float = 1800.0,
        grading_timeout: float = 900.0,
        head: int = 5000,
        tail: int = 5000,
        submit_at_limit: bool = False,
        tool: bool = False,
        system: str | None = SYSTEM,
        limits: Limits = LIMITS,
        backend: str | None = None,
        first_task: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(tasks, max_steps=max_steps, first_task=first_task, device=device)
        self.command_timeout = command_timeout
        self.episode_timeout = episode_timeout
        self.grading_timeout = grading_timeout
        self.head, self.tail = head, tail
        self.submit_at_limit = submit_at_limit
        self.tool = tool
        self.system = system
        self.limits = limits
        self.backend = backend
        if backend is None and any(task.image is None for task in tasks):
            self.backend = choose_backend()
        _require_tools(tasks)
        self.grade: Grade | None = None
        self._checkout: Checkout | None = None

    def begin(self, task: SweTask) -> Start:
        """Check the repository out."""
        self.grade = None
        self._submitted = False
        self._command_steps: list[int] = []
        self._deadline = time.monotonic() + self.episode_timeout
        self._checkout = Checkout(task, limits=self.limits, backend=self.backend)
        system = [{"role": "system", "content": self.system}] if self.system else []
        return Start([*system, {"role": "user", "content": task.problem_statement}], [BASH] if self.tool else [])

    def act(self, action: Action) -> Effect:
        """Run the command."""
        command, trouble = _read_command(action)
        if command is None:
            return Effect([trouble] * max(1, len(action.calls)), signal=-1.0, hint=trouble)
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            return Effect(["Error: the time for this task is over."], ended=True)
        assert self._checkout is not None
        timeout = min(self.command_timeout, remaining)
        result = self._checkout.run(command, timeout)
        self._submitted = _submits(result)
        if not self._submitted:
            self._command_steps.append(self.steps_taken - 1)
        succeeded = result.exit_code == 0 and not (result.timed_out or result.exceeded_limit)
        return Effect([self._describe(result, timeout)], ended=self._submitted, signal=1.0 if succeeded else -1.0)

    def evaluate(self) -> float:
        """Grade the diff in a fresh sandbox; the result stays in `grade`."""
        assert self._checkout is not None
        diff = self._checkout.take_diff() if self._submitted or self.submit_at_limit else b""
        # An empty diff can't resolve anything, and a sandbox for its tests would cost seconds.
        if diff.strip():
            self.grade = grade(self.task, diff, timeout=self.grading_timeout, limits=self.limits, backend=self.backend)
        else:
            self.grade = Grade(False, "nothing was submitted")
        return 1.0 if self.grade.resolved else -1.0

    def advise(self) -> dict[int, str]:
        """Return the first failing test's message for each command before the submission; see [`AgentEnv`].

        The message is the one that the task's author wrote (`test_messages`), else it names the test. What the test
        printed is no hint, because the test runs the agent's code, which could write hints for itself.
        """
        passed = self.grade.passed if self.grade else {}
        # Where nothing was submitted, the tests of the issue fail as they did before.
        failing = [name for name, has_passed in passed.items() if not has_passed] or self.task.fail_to_pass
        if not failing:
            return {}
        message = self.task.test_messages.get(failing[0], f"The test {failing[0]} must pass.")
        return dict.fromkeys(self._command_steps, message)

    def finish(self) -> None:
        """Remove the checkout."""
        checkout, self._checkout = self._checkout, None
        if checkout is not None:
            checkout.close()

    def _describe(self, result: CommandResult, timeout: float) -> str:
        note = f"Error: the command was ended after {timeout:g} s.\n" if result.timed_out else ""
        note += f"Error: the command was ended: {result.exceeded_limit}.\n" if result.exceeded_limit else ""
        # The command's own stderr goes to stdout; what is on stderr comes from the sandbox.
        output = excerpt(result.stdout + result.stderr, self.head, self.tail)
        return f"{note}<returncode>{result.exit_code}</returncode>\n<output>\n{output.rstrip()}\n</output>"


def _require_tools(tasks: Sequence[SweTask]) -> None:
    """Check that the programs that the tasks need are on this machine.

    Raises:
        UserError: If one is missing.
    """
    without_image = [task for task in tasks if task.image is None]
    if len(without_image) < len(tasks) and shutil.which("docker") is None:
        raise UserError("Tasks with images need Docker: install it, or keep to tasks without image_name.")
    if without_image and shutil.which("git") is None:
        raise UserError("Software tasks need git: install it.")
    if any(task.test_command is None for task in without_image) and importlib.util.find_spec("pytest") is None:
        raise UserError('The hidden tests need pytest: pip install "clawrl-trl[envs]".')


def _read_command(action: Action) -> tuple[str | None, str]:
    """Read the one command of an action; without one, what to tell the model to do instead."""
    if action.calls:
        commands = [call.arguments.get("command") for call in action.calls if call.name == "bash"]
        if len(action.calls) == 1 and commands and isinstance(commands[0], str):
            return commands[0], ""
        return None, 'Error: make one call a turn, of the tool bash, with the text "command".'
    blocks = _BLOCK.findall(action.text)
    if len(blocks) == 1:
        return blocks[0], ""
    return (
        None,
        f"Error: a reply must hold exactly one bash block, this one held {len(blocks)}:\n```bash\ncommand\n```",
    )


def _submits(result: CommandResult) -> bool:
    lines = result.stdout.lstrip().splitlines()
    # The first line alone, as in mini-swe-agent: a command may print a file in which the sentinel stands.
    return result.exit_code == 0 and bool(lines) and lines[0].strip() == SENTINEL
