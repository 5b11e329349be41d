"""Software tasks in SWE-bench's format: a repository at a commit, an issue, hidden tests.

A row has `instance_id`, `problem_statement`, `base_commit`, `patch` (the oracle), `test_patch` (the hidden tests),
`FAIL_TO_PASS` and `PASS_TO_PASS` (lists, or JSON of lists), and `repo` ("owner/name"), which is looked for as a
local repository or git bundle. Additions, all optional: `repository` (a path, from the file's folder), `files`
(path to content: the repository as a whole, for small tasks), `image_name` (a Docker image in SWE-bench's manner),
`test_command` (with a log like `pytest -rA`'s or unittest's), `test_messages` (test to text: the hint for a teacher
where the test fails), `difficulty`.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clawrl_trl.errors import UserError
from clawrl_trl.json_lines import split_lines
from clawrl_trl.messages import Json

SENTINEL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""First line of a command's output that submits, as in mini-swe-agent."""


@dataclass(frozen=True)
class SweTask:
    """One issue.

    Attributes:
        id (`str`): The instance's id.
        problem_statement (`str`): The issue.
        test_patch (`str`): The hidden tests, a diff.
        fail_to_pass (`list[str]`): Tests that must come to pass.
        pass_to_pass (`list[str]`): Tests that must go on passing.
        patch (`str`): A diff that solves it.
        repository (`Path`, *optional*): The repository or bundle.
        base_commit (`str`, *optional*): The commit to begin with.
        files (`Mapping[str, str]`): The repository as a whole, where there is no other.
        image (`str`, *optional*): A Docker image that holds it.
        test_command (`str`, *optional*): What runs the hidden tests; default: pytest on their files.
        test_messages (`Mapping[str, str]`): The author's words for tests that fail, as hints for a teacher.
        difficulty (`int`): Difficulty step, from 1.
    """

    id: str
    problem_statement: str
    test_patch: str = field(repr=False)
    fail_to_pass: Sequence[str]
    pass_to_pass: Sequence[str] = ()
    patch: str = field(default="", repr=False)
    repository: Path | None = None
    base_commit: str | None = None
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    image: str | None = None
    test_command: str | None = None
    test_messages: Mapping[str, str] = field(default_factory=dict, repr=False)
    difficulty: int = 1

    def oracle(self) -> list[str]:
        """Return actions that solve the task."""
        return [format_action(f"git apply - <<'END_OF_PATCH'\n{self.patch}END_OF_PATCH"), format_submission()]

    def noop(self) -> list[str]:
        """Return actions that solve nothing: they submit an empty file, since an empty diff would not be tested."""
        return [format_action("touch nothing"), format_submission()]


def format_action(command: str) -> str:
    """Format a command as an action: one bash block."""
    return f"```bash\n{command}\n```"


def format_submission() -> str:
    """Format the action that submits."""
    return format_action(f"echo {SENTINEL}")


def read_swe_tasks(
    path: Path | str | None = None, *, repositories: Path | str | None = None, difficulty: int | None = None
) -> list[SweTask]:
    """Read a task set.

    Args:
        path (`Path` or `str`, *optional*): A JSONL or parquet file, or a folder of them; default: the environment
            variable `SWE_BENCH_PATH`.
        repositories (`Path` or `str`, *optional*): Where repositories lie, as `owner__name`, `owner/name` or
            `name`, each a repository (also `.git`) or a bundle (`.bundle`); default: the environment variable
            `SWE_BENCH_REPOS`, else `repositories` beside the file.
        difficulty (`int`, *optional*): Keep the tasks of this difficulty step only.

    Raises:
        UserError: If there is no such file, or a row is no task or its repository is missing.
    """
    location = path or os.environ.get("SWE_BENCH_PATH")
    if not location:
        raise UserError("No SWE tasks are named: give a JSONL or parquet file, or set SWE_BENCH_PATH.")
    tasks = []
    for file in _find_files(Path(location)):
        repositories_folder = Path(repositories or os.environ.get("SWE_BENCH_REPOS") or file.parent / "repositories")
        tasks += [_build_task(row, file, repositories_folder) for row in _read_rows(file)]
    # The id names an episode's session and its results; two tasks under one would be mixed up.
    if len({task.id for task in tasks}) < len(tasks):
        raise UserError(f"Two tasks in {location} have the same instance_id: rename one.")
    return [task for task in tasks if difficulty in (None, task.difficulty)]


def _find_files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(file for kind in ("*.jsonl", "*.parquet") for file in path.rglob(kind))
        if files:
            return files
    elif path.is_file():
        return [path]
    raise UserError(f"There are no SWE tasks at {path}: name a JSONL or parquet file, or a folder with such files.")


def _read_rows(file: Path) -> Iterator[Json]:
    if file.suffix == ".parquet":
        import pyarrow.parquet

        try:
            yield from pyarrow.parquet.read_table(file).to_pylist()
        except (OSError, ValueError) as error:
            raise UserError(f"{file} is no parquet file: {error}.") from None
        return
    for number, line in enumerate(split_lines(file.read_text()), 1):
        if line.strip():
            try:
                yield dict(json.loads(line))
            except (ValueError, TypeError) as error:
                raise UserError(f"{file}, line {number} is no JSON object: {error}.") from None


def _build_task(row: Json, file: Path, repositories_folder: Path) -> SweTask:
    try:
        return SweTask(
            id=row["instance_id"],
            problem_statement=row["problem_statement"],
            test_patch=row["test_patch"],
            fail_to_pass=_read_test_names(row["FAIL_TO_PASS"]),
            pass_to_pass=_read_test_names(row.get("PASS_TO_PASS") or []),
            patch=row.get("patch") or "",
            repository=_find_repository(row, file, repositories_folder),
            base_commit=row.get("base_commit"),
            files=row.get("files") or {},
            image=row.get("image_name"),
            test_command=row.get("test_command"),
            test_messages=row.get("test_messages") or {},
            difficulty=row.get("difficulty") or 1,
        )
    except (KeyError, ValueError, TypeError) as error:
        name = row.get("instance_id", "a row")
        raise UserError(f"{name} in {file} is no SWE-bench task: {type(error).__name__} {error}.") from None


def _read_test_names(value: object) -> list[str]:
    if not isinstance(value, Iterable):
        raise TypeError("the tests must be a list of names")
    # SWE-bench's own files hold the list as JSON text, and text is iterable too.
    names = json.loads(value) if isinstance(value, str) else list(value)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("the tests must be a list of names")
    return names


def _find_repository(row: Json, file: Path, repositories_folder: Path) -> Path | None:
    if row.get("files") or row.get("image_name"):
        return None
    if row.get("repository"):
        places = [file.parent / str(row["repository"])]
    else:
        name = str(row["repo"])
        stems = [name.replace("/", "__"), name, name.rpartition("/")[2]]
        places = [repositories_folder / f"{stem}{ending}" for stem in stems for ending in ("", ".git", ".bundle")]
    for place in places:
        if place.exists():
            return place.resolve()
    raise UserError(
        f"{row['instance_id']}: its repository is not at {places[0]}: clone it there, or set SWE_BENCH_REPOS."
    )
