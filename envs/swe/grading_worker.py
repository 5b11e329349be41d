"""Program that runs pytest in the grading sandbox and reports the outcome of each phase of each test.

It runs isolated from the repository (`python -I`) and imports pytest before the repository can be imported, so that a
module there with the name of one of pytest's is not taken for it. It reports once, at the end, and exits with pytest's
code at once: code under test that exits early leaves no report, and its exit handlers never run. Its first argument is
JSON: `path` (folders to import from), `program` (what starts the commands of the tests in a sandbox of their own;
empty: they start as they are).
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


class OutcomePlugin:
    """A pytest plugin that records the outcome of each phase of each test."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, str, str]] = []

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        """Record a phase; called by pytest after each."""
        outcome = "xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome
        self.phases.append((report.nodeid, report.when, outcome))


def redirect_commands(program: str) -> None:
    """Have `program` run all commands that are started through `subprocess` or `os.system`."""

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(
            self, args: Any, *positional: Any, shell: bool = False, executable: Any = None, **keywords: Any
        ) -> None:
            command = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
            if shell:
                command = [executable or "/bin/sh", "-c", *command]
            super().__init__([program, *command], *positional, **keywords)
            self.args = args

    subprocess.Popen = Popen  # type: ignore[misc]
    os.system = lambda command: subprocess.call(command, shell=True) << 8


def main() -> None:
    """Run pytest with the arguments after the first."""
    settings = json.loads(sys.argv[1])
    # What code under test prints goes to stderr, so that stdout is the report's alone.
    report = os.dup(1)
    os.dup2(2, 1)
    sys.path[:0] = [str(Path(folder).resolve()) for folder in settings["path"]]
    if settings["program"]:
        redirect_commands(settings["program"])
    outcomes = OutcomePlugin()
    code = int(pytest.main(["-q", "--tb=line", "-p", "no:cacheprovider", *sys.argv[2:]], plugins=[outcomes]))
    with os.fdopen(report, "w") as stream:
        json.dump({"exit": code, "phases": outcomes.phases}, stream)
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)  # past the exit handlers, which are the tested code's


if __name__ == "__main__":
    main()
