"""Playing of a GUI task by its oracle, through the actions that a policy has."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tensordict import TensorDictBase

from clawrl_trl.envs.gui.computer_use import TOOL
from clawrl_trl.envs.gui.env import GUIEnv
from clawrl_trl.envs.gui.screen import ScreenError
from clawrl_trl.envs.gui.tasks import resolve_step
from clawrl_trl.messages import Json

Oracle = Callable[[GUIEnv], Iterable[Json]]
"""Yields the arguments of one call after the other; it may look at the environment before each."""


def format_calls(*calls: Json, text: str = "") -> str:
    """Format an action: an assistant message with calls of `computer_use`.

    Args:
        *calls (`dict`): The arguments of each call.
        text (`str`, *optional*): The message's text.
    """
    listed = [
        {"id": f"call_{place}", "type": "function", "function": {"name": TOOL, "arguments": json.dumps(arguments)}}
        for place, arguments in enumerate(calls)
    ]
    return json.dumps({"role": "assistant", "content": text, "tool_calls": listed})


def follow_task_oracle(env: GUIEnv) -> Iterator[Json]:
    """Yield the calls of the oracle that is part of the task."""
    for step in getattr(env.task, "oracle", ()):
        try:
            yield resolve_step(step, env.elements)
        except ScreenError:  # the page is not as the oracle expects; the outcome will show that
            return


def solve(env: GUIEnv, state: TensorDictBase, oracle: Oracle = follow_task_oracle) -> Any:
    """Play an episode by an oracle; it terminates the episode if the page does not.

    Args:
        env ([`GUIEnv`]): An environment that was just reset.
        state (`TensorDictBase`): The state that the reset returned.
        oracle (`Oracle`, *optional*, defaults to [`written`]): The oracle.

    Returns:
        `TensorDictBase`: The last state, with `reward` and `outcome`.
    """
    for arguments in oracle(env):
        if state["done"]:
            return state
        state = step_with_calls(env, state, arguments)
    return state if state["done"] else step_with_calls(env, state, {"action": "terminate"})


def step_with_calls(env: GUIEnv, state: TensorDictBase, *calls: Json) -> Any:
    """Step the environment by one action with these calls; returns the next state."""
    return env.step(state.clone(recurse=False).set("action", format_calls(*calls)))["next"]
