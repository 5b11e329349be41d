"""Terminal tasks in the layout of Harbor, and of Terminal-Bench before it.

```
my-task/
  instruction.md            instruction for the agent             (Terminal-Bench: task.yaml)
  task.toml                 difficulty, time-outs
  environment/Dockerfile    the initial state, and files it copies
  tests/                    test.sh, which writes /logs/verifier/reward.txt, or test_*.py for pytest
  solution/solve.sh         the oracle                            (Terminal-Bench: solution.sh)
```

A set is a folder of such folders, or a JSONL file with a row `{"id": ..., "files": {path: text}}` for each task: the
same files, one line a task. This module only reads; `clawrl_trl.envs.terminal.task_world` sets a world up from it.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from clawrl_trl.errors import UserError
from clawrl_trl.json_lines import split_lines
from clawrl_trl.messages import Json

DIFFICULTIES = {"easy": 1, "medium": 2, "hard": 3}
VERIFIER_TIMEOUT = 60.0
"""Seconds the tests may take where the task sets no time-out."""
MAX_BYTES = 64 << 20
"""Largest task folder; a larger one is probably no task but a folder named by mistake."""


@dataclass(frozen=True)
class TaskFolder:
    """One terminal task.

    Args:
        id (`str`): Its name.
        files (`Mapping[str, bytes]`): Its files, by path within its folder.

    Raises:
        UserError: If a file's path leads out of the folder, or what every task needs is missing.
    """

    id: str
    files: Mapping[str, bytes]

    def __post_init__(self) -> None:
        for path in self.files:
            if path.startswith("/") or ".." in PurePosixPath(path).parts:
                raise UserError(f"The task {self.id!r} has a file outside its folder: {path!r}.")
        if not self.instruction.strip():
            raise UserError(f"The task {self.id!r} has no instruction: add an instruction.md.")
        if not self.select_files("tests"):
            raise UserError(f"The task {self.id!r} has no tests: add tests/test.sh or tests/test_*.py.")
        try:
            float(self.verifier_timeout)
        except (TypeError, ValueError):
            raise UserError(
                f"The task {self.id!r} says no number of seconds for its tests: see its settings."
            ) from None

    @property
    def instruction(self) -> str:
        """The instruction for the agent."""
        if "instruction.md" in self.files:
            return self.read_text("instruction.md").strip()
        return str(self.config.get("instruction") or "").strip()

    @cached_property
    def config(self) -> Json:
        """Content of `task.toml` or `task.yaml`.

        Raises:
            UserError: If it can't be read.
        """
        try:
            if "task.toml" in self.files:
                return tomllib.loads(self.read_text("task.toml"))
            settings = yaml.safe_load(self.read_text("task.yaml")) if "task.yaml" in self.files else {}
        except (tomllib.TOMLDecodeError, yaml.YAMLError) as error:
            raise UserError(f"The settings of the task {self.id!r} can't be read: {error}.") from error
        return settings if isinstance(settings, dict) else {}

    @property
    def difficulty(self) -> int:
        """Its difficulty step, from 1 (easy) to 3 (hard)."""
        value = self._read_setting("metadata", "difficulty", "difficulty")
        return value if value in DIFFICULTIES.values() else DIFFICULTIES.get(str(value), 2)

    @property
    def verifier_timeout(self) -> float:
        """Seconds its tests may take."""
        return float(self._read_setting("verifier", "timeout_sec", "max_test_timeout_sec") or VERIFIER_TIMEOUT)

    @property
    def solution(self) -> str | None:
        """The path of the script that solves it; `None`: it has none."""
        return next((path for path in ("solution/solve.sh", "solution.sh") if path in self.files), None)

    @property
    def dockerfile(self) -> str | None:
        """The path of the Dockerfile that describes its world; `None`: it has none."""
        return next((path for path in ("environment/Dockerfile", "Dockerfile") if path in self.files), None)

    def oracle(self) -> list[str]:
        """Return actions that solve the task: its solution as one command, where that is one script; else none."""
        if self.solution is None or len(self.select_files("solution")) > 1:
            return []
        script = self.read_text(self.solution)
        lines = [line for line in script.splitlines() if line.strip() and not line.startswith("#!")]
        command = "\n".join(lines[1:] if lines[:1] == ["cd /app"] else lines)
        call = {"name": "shell_exec", "arguments": {"command": command}}
        return [f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>", *self.noop()]

    def noop(self) -> list[str]:
        """Return actions that end the episode with nothing done."""
        return ["Done."]

    def read_text(self, path: str) -> str:
        """Read a file as text."""
        return self.files[path].decode(errors="replace")

    def select_files(self, folder: str) -> dict[str, bytes]:
        """Select the files below a folder, by path within it."""
        return {path[len(folder) + 1 :]: data for path, data in self.files.items() if path.startswith(f"{folder}/")}

    def write(self, folder: Path) -> None:
        """Write its files into a folder."""
        for path, data in self.files.items():
            write_file(folder / path, data)

    def _read_setting(self, section: str, name: str, flat: str) -> Any:
        table = self.config.get(section)
        return table.get(name) if isinstance(table, dict) else self.config.get(flat)


def write_file(path: Path, data: bytes) -> None:
    """Write a file that all may read, with the folders above it; scripts may be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o755 if data.startswith(b"#!") else 0o644)


