"""A terminal task's tests in Python: run by pytest, reported over a descriptor, held against what was expected.

What the tests start runs elsewhere (`clawrl_trl.envs.terminal.program`). A file of tests that loads code of the work
folder shares its process with it, and runs as copies of which some must fail (`clawrl_trl.envs.sandbox.canaries`).
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from clawrl_trl.envs.sandbox.canaries import Canaries, list_functions, make_canaries, strip_parameters
from clawrl_trl.envs.sandbox.sandbox import CommandResult
from clawrl_trl.envs.swe.grading import read_report, worker

_LOADERS = {"__import__", "exec", "eval", "compile", "importlib", "runpy", "spec_from_file_location", "imp"}
_SETTINGS = b"[pytest]\n"


@dataclass(frozen=True)
class PythonTests:
    """The tests of one task.

    Attributes:
        files (`Mapping[str, bytes]`): What `/tests` holds, by path.
        own (`list[str]`): The files of tests that run as they are.
        canaries ([`Canaries`]): The copies of the others.
        expected (`frozenset[str]`): The tests that must be reported (`"file::Class::test"`).
    """

    files: Mapping[str, bytes]
    own: list[str]
    canaries: Canaries
    expected: frozenset[str]

    @classmethod
    def of(cls, tests: Mapping[str, bytes], work: Path) -> Self | None:
        """The tests of a task that has some in Python; `None`: it has none.

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
        names = {path: set(_tests_in(source)) for path, source in sources.items()}
        loading = {path: source for path, source in sources.items() if _loads(source, work)}
        canaries = make_canaries(loading or sources, {path: names[path] for path in loading})
        files = {"pytest.ini": _SETTINGS, **tests, **{path: text.encode() for path, text in canaries.files.items()}}
        own = sorted(set(sources) - set(canaries.stand_ins))
        expected = frozenset(f"{path}::{name}" for path in sources for name in names[path])
        return cls(files, own, canaries, expected)

    def command(self, program: str) -> list[str]:
        """The command that runs them where `/tests` shows `files`.

        Args:
            program (`str`): What starts programs for them.
        """
        settings = ["-c", "/tests/pytest.ini", "--rootdir=/tests", "--confcutdir=/tests"]
        return [
            *worker([], program),
            *settings,
            *(f"/tests/{path}" for path in (*self.own, *self.canaries.paths_to_run)),
        ]

    def share(self, done: CommandResult) -> tuple[float, str]:
        """The share of the tests that passed, and why none counts (empty: they count)."""
        phases = read_report(done)
        if not phases:
            return 0.0, "there is no report that agrees with the exit code"
        ran, trouble = self.canaries.judge(phases)
        if trouble:
            return 0.0, trouble
        reported = {strip_parameters(name) for name in ran}
        for name in self.expected - reported:
            ran[name] = False
        return (sum(ran.values()) / len(ran) if ran else 0.0), ""


def _tests_in(source: str) -> list[str]:
    """The tests that pytest finds in a file by its usual rules."""
    return [
        name
        for name in list_functions(source)
        if name.rpartition("::")[2].startswith("test")
        and all(part.startswith("Test") for part in name.split("::")[:-1])
    ]


def _loads(source: str, work: Path) -> bool:
    """Return whether a file of tests may load code of the work folder into its process."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return True
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    paths = any(
        isinstance(node, ast.Attribute) and node.attr == "path" and _is_name(node.value, "sys") for node in nodes
    )
    tops = {module.partition(".")[0] for module in modules if module}
    return paths or bool((names | tops) & _LOADERS) or any(_holds(work, top) for top in tops)


def _holds(work: Path, module: str) -> bool:
    return (work / module).is_dir() or (work / f"{module}.py").exists()


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
