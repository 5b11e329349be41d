r"""The tool-call environment: a question, tools to call, an answer in the end.

Return values and error traces are the next states. The answer is the reply that calls nothing; it is right when
what stands in its `\boxed{}`, or its last number, equals the true one as mathematics.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from clawrl_trl.envs.base.agent import AgentEnv, Effect, Start, WorldBroken, worst
from clawrl_trl.envs.base.excerpt import excerpt
from clawrl_trl.envs.base.message import Action, Call, Json
from clawrl_trl.envs.toolcall.math_answer import final_answer, is_right, require_math_verify
from clawrl_trl.envs.toolcall.tasks import ToolTask
from clawrl_trl.envs.toolcall.tools import FunctionTools, Tools, Toolset, format_result, routes
from clawrl_trl.envs.toolcall.tools_config import borrow_tools, return_tools


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
            calls; see [`outcome_of`].
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
            self._toolsets = _toolsets(tools)
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
            self._opened.callback(tools.close)
            opened.append(tools)
        self._routes = routes(opened)
        schemas = [schema for tools in opened for schema in tools.schemas]
        if task.tools is not None:
            missing = set(task.tools) - set(self._routes)
            if missing:
                raise WorldBroken(f"no toolset has the tool {min(missing)!r} that the task offers")
            self._routes = {name: self._routes[name] for name in task.tools}
            schemas = [schema for schema in schemas if schema["function"]["name"] in task.tools]
        system = [{"role": "system", "content": self.system}] if self.system else []
        return Start([*system, {"role": "user", "content": task.question}], schemas)

    def act(self, action: Action) -> Effect:
        """Call what is asked for, or take the answer."""
        if not action.calls:
            self._reply = action.text
            return Effect([], ended=True)
        left = max(0, self.max_calls - len(self._calls))
        made, refused = action.calls[:left], action.calls[left:]
        self._calls += made
        results = [excerpt(text, -(-self.result_length // 2), self.result_length // 2) for text in self._all(made)]
        results += [f"Error: no call is left, there were {self.max_calls}; give your answer."] * len(refused)
        wanted = len(self.task.calls)
        ended = self.task.answer is None and len(self._calls) >= wanted
        return Effect(results, ended, signal=worst(-1.0 if text.startswith("Error") else 1.0 for text in results))

    def evaluate(self) -> float:
        """Return whether the answer is right and the calls are those asked for; see [`outcome_of`]."""
        right = not self.task.calls or _alike(self._calls, self.task.calls)
        if right and self.task.answer is not None:
            right = is_right(final_answer(self._reply), self.task.answer)
        return outcome_of(right, len(self._calls), encourage_calls=self.encourage_calls)

    def finish(self) -> None:
        """Close what belongs to the episode."""
        self._opened.close()

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the episode, and the tools if nobody else has borrowed them."""
        super().close(raise_if_closed=raise_if_closed)
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            return_tools(borrowed)

    def _all(self, calls: Sequence[Call]) -> list[str]:
        """The results of calls made at the same time; each ends within its own time limit."""
        if len(calls) < 2:
            return [self._one(call) for call in calls]
        with ThreadPoolExecutor(len(calls), "tool-calls") as pool:
            return list(pool.map(self._one, calls))

    def _one(self, call: Call) -> str:
        tools = self._routes.get(call.name)
        if tools is None:
            return f"Error: there is no tool {call.name!r}; there are: {', '.join(self._routes) or 'none'}."
        return tools.call(call.name, call.arguments, self.call_timeout)


def outcome_of(right: bool, calls: int, *, encourage_calls: bool = False) -> float:
    """The outcome of an episode.

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


def _toolsets(tools: Sequence[Toolset | Callable[..., Any]]) -> list[Toolset]:
    functions = [tool for tool in tools if callable(tool)]
    toolsets: list[Toolset] = [tool for tool in tools if not callable(tool)]
    return [FunctionTools(*functions), *toolsets] if functions else toolsets


def _alike(made: Sequence[Call], wanted: Sequence[Json]) -> bool:
    """Return whether the calls made are the wanted ones, in any order."""
    return Counter(map(_key, ((call.name, call.arguments) for call in made))) == Counter(
        _key((call["name"], call["arguments"])) for call in wanted
    )


def _key(call: tuple[str, Json]) -> str:
    return f"{call[0]} {format_result(sorted(call[1].items()))}"
