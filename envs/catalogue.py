"""The environments by name, as `--env` and `clawrl env-server` know them, and where their tasks come from.

Those of this package are in a table; other packages add theirs by an entry point (`clawrl_trl.plugins`).

A task set is a folder with a file or folder for each split (`train`, `heldout`); the shipped ones lie in
`examples/tasks`, under the environment's name. Of tasks that are not split, a fifth is held out, chosen by their ids
whatever the difficulty: what a run is measured on is nothing that it, or another run, practised. Nothing is imported
before it is wanted.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from clawrl_trl.errors import UserError
from clawrl_trl.plugins import ENVIRONMENTS, load_plugin, plugin_names

SPLITS = ("train", "heldout")
HELD_OUT = 5
"""Where tasks are not split, one of so many is held out."""
_OURS = ("self", "tasks", "max_steps", "first_task")


@dataclass(frozen=True)
class EnvironmentEntry:
    """A kind of world.

    Attributes:
        env (`str`): `package.module:class` of its environment.
        reader (`str`): `package.module:function` that reads its tasks from a path.
        max_steps (`int`): Most actions of an episode, by default.
        variable (`str`, *optional*): Environment variable that names the task set where `--tasks` doesn't.
        tools (`bool`): Whether it needs tools: those of `TOOLS_CONFIG`, else of `tools.json` in the task set.
        hints (`bool`): Whether its checker has words for a teacher, see [`AgentEnv.advise`].
    """

    env: str
    reader: str
    max_steps: int
    variable: str | None = None
    tools: bool = False
    hints: bool = False

    def tasks(self, source: Path, split: str, difficulty: int | None = None) -> Sequence[Any]:
        """The tasks of a split, at one difficulty or at all.

        Raises:
            UserError: If there are none, or the task set has one split without the other.
        """
        missing = [one for one in SPLITS if _place(source, one) is None]
        if len(missing) == 1:
            raise UserError(
                f"{source} is split, but has no {missing[0]}.jsonl: add it, or name one file as --tasks, "
                "of which a fifth is held out."
            )
        path = _place(source, split) or source
        found: Sequence[Any] = _named(self.reader)(path)
        if path == source:
            found = _share(found, split)
        found = [task for task in found if difficulty in (None, getattr(task, "difficulty", None))]
        if not found:
            wanted = "tasks" if difficulty is None else f"tasks of difficulty {difficulty}"
            raise UserError(f"{path} has no {wanted}: name another --tasks or --difficulty.")
        return found

    def maker(
        self,
        source: Path,
        split: str,
        *,
        difficulty: int | None = None,
        max_steps: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Callable[[], Any], int]:
        """Return a maker of environments over the tasks of a split, and the number of tasks.

        Args:
            source (`Path`): The task set.
            split (`str`): The split.
            difficulty (`int`, *optional*): Only tasks of this difficulty.
            max_steps (`int`, *optional*): Most actions of an episode. Default: the setting's.
            options (`Mapping`, *optional*): Further arguments of the environment.

        Raises:
            UserError: If there are no tasks, or the environment has no such argument.
        """
        env, tasks = _named(self.env), self.tasks(source, split, difficulty)
        known = [name for name in signature(env.__init__).parameters if name not in _OURS]
        for name in options or {}:
            if name not in known:
                raise UserError(f"--env_options: {env.__name__} has no {name!r}; it has {', '.join(known)}.")
        chosen: dict[str, Any] = {"max_steps": max_steps or self.max_steps}
        if self.tools:
            beside = source if source.is_dir() else source.parent
            chosen["tools"] = os.environ.get("TOOLS_CONFIG") or beside / "tools.json"
        chosen |= options or {}
        return (lambda: env(tasks, **chosen)), len(tasks)


SETTINGS = {
    "terminal": EnvironmentEntry(
        "clawrl_trl.envs.terminal.env:TerminalEnv", "clawrl_trl.envs.terminal.task_folder:load_tasks", 10
    ),
    "gui": EnvironmentEntry("clawrl_trl.envs.gui.env:GUIEnv", "clawrl_trl.envs.gui.tasks:read_tasks", 30, hints=True),
    "swe": EnvironmentEntry(
        "clawrl_trl.envs.swe.env:SWEEnv",
        "clawrl_trl.envs.swe.tasks:read_swe_tasks",
        20,
        variable="SWE_BENCH_PATH",
        hints=True,
    ),
    "toolcall": EnvironmentEntry(
        "clawrl_trl.envs.toolcall.env:ToolCallEnv", "clawrl_trl.envs.toolcall.tasks:read_tool_tasks", 16, tools=True
    ),
}
"""Limits are the reference system's (arXiv 2603.10165)."""


def environment_names() -> list[str]:
    """Return the names of all environments, this package's and those that others add."""
    return sorted({*SETTINGS, *plugin_names(ENVIRONMENTS)})


def setting(name: str) -> EnvironmentEntry:
    """Return the environment of that name; one of this package goes before another's.

    Raises:
        UserError: If there is none, or a package adds something else under that name.
    """
    entry = SETTINGS.get(name) or load_plugin(ENVIRONMENTS, name)
    if entry is None:
        raise UserError(f"--env {name!r} is unknown: use {', '.join(environment_names())}.")
    if not isinstance(entry, EnvironmentEntry):
        raise UserError(f"--env {name!r}: the entry point is a {type(entry).__name__}, not an EnvironmentEntry.")
    return entry


def task_folder(tasks: str | None, env: str, shipped: Path) -> Path:
    """The folder of a task set: a path, or the name of a shipped one.

    Args:
        tasks (`str`, *optional*): Path or name. Default: the set named like the environment.
        env (`str`): The environment.
        shipped (`Path`): Where the shipped sets are.

    Raises:
        UserError: If there is no such folder.
    """
    tasks = tasks or os.environ.get(setting(env).variable or "")
    for path in (Path(tasks) if tasks else shipped / env, shipped / (tasks or env)):
        if path.exists():
            return path.resolve()
    names = ", ".join(sorted(one.name for one in shipped.iterdir())) if shipped.is_dir() else "none"
    raise UserError(f"--tasks {tasks or env}: there is no such file or folder, nor a shipped set ({names}).")


def _place(source: Path, split: str) -> Path | None:
    """Find the file or folder of a split, if the task set is split."""
    places = (source / f"{split}{ending}" for ending in (".jsonl", ".parquet", ""))
    return next((one for one in places if one.exists()), None)


def _share(tasks: Sequence[Any], split: str) -> Sequence[Any]:
    """The tasks of a split, where they are not split: the same ones always, in their order; one task serves both."""
    if len(tasks) < 2:
        return tasks
    ids = sorted((task.id for task in tasks), key=lambda one: hashlib.sha256(one.encode()).digest())
    heldout = set(ids[: max(1, len(ids) // HELD_OUT)])
    return [task for task in tasks if (task.id in heldout) == (split == "heldout")]


def _named(spec: str) -> Any:
    module, name = spec.split(":")
    return getattr(import_module(module), name)
