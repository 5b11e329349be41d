"""Terminal tasks' tests in Python: run by pytest, reported over a descriptor, compared with the expected tests.

Programs that the tests start run in another sandbox (`clawrl_trl.envs.terminal.program`). A file of tests that loads
code of the work folder shares its process with that code, and runs as copies of which some must fail
(`clawrl_trl.envs.sandbox.canaries`).
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from clawrl_trl.envs.sandbox.canaries import Canaries, list_functions, make_canaries, strip_parameters
from clawrl_trl.envs.sandbox.sandbox import CommandResult
from clawrl_trl.envs.swe.grading import build_worker_command, read_report

_LOADING_NAMES = {"__import__", "exec", "eval", "compile", "importlib", "runpy", "spec_from_file_location", "imp"}
_SETTINGS = b"[pytest]\n"


@dataclass(frozen=True)
class PythonTests:
    """The tests of one task.

    Attributes:
        files (`Mapping[str, bytes]`): Content of `/tests`, by path.
        plain_files (`list[str]`): The files of tests that run as they are.
        canaries ([`Canaries`]): The copies of the others.
        expected (`frozenset[str]`): The tests that must be reported (`"file::Class::test"`).
    """

    files: Mapping[str, bytes]
    plain_files: list[str]
    canaries: Canaries
    expected: frozenset[str]

    @classmethod
    def collect(cls, tests: Mapping[str, bytes], work: Path) -> Self | None:
        """Collect the tests of a task in Python; `None`: it has none.

        Args:
            tests (`Mapping[str, bytes]`): The task's files of tests.
            work (`Path`): The work folder, on the host.
        """
        sources = {
            path: data.decode(errors="replace")
            for path, data in tests.items()
            if PurePosixPath(path).match("test_*.py")
        }
        if not sources:
            return None
        names = {path: set(_list_tests(source)) for path, source in sources.items()}
        importing = {path: source for path, source in sources.items() if _may_load_work_code(source, work)}
        canaries = make_canaries(importing or sources, {path: names[path] for path in importing})
        files = {"pytest.ini": _SETTINGS, **tests, **{path: text.encode() for path, text in canaries.files.items()}}
        plain_files = sorted(set(sources) - set(canaries.stand_ins))
        expected = frozenset(f"{path}::{name}" for path in sources for name in names[path])
        return cls(files, plain_files, canaries, expected)

    def build_command(self, program: str) -> list[str]:
        """Build the command that runs them, with `files` at `/tests`.

        Args:
            program (`str`): The stand-in that starts programs for them.
        """
        # Named, so that pytest looks for no settings and no conftest in the work folder.
        settings = ["-c", "/tests/pytest.ini", "--rootdir=/tests", "--confcutdir=/tests"]
        return [
            *build_worker_command([], program),
            *settings,
            *(f"/tests/{path}" for path in (*self.plain_files, *self.canaries.paths_to_run)),
        ]

    def score(self, result: CommandResult) -> tuple[float, str]:
        """Return the share of the tests that passed, and why none counts (empty: they count)."""
        phases = read_report(result)
        if not phases:
            return 0.0, "there is no report that agrees with the exit code"
        results, trouble = self.canaries.judge(phases)
        if trouble:
            return 0.0, trouble
        reported = {strip_parameters(name) for name in results}
        # Code under test may keep a test from running: what is not reported has failed.
        for name in self.expected - reported:
            results[name] = False
        return (sum(results.values()) / len(results) if results else 0.0), ""


def _list_tests(source: str) -> list[str]:
    """List the tests that pytest finds in a file by its default rules."""
    return [
        name
        for name in list_functions(source)
        if name.rpartition("::")[2].startswith("test")
        and all(part.startswith("Test") for part in name.split("::")[:-1])
    ]


def _may_load_work_code(source: str, work: Path) -> bool:
    """Return whether a file of tests may load code of the work folder into its process."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return True  # the careful answer, as throughout: copies cost time and no trust
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    paths = any(
        isinstance(node, ast.Attribute) and node.attr == "path" and _is_name(node.value, "sys") for node in nodes
    )
    tops = {module.partition(".")[0] for module in modules if module}
    return paths or bool((names | tops) & _LOADING_NAMES) or any(_has_module(work, top) for top in tops)


def _has_module(work: Path, module: str) -> bool:
    return (work / module).is_dir() or (work / f"{module}.py").exists()


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
