"""Tasks on a screen: instruction, page or program, checks, and a solution.

A web task is data: a page in a folder, constants for its scripts, and JavaScript expressions that check the page. It
comes from a line of a JSONL file, whose pages lie in `pages/` beside it, or from a folder of its own with
`task.json` and its files; both have the same fields.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from clawrl_trl.envs.gui.screen import Element, Screen, ScreenError, Size
from clawrl_trl.errors import UserError
from clawrl_trl.json_lines import split_lines
from clawrl_trl.messages import Json


class Scene(Protocol):
    """Protocol of a task under way on a screen."""

    instruction: str

    @property
    def screen(self) -> Screen:
        """The screen that the agent works on."""

    def measure_progress(self) -> float:
        """Measure how much of the task is done, 0 to 1."""

    def has_ended(self) -> bool:
        """Return whether the page has ended the episode."""

    def compute_outcome(self) -> float:
        """Compute how well the task was done, in [-1, 1]."""

    def close(self) -> None:
        """Close what the scene has opened; idempotent."""


class WindowTask(Protocol):
    """Protocol of a task that brings its own window."""

    def open_scene(self) -> Scene:
        """Open its window."""


@dataclass(frozen=True)
class WebTask:
    """A task on a web page.

    Attributes:
        id (`str`): Its name, unique in its set.
        root (`Path`): The folder that is served to the browser.
        page (`str`): The page to begin with, relative to `root`.
        instruction (`str`): The instruction for the agent; if empty, the value of `ask`.
        ask (`str`): A JavaScript expression for the instruction, for pages that make up their own.
        data (`dict`): A constant `TASK` for the page's scripts; it must not give the solution away.
        setup (`str`): JavaScript run once the page has loaded.
        ready (`str`): JavaScript, true when the page is ready after that.
        checks (`tuple[str, ...]`): JavaScript conditions; the share that holds is the progress, all of them solve it.
        ends (`str`): JavaScript, true when the page has ended the episode.
        outcome (`str`): JavaScript for the outcome; by default 1 when all checks hold, else -1.
        oracle (`tuple[dict, ...]`): Arguments of `computer_use` that solve it. In place of `ref` they may have
            `element`, a label such as `button "OK"`, which means the first element of that label in the outline.
        difficulty (`int`): 1 is easiest.
        size (`tuple[int, int]`): Width and height of the page in pixels.
    """

    id: str
    root: Path
    page: str
    instruction: str = ""
    ask: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    setup: str = ""
    ready: str = ""
    checks: tuple[str, ...] = ()
    ends: str = ""
    outcome: str = ""
    oracle: tuple[Json, ...] = ()
    difficulty: int = 1
    size: Size = (320, 240)


_FIELD_NAMES = {field.name for field in fields(WebTask)} - {"root"}


def read_tasks(path: str | Path, *, difficulty: int | None = None) -> list[WebTask]:
    """Read web tasks.

    Args:
        path (`str` or `Path`): A JSONL file, a task folder (with `task.json`), or a folder of task folders.
        difficulty (`int`, *optional*): Only those of this difficulty.

    Raises:
        UserError: If there is no task, or one is not of the form.

    Examples:
        >>> tasks = read_tasks("examples/tasks/gui/train.jsonl", difficulty=1)
    """
    path = Path(path)
    if path.is_file():
        tasks = [_build_task(row, path.parent / "pages", where) for row, where in _read_rows(path)]
    else:
        folders = sorted(folder.parent for folder in [*path.glob("task.json"), *path.glob("*/task.json")])
        tasks = [
            _build_task({"id": folder.name, **_read_object(folder / "task.json")}, folder, str(folder))
            for folder in folders
        ]
    tasks = [task for task in tasks if difficulty in (None, task.difficulty)]
    if not tasks:
        kind = f" of difficulty {difficulty}" if difficulty is not None else ""
        raise UserError(f"{path} holds no GUI tasks{kind}: it needs lines of JSON, or folders with a task.json.")
    if len({task.id for task in tasks}) < len(tasks):
        raise UserError(f"{path}: two tasks have the same id.")
    return tasks


def resolve_step(step: Mapping[str, Any], outline: Sequence[Element]) -> Json:
    """Turn an oracle's step into arguments of `computer_use`.

    Raises:
        ScreenError: If no element has the label it names.
    """
    arguments = dict(step)
    label = arguments.pop("element", None)
    if label is None:
        return arguments
    match = next((element for element in outline if element.label == label), None)
    if match is None:
        raise ScreenError(f"there is no {label}")
    return {**arguments, "ref": match.ref}


def _read_rows(path: Path) -> Iterator[tuple[Json, str]]:
    for number, line in enumerate(split_lines(path.read_text(encoding="utf-8")), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield _parse_object(line, where), where


def _read_object(path: Path) -> Json:
    return _parse_object(path.read_text(encoding="utf-8"), str(path))


def _parse_object(text: str, where: str) -> Json:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UserError(f"{where} is no JSON: {error}.") from None
    if not isinstance(content, dict):
        raise UserError(f"{where} must be a JSON object.")
    return content


def _build_task(row: Json, root: Path, where: str) -> WebTask:
    unknown = set(row) - _FIELD_NAMES
    if unknown:
        raise UserError(
            f"{where}: no such field: {', '.join(sorted(unknown))}; there are {', '.join(sorted(_FIELD_NAMES))}."
        )
    required: dict[str, type] = {"id": str, "page": str, "checks": list, "oracle": list}
    for name, kind in required.items():
        if not isinstance(row.get(name), kind):
            raise UserError(f"{where}: a GUI task needs {name}, a {kind.__name__}.")
    if not (row.get("instruction") or row.get("ask")) or not row["checks"]:
        raise UserError(f"{where}: a GUI task needs an instruction and at least one check.")
    if not (root / row["page"]).is_file():
        raise UserError(f"{where}: there is no page {root / row['page']}.")
    lists: Json = {name: tuple(row[name]) for name in ("checks", "oracle", "size") if name in row}
    return WebTask(**(row | lists | {"root": root}))
