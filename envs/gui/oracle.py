"""Playing a GUI task by its oracle, through the same actions that a policy has."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tensordict import TensorDictBase

from clawrl_trl.envs.base.message import Json
from clawrl_trl.envs.gui.computer_use import TOOL
from clawrl_trl.envs.gui.env import GUIEnv
from clawrl_trl.envs.gui.screen import ScreenError
from clawrl_trl.envs.gui.tasks import resolve

Oracle = Callable[[GUIEnv], Iterable[Json]]
"""Gives the arguments of one call after the other; it may look at the environment before each."""


def said(*calls: Json, text: str = "") -> str:
    """An action: an assistant message with calls of `computer_use`.

    Args:
        *calls (`dict`): The arguments of each call.
        text (`str`, *optional*): What it says besides.
    """
    listed = [
        {"id": f"call_{place}", "type": "function", "function": {"name": TOOL, "arguments": json.dumps(arguments)}}
        for place, arguments in enumerate(calls)
    ]
    return json.dumps({"role": "assistant", "content": text, "tool_calls": listed})


def written(env: GUIEnv) -> Iterator[Json]:
    """The oracle that is written in the task."""
    for step in getattr(env.task, "oracle", ()):
        try:
            yield resolve(step, env.elements)
        except ScreenError:  # the outline is not what it was written for, which its outcome will say
            return


def solve(env: GUIEnv, state: TensorDictBase, oracle: Oracle = written) -> Any:
    """Play an episode by an oracle; it terminates the episode if the page does not.

    Args:
        env ([`GUIEnv`]): An environment that was just reset.
        state (`TensorDictBase`): What the reset gave.
        oracle (`Oracle`, *optional*, defaults to [`written`]): The oracle.

    Returns:
        `TensorDictBase`: The last state, with `reward` and `outcome`.
    """
    for arguments in oracle(env):
        if state["done"]:
            return state
        state = act(env, state, arguments)
    return state if state["done"] else act(env, state, {"action": "terminate"})


def act(env: GUIEnv, state: TensorDictBase, *calls: Json) -> Any:
    """The state after one action."""
    return env.step(state.clone(recurse=False).set("action", said(*calls)))["next"]