def load_tasks(path: str | Path, *, difficulty: int | None = None) -> list[TaskFolder]:
    """Read a task, a folder of tasks, or a JSONL file of them.

    Args:
        path (`str` or `Path`): The task's folder, the folder of folders, or the file.
        difficulty (`int`, *optional*): Only those of this difficulty step.

    Raises:
        UserError: If there is no task, or one can't be read.
    """
    path = Path(path)
    if path.is_file():
        tasks = [_parse_row(row, f"{path}:{number}") for number, row in enumerate(_read_lines(path), 1)]
    elif _is_task(path):
        tasks = [_read_folder(path)]
    elif path.is_dir():
        tasks = [_read_folder(folder) for folder in sorted(path.iterdir()) if _is_task(folder)]
    else:
        raise UserError(f"There are no tasks at {path}: name a task's folder, a folder of such, or a JSONL file.")
    tasks = [task for task in tasks if difficulty in (None, task.difficulty)]
    if not tasks:
        kind = f" of difficulty {difficulty}" if difficulty is not None else ""
        raise UserError(f"{path} holds no task{kind}: a task's folder has an instruction.md or a task.yaml.")
    names = [task.id for task in tasks]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise UserError(f"{path} holds two tasks named {duplicate!r}: rename one.")
    return tasks


def save_tasks(tasks: Sequence[TaskFolder], path: Path) -> None:
    """Write tasks whose files are all text into a JSONL file."""
    rows = ({"id": task.id, "files": {name: data.decode() for name, data in task.files.items()}} for task in tasks)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _is_task(folder: Path) -> bool:
    return (folder / "instruction.md").is_file() or (folder / "task.yaml").is_file()


def _read_folder(folder: Path) -> TaskFolder:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    size = sum(path.stat().st_size for path in paths)
    if size > MAX_BYTES:
        raise UserError(f"The task {folder} holds {size >> 20} MB: keep a task below {MAX_BYTES >> 20} MB.")
    return TaskFolder(folder.name, {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths})


def _read_lines(path: Path) -> list[str]:
    return [line for line in split_lines(path.read_text()) if line.strip()]


def _parse_row(line: str, where: str) -> TaskFolder:
    try:
        row = json.loads(line)
        files = {name: text.encode() for name, text in row["files"].items()}
        return TaskFolder(str(row["id"]), files)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f'{where} is no task: a row is {{"id": ..., "files": {{path: text}}}}.') from error
