"""The environments by name, as `--env` and `clawrl env-server` know them, and where their tasks come from.

Those of this package are in a table; other packages add theirs by an entry point (`clawrl_trl.plugins`).

A task set is a folder with a file or folder for each split (`train`, `heldout`); the shipped ones lie in
`examples/tasks`, under the environment's name. Of tasks that are not split, a fifth is held out, chosen by a hash of
their ids and before any filter by difficulty, so that a task is held out in every run or in none. An environment's
module is imported when it is built, not before.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clawrl_trl.errors import UserError
from clawrl_trl.plugins import ENVIRONMENTS, load_plugin, plugin_names

if TYPE_CHECKING:
    from clawrl_trl.envs.base.agent import AgentEnv, Task

SPLITS = ("train", "heldout")
HELD_OUT_ONE_IN = 5
"""Where tasks are not split, one of so many is held out."""
_SPLIT_ENDINGS = (".jsonl", ".parquet", "")
_RESERVED_ARGUMENTS = ("self", "tasks", "max_steps", "first_task")
"""Arguments of an environment that `--env_options` can't set: flags of their own do."""


@dataclass(frozen=True)
class EnvironmentEntry:
    """An environment in the catalogue: its class, the reader of its tasks, and its defaults.

    Attributes:
        env (`str`): `package.module:class` of the environment, a subclass of [`AgentEnv`].
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

    def read_tasks(self, source: Path, split: str, difficulty: int | None = None) -> Sequence["Task"]:
        """Read the tasks of a split, at one difficulty or at all.

        Args:
            source (`Path`): The task set.
            split (`str`): `"train"` or `"heldout"`.
            difficulty (`int`, *optional*): Only tasks of this difficulty.

        Raises:
            UserError: If there are none, or the task set has one split without the other.
        """
        missing = [name for name in SPLITS if _find_split(source, name) is None]
        # With one split alone, the rest of the folder would be shared out and a task could be on both sides.
        if len(missing) == 1:
            raise UserError(
                f"{source} is split, but has no {missing[0]}.jsonl: add it, or name one file as --tasks, "
                "of which a fifth is held out."
            )
        path = _find_split(source, split) or source
        tasks: Sequence[Task] = _import_attribute(self.reader)(path)
        if path == source:
            tasks = _select_split(tasks, split)
        # After the split: a task held out at one difficulty must not be trained on in a run over all of them.
        tasks = [task for task in tasks if difficulty in (None, getattr(task, "difficulty", None))]
        if not tasks:
            kind = "tasks" if difficulty is None else f"tasks of difficulty {difficulty}"
            raise UserError(f"{path} has no {kind}: name another --tasks or --difficulty.")
        return tasks

    def make_factory(
        self,
        source: Path,
        split: str,
        *,
        difficulty: int | None = None,
        max_steps: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Callable[[], "AgentEnv[Any]"], int]:
        """Return a function that builds an environment over the tasks of a split, and the number of tasks.

        Args:
            source (`Path`): The task set.
            split (`str`): `"train"` or `"heldout"`.
            difficulty (`int`, *optional*): Only tasks of this difficulty.
            max_steps (`int`, *optional*): Most actions of an episode. Default: the entry's.
            options (`Mapping`, *optional*): Further arguments of the environment.

        Raises:
            UserError: If there are no tasks, or the environment has no such argument.
        """
        env_class, tasks = _import_attribute(self.env), self.read_tasks(source, split, difficulty)
        parameters = [name for name in signature(env_class.__init__).parameters if name not in _RESERVED_ARGUMENTS]
        for name in options or {}:
            if name not in parameters:
                raise UserError(
                    f"--env_options: {env_class.__name__} has no {name!r}; it has {', '.join(parameters)}."
                )
        arguments: dict[str, Any] = {"max_steps": max_steps or self.max_steps}
        if self.tools:
            folder = source if source.is_dir() else source.parent
            arguments["tools"] = os.environ.get("TOOLS_CONFIG") or folder / "tools.json"
        arguments |= options or {}
        return (lambda: env_class(tasks, **arguments)), len(tasks)


BUILTIN_ENVIRONMENTS = {
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


def list_environments() -> list[str]:
    """Return the names of all environments, this package's and those that others add."""
    return sorted({*BUILTIN_ENVIRONMENTS, *plugin_names(ENVIRONMENTS)})


def get_environment(name: str) -> EnvironmentEntry:
    """Return the environment of that name; one of this package goes before another's.

    Raises:
        UserError: If there is none, or a package adds something else under that name.
    """
    entry = BUILTIN_ENVIRONMENTS.get(name) or load_plugin(ENVIRONMENTS, name)
    if entry is None:
        raise UserError(f"--env {name!r} is unknown: use {', '.join(list_environments())}.")
    if not isinstance(entry, EnvironmentEntry):
        raise UserError(f"--env {name!r}: the entry point is a {type(entry).__name__}, not an EnvironmentEntry.")
    return entry


def find_task_folder(tasks: str | None, env: str, shipped: Path) -> Path:
    """Return the absolute path of a task set, given by its path or by the name of a shipped one.

    Args:
        tasks (`str`, *optional*): Path or name. Default: the set named like the environment.
        env (`str`): The environment.
        shipped (`Path`): Folder of the shipped sets.

    Raises:
        UserError: If there is no such file or folder.
    """
    tasks = tasks or os.environ.get(get_environment(env).variable or "")
    for path in (Path(tasks) if tasks else shipped / env, shipped / (tasks or env)):
        if path.exists():
            return path.resolve()
    names = ", ".join(sorted(path.name for path in shipped.iterdir())) if shipped.is_dir() else "none"
    raise UserError(f"--tasks {tasks or env}: there is no such file or folder, nor a shipped set ({names}).")


def _find_split(source: Path, split: str) -> Path | None:
    """Find the file or folder of a split, if the task set is split."""
    candidates = (source / f"{split}{ending}" for ending in _SPLIT_ENDINGS)
    return next((path for path in candidates if path.exists()), None)


def _select_split(tasks: Sequence["Task"], split: str) -> Sequence["Task"]:
    """Select the tasks of a split from a set that is not split, in their order; a single task serves both."""
    if len(tasks) < 2:
        return tasks
    # Ranked by a hash, not drawn with a seed: the choice must be the same in every run.
    ids = sorted((task.id for task in tasks), key=lambda task_id: hashlib.sha256(task_id.encode()).digest())
    heldout = set(ids[: max(1, len(ids) // HELD_OUT_ONE_IN)])
    return [task for task in tasks if (task.id in heldout) == (split == "heldout")]


def _import_attribute(spec: str) -> Any:
    module, name = spec.split(":")
    return getattr(import_module(module), name)
