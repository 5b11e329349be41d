"""Check of task sets: every oracle must succeed, and doing nothing must fail.

Each kind of task is recognised by its form, and played in its own environment, so that what is checked is what an
agent meets. `clawrl tasks check PATH` prints what comes of it.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from tensordict import TensorDict

from clawrl_trl.envs.base.agent import AgentEnv, WorldBroken
from clawrl_trl.errors import UserError


@dataclass(frozen=True)
class Checked:
    """Result of checking one task.

    Attributes:
        task (`str`): Its name.
        place (`str`): The set it is in.
        solved (`float`): The oracle's outcome; NaN: its world broke, or there is no oracle.
        untouched (`float`): The outcome of doing nothing; NaN: its world broke.
        reason (`str`): Why a world broke.
    """

    task: str
    place: str
    solved: float
    untouched: float
    reason: str = ""

    @property
    def ok(self) -> bool:
        """True if the oracle succeeds and doing nothing fails."""
        return self.solved == 1.0 and self.untouched < 1.0


def check_tasks(path: str | Path) -> Iterator[Checked]:
    """Check the tasks at a path.

    Args:
        path (`str` or `Path`): A task, a set of tasks, or a folder with such at any depth.

    Raises:
        UserError: If there is no task, or one can't be read.
    """
    places = list(task_sets(Path(path)))
    if not places:
        raise UserError(f"There are no tasks at {path}: name a task set (JSONL), or a folder with some.")
    for kind, place in places:
        yield from _CHECKS[kind](place)


def task_sets(path: Path) -> Iterator[tuple[str, Path]]:
    """The task sets at a path, each with its kind: `terminal`, `gui`, `toolcall` or `swe`."""
    if path.is_file():
        kind = _kind_of_file(path) if path.suffix == ".jsonl" else None
        if kind is not None:
            yield kind, path
    elif (kind := _kind_of_folder(path)) is not None:
        yield kind, path
    elif path.is_dir():
        kinds = {one: _kind_of_folder(one) for one in sorted(path.iterdir())}
        yield from ((kind, path) for kind in sorted({kind for kind in kinds.values() if kind}))
        for one, kind in kinds.items():
            if kind is None:
                yield from task_sets(one)


def _kind_of_folder(folder: Path) -> str | None:
    if (folder / "instruction.md").is_file() or (folder / "task.yaml").is_file():
        return "terminal"
    return "gui" if (folder / "task.json").is_file() else None


def _kind_of_file(file: Path) -> str | None:
    with file.open() as lines:
        first = next((line for line in lines if line.strip()), "")
    try:
        row = json.loads(first)
    except ValueError:
        return None
    marks = {"instance_id": "swe", "question": "toolcall", "page": "gui", "files": "terminal"}
    return next((kind for mark, kind in marks.items() if isinstance(row, dict) and mark in row), None)


def _terminal(path: Path) -> Iterator[Checked]:
    from clawrl_trl.envs.sandbox.sandbox import default_backend
    from clawrl_trl.envs.terminal.task_folder import TaskFolder, load_tasks
    from clawrl_trl.envs.terminal.task_world import TaskWorld

    default_backend()

    def outcome(task: TaskFolder, solve: bool) -> tuple[float, str]:
        try:
            with TaskWorld(task) as world:
                world.set_up()
                if solve:
                    world.solve()
                return world.verify().outcome, ""
        except WorldBroken as error:
            return float("nan"), str(error)

    for task in load_tasks(path):
        yield _checked(task.id, path, outcome(task, True), outcome(task, False))


class _Solvable(Protocol):
    @property
    def id(self) -> str: ...

    def oracle(self) -> list[str]: ...

    def noop(self) -> list[str]: ...


def _played(env: AgentEnv[Any], tasks: Sequence[_Solvable], path: Path) -> Iterator[Checked]:
    """Check tasks that know the actions of their oracles."""
    with closing(env):
        for index, task in enumerate(tasks):
            solved, untouched = (_play(env, index, actions) for actions in (task.oracle(), task.noop()))
            yield _checked(task.id, path, solved, untouched)


def _play(env: AgentEnv[Any], index: int, actions: Sequence[str]) -> tuple[float, str]:
    state = _reset(env, index)
    for action in actions:
        if not state["done"].item():
            state = env.step(state.set("action", action))["next"]
    return _end_of(state)


def _reset(env: AgentEnv[Any], index: int) -> Any:
    return env.reset(TensorDict({"next_task": torch.tensor([index])}, batch_size=()))


def _end_of(state: Any) -> tuple[float, str]:
    return state["outcome"].item(), state["reason"] or ("" if state["done"].item() else "the oracle did not end")


def _checked(name: str, path: Path, solved: tuple[float, str], untouched: tuple[float, str]) -> Checked:
    return Checked(name, str(path), solved[0], untouched[0], solved[1] or untouched[1])


def _toolcall(path: Path) -> Iterator[Checked]:
    from clawrl_trl.envs.toolcall.env import ToolCallEnv
    from clawrl_trl.envs.toolcall.tasks import read_tool_tasks

    tools = path.parent / "tools.json"
    if not tools.is_file():
        raise UserError(f"The tools of {path} are not known: put their TOOLS_CONFIG beside it, named tools.json.")
    tasks = read_tool_tasks(path)
    yield from _played(ToolCallEnv(tasks, tools=tools), tasks, path)


def _swe(path: Path) -> Iterator[Checked]:
    from clawrl_trl.envs.swe.env import SWEEnv
    from clawrl_trl.envs.swe.tasks import read_swe_tasks

    tasks = read_swe_tasks(path)
    yield from _played(SWEEnv(tasks), tasks, path)


def _gui(path: Path) -> Iterator[Checked]:
    from clawrl_trl.envs.gui.env import GUIEnv
    from clawrl_trl.envs.gui.oracle import solve, step_with_calls
    from clawrl_trl.envs.gui.tasks import WebTask, read_tasks

    by_size: dict[Any, list[WebTask]] = defaultdict(list)
    for task in read_tasks(path):
        by_size[tuple(task.size)].append(task)
    for tasks in by_size.values():
        with closing(GUIEnv(tasks)) as env:
            for index, task in enumerate(tasks):
                solved = _end_of(solve(env, _reset(env, index)))
                untouched = _end_of(step_with_calls(env, _reset(env, index), {"action": "terminate"}))
                yield _checked(task.id, path, solved, untouched)


_CHECKS: dict[str, Callable[[Path], Iterator[Checked]]] = {
    "gui": _gui,
    "swe": _swe,
    "terminal": _terminal,
    "toolcall": _toolcall,
}
