"""Check of task sets: every oracle must succeed, and doing nothing must fail.

Each kind of task is recognised by its form, and played in its own environment, so that what is checked is what an
agent meets. `clawrl tasks check PATH` prints the results.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from tensordict import TensorDict, TensorDictBase

from clawrl_trl.envs.base.agent import AgentEnv, WorldBroken
from clawrl_trl.errors import UserError


@dataclass(frozen=True)
class TaskCheck:
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


def check_tasks(path: str | Path) -> Iterator[TaskCheck]:
    """Check the tasks at a path.

    Args:
        path (`str` or `Path`): A task, a set of tasks, or a folder with such at any depth.

    Raises:
        UserError: If there is no task, or one can't be read.
    """
    task_sets = list(find_task_sets(Path(path)))
    if not task_sets:
        raise UserError(f"There are no tasks at {path}: name a task set (JSONL), or a folder with some.")
    for kind, place in task_sets:
        yield from _CHECKS[kind](place)


def find_task_sets(path: Path) -> Iterator[tuple[str, Path]]:
    """Find the task sets at a path, each with its kind: `terminal`, `gui`, `toolcall` or `swe`."""
    if path.is_file():
        kind = _recognise_file(path) if path.suffix == ".jsonl" else None
        if kind is not None:
            yield kind, path
    elif (kind := _recognise_folder(path)) is not None:
        yield kind, path
    elif path.is_dir():
        kinds = {child: _recognise_folder(child) for child in sorted(path.iterdir())}
        # A folder of task folders is one set of each kind in it: its reader goes through the children itself.
        yield from ((kind, path) for kind in sorted({kind for kind in kinds.values() if kind}))
        for child, kind in kinds.items():
            if kind is None:
                yield from find_task_sets(child)


def _recognise_folder(folder: Path) -> str | None:
    if (folder / "instruction.md").is_file() or (folder / "task.yaml").is_file():
        return "terminal"
    return "gui" if (folder / "task.json").is_file() else None


def _recognise_file(file: Path) -> str | None:
    with file.open() as lines:
        first = next((line for line in lines if line.strip()), "")
    try:
        row = json.loads(first)
    except ValueError:
        return None
    kinds_by_field = {"instance_id": "swe", "question": "toolcall", "page": "gui", "files": "terminal"}
    return next((kind for field, kind in kinds_by_field.items() if isinstance(row, dict) and field in row), None)


class _Result(NamedTuple):
    """Outcome of one played episode, and why its world broke."""

    outcome: float
    reason: str


class _SolvableTask(Protocol):
    """A task that knows the actions of its oracle, and actions that end it with nothing done."""

    @property
    def id(self) -> str: ...

    def oracle(self) -> list[str]: ...

    def noop(self) -> list[str]: ...


def _check_terminal(path: Path) -> Iterator[TaskCheck]:
    from clawrl_trl.envs.sandbox.sandbox import choose_backend
    from clawrl_trl.envs.terminal.task_folder import TaskFolder, load_tasks
    from clawrl_trl.envs.terminal.task_world import TaskWorld

    choose_backend()  # raises: without a sandbox every task would be reported as broken

    def run_world(task: TaskFolder, solve: bool) -> _Result:
        try:
            with TaskWorld(task) as world:
                world.set_up()
                if solve:
                    world.solve()
                return _Result(world.verify().outcome, "")
        except WorldBroken as error:
            return _Result(float("nan"), str(error))

    for task in load_tasks(path):
        yield _make_check(task.id, path, run_world(task, True), run_world(task, False))


def _check_by_playing(env: AgentEnv[Any], tasks: Sequence[_SolvableTask], path: Path) -> Iterator[TaskCheck]:
    with closing(env):
        for index, task in enumerate(tasks):
            solved, untouched = (_play(env, index, actions) for actions in (task.oracle(), task.noop()))
            yield _make_check(task.id, path, solved, untouched)


def _play(env: AgentEnv[Any], index: int, actions: Sequence[str]) -> _Result:
    state = _reset(env, index)
    for action in actions:
        if not state["done"].item():
            state = env.step(state.set("action", action))["next"]
    return _read_result(state)


def _reset(env: AgentEnv[Any], index: int) -> TensorDictBase:
    return env.reset(TensorDict({"next_task": torch.tensor([index])}, batch_size=()))


def _read_result(state: TensorDictBase) -> _Result:
    reason = state["reason"] or ("" if state["done"].item() else "the oracle did not end")
    return _Result(state["outcome"].item(), reason)


def _make_check(name: str, path: Path, solved: _Result, untouched: _Result) -> TaskCheck:
    return TaskCheck(name, str(path), solved.outcome, untouched.outcome, solved.reason or untouched.reason)


def _check_toolcall(path: Path) -> Iterator[TaskCheck]:
    from clawrl_trl.envs.toolcall.env import ToolCallEnv
    from clawrl_trl.envs.toolcall.tasks import read_tool_tasks

    tools = path.parent / "tools.json"
    if not tools.is_file():
        raise UserError(f"The tools of {path} are not known: put their TOOLS_CONFIG beside it, named tools.json.")
    tasks = read_tool_tasks(path)
    yield from _check_by_playing(ToolCallEnv(tasks, tools=tools), tasks, path)


def _check_swe(path: Path) -> Iterator[TaskCheck]:
    from clawrl_trl.envs.swe.env import SWEEnv
    from clawrl_trl.envs.swe.tasks import read_swe_tasks

    tasks = read_swe_tasks(path)
    yield from _check_by_playing(SWEEnv(tasks), tasks, path)


def _check_gui(path: Path) -> Iterator[TaskCheck]:
    from clawrl_trl.envs.gui.env import GUIEnv
    from clawrl_trl.envs.gui.oracle import solve, step_with_calls
    from clawrl_trl.envs.gui.tasks import WebTask, read_tasks

    by_size: dict[tuple[int, ...], list[WebTask]] = defaultdict(list)
    for task in read_tasks(path):
        by_size[tuple(task.size)].append(task)
    for tasks in by_size.values():  # an environment has one screen size
        with closing(GUIEnv(tasks)) as env:
            for index, task in enumerate(tasks):
                solved = _read_result(solve(env, _reset(env, index)))
                untouched = _read_result(step_with_calls(env, _reset(env, index), {"action": "terminate"}))
                yield _make_check(task.id, path, solved, untouched)


_CHECKS: dict[str, Callable[[Path], Iterator[TaskCheck]]] = {
    "gui": _check_gui,
    "swe": _check_swe,
    "terminal": _check_terminal,
    "toolcall": _check_toolcall,
}
