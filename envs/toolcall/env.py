r"""The tool-call environment: a question, tools to call, and a final answer.

The results of calls, return values or error traces, are the next states. The answer is the first reply without calls;
it is right when the content of its `\boxed{}`, or else its last number, equals the true one as mathematics.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from clawrl_trl.envs.base.agent import AgentEnv, Effect, Start, WorldBroken
from clawrl_trl.envs.base.episode import combine_signals
from clawrl_trl.envs.base.excerpt import excerpt
from clawrl_trl.envs.base.message import Action, Call
from clawrl_trl.envs.toolcall.math_answer import extract_final_answer, is_right, require_math_verify
from clawrl_trl.envs.toolcall.tasks import ToolTask
from clawrl_trl.envs.toolcall.tools import FunctionTools, Tools, Toolset, format_result, map_tools
from clawrl_trl.envs.toolcall.tools_config import borrow_tools, return_tools
from clawrl_trl.messages import Json


class ToolCallEnv(AgentEnv[ToolTask]):
    """Questions that are answered with tools.

    The calls of one action run at the same time and are answered in order. An action without calls is the answer
    and ends the episode, as does the last of the calls that a task without an answer asks for. The signal of an action
    is -1 if any of its calls failed, else 1.

    Args:
        tasks (`Sequence[ToolTask]`): The tasks.
        tools (`Path`, `str` or `Sequence`, *optional*): A `TOOLS_CONFIG` file, whose toolsets the environments of a
            process share, or toolsets and plain functions, which stay the caller's to close. Default: the file that
            the environment variable `TOOLS_CONFIG` names, else the one beside the tasks, else none.
        max_steps (`int`, *optional*, defaults to `16`): Most turns.
        max_calls (`int`, *optional*, defaults to `16`): Most calls; further ones are refused.
        result_length (`int`, *optional*, defaults to `1024`): Characters shown of a result.
        call_timeout (`float`, *optional*, defaults to `120.0`): Seconds for a call.
        system (`str`, *optional*): A system message.
        encourage_calls (`bool`, *optional*, defaults to `False`): Whether a wrong answer costs less after more
            calls; see [`compute_outcome`].
        first_task (`int`, *optional*, defaults to `0`): Position of the task that the first reset starts.
        device (`torch.device`, *optional*): Where the flags live.

    Raises:
        UserError: If the tools can't be loaded or two have the same name.

    Examples:
        >>> task = ToolTask("sum", "How much is 3 + 4? Use add.", answer="7")
        >>> env = ToolCallEnv([task], tools=[add])
        >>> rollout = env.rollout(16, policy)  # policy(td) sets td["action"]
    """

    def __init__(
        self,
        tasks: Sequence[ToolTask],
        *,
        tools: Path | str | Sequence[Toolset | Callable[..., Any]] | None = None,
        max_steps: int = 16,
        max_calls: int = 16,
        result_length: int = 1024,
        call_timeout: float = 120.0,
        system: str | None = None,
        encourage_calls: bool = False,
        first_task: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(tasks, max_steps=max_steps, first_task=first_task, device=device)
        self._borrowed: Path | str | None = None
        if tools is None:
            tools = os.environ.get("TOOLS_CONFIG") or tasks[0].config or ()
        if isinstance(tools, Path | str):
            self._toolsets = borrow_tools(tools)
            self._borrowed = tools
        else:
            self._toolsets = _make_toolsets(tools)
        if any(task.answer is not None for task in tasks):
            require_math_verify()
        self.max_calls = max_calls
        self.result_length = result_length
        self.call_timeout = call_timeout
        self.system = system
        self.encourage_calls = encourage_calls
        self._opened = ExitStack()

    def begin(self, task: ToolTask) -> Start:
        """Open the tools for an episode."""
        self._calls: list[Call] = []
        self._reply = ""
        self._opened = ExitStack()
        opened: list[Tools] = []
        for toolset in self._toolsets:
            tools = toolset.open()
            self._opened.callback(tools.close)  # at once: a later toolset may fail to open
            opened.append(tools)
        self._tools_by_name = map_tools(opened)
        schemas = [schema for tools in opened for schema in tools.schemas]
        if task.tools is not None:
            missing = set(task.tools) - set(self._tools_by_name)
            if missing:
                raise WorldBroken(f"no toolset has the tool {min(missing)!r} that the task offers")
            self._tools_by_name = {name: self._tools_by_name[name] for name in task.tools}
            schemas = [schema for schema in schemas if schema["function"]["name"] in task.tools]
        system = [{"role": "system", "content": self.system}] if self.system else []
        return Start([*system, {"role": "user", "content": task.question}], schemas)

    def act(self, action: Action) -> Effect:
        """Make the calls, or take the answer."""
        if not action.calls:
            self._reply = action.text
            return Effect([], ended=True)
        calls_left = max(0, self.max_calls - len(self._calls))
        allowed, refused = action.calls[:calls_left], action.calls[calls_left:]
        self._calls += allowed
        head, tail = -(-self.result_length // 2), self.result_length // 2
        results = [excerpt(text, head, tail) for text in self._call_all(allowed)]
        results += [f"Error: no call is left, there were {self.max_calls}; give your answer."] * len(refused)
        # A task without an answer asks for calls alone, so the last of them ends it.
        ended = self.task.answer is None and len(self._calls) >= len(self.task.calls)
        signals = (-1.0 if text.startswith("Error") else 1.0 for text in results)
        return Effect(results, ended, signal=combine_signals(signals))

    def evaluate(self) -> float:
        """Grade the answer and the calls that the task asks for; see [`compute_outcome`]."""
        right = not self.task.calls or _match_calls(self._calls, self.task.calls)
        if right and self.task.answer is not None:
            right = is_right(extract_final_answer(self._reply), self.task.answer)
        return compute_outcome(right, len(self._calls), encourage_calls=self.encourage_calls)

    def finish(self) -> None:
        """Close the episode's tools."""
        self._opened.close()

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the episode, and the tools if nobody else has borrowed them."""
        super().close(raise_if_closed=raise_if_closed)
        # Once, however often it is closed: other environments may use the tools on.
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            return_tools(borrowed)

    def _call_all(self, calls: Sequence[Call]) -> list[str]:
        """Make calls at the same time and return their results; each ends within its own time limit."""
        if len(calls) < 2:
            return [self._call_tool(call) for call in calls]
        with ThreadPoolExecutor(len(calls), "tool-calls") as pool:
            return list(pool.map(self._call_tool, calls))

    def _call_tool(self, call: Call) -> str:
        tools = self._tools_by_name.get(call.name)
        if tools is None:
            return f"Error: there is no tool {call.name!r}; there are: {', '.join(self._tools_by_name) or 'none'}."
        return tools.call(call.name, call.arguments, self.call_timeout)


def compute_outcome(right: bool, calls: int, *, encourage_calls: bool = False) -> float:
    """Compute the outcome of an episode, in [-1, 1].

    Args:
        right (`bool`): Whether the task was done.
        calls (`int`): Calls made.
        encourage_calls (`bool`, *optional*, defaults to `False`): OpenClaw-RL's rule (arXiv 2603.10165) for a wrong
            answer: min(-0.6, -1 + 0.1 (calls - 2) / 2), so that one found with tools costs a little less. It
            also pays for idle calls, hence not by default.
    """
    if right:
        return 1.0
    return min(-0.6, max(-1.0, -1.0 + 0.1 * (calls - 2) / 2)) if encourage_calls else -1.0


def _make_toolsets(tools: Sequence[Toolset | Callable[..., Any]]) -> list[Toolset]:
    functions = [tool for tool in tools if callable(tool)]
    toolsets: list[Toolset] = [tool for tool in tools if not callable(tool)]
    return [FunctionTools(*functions), *toolsets] if functions else toolsets


def _match_calls(calls: Sequence[Call], expected: Sequence[Json]) -> bool:
    """Return whether the calls are the expected ones, each as often, in any order."""
    return Counter(_make_key(call.name, call.arguments) for call in calls) == Counter(
        _make_key(call["name"], call["arguments"]) for call in expected
    )


def _make_key(name: str, arguments: Json) -> str:
    """Write a call as a text that does not depend on the order of its arguments; they may not be hashable."""
    return f"{name} {format_result(sorted(arguments.items()))}"
