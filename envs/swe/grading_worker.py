"""Runs pytest in the grading sandbox and reports the outcome of each phase of each test.

Run isolated from the repository (`python -I`), and with pytest imported before the repository can be, so that a
module there called like one of pytest's is not taken for it. It reports once, at the end, and leaves with pytest's
exit code at once: code under test that leaves early leaves no report, and what it registered for the exit never runs.
Its first argument is JSON: `path` (folders to import from), `program` (what starts the commands of the tests in a
sandbox of their own; empty: nothing does).
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


class Outcomes:
    """A plugin that keeps the outcome of each phase of each test."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, str, str]] = []

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        """Called by pytest after each phase of a test."""
        outcome = "xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome
        self.phases.append((report.nodeid, report.when, outcome))


def start_elsewhere(program: str) -> None:
    """Have all commands that are started through `subprocess` or `os.system` run by `program`."""

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, args: Any, *rest: Any, shell: bool = False, executable: Any = None, **more: Any) -> None:
            words = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
            if shell:
                words = [executable or "/bin/sh", "-c", *words]
            super().__init__([program, *words], *rest, **more)
            self.args = args

    subprocess.Popen = Popen  # type: ignore[misc]
    os.system = lambda command: subprocess.call(command, shell=True) << 8


def main() -> None:
    """Run pytest with the arguments after the first."""
    settings = json.loads(sys.argv[1])
    report = os.dup(1)
    os.dup2(2, 1)
    sys.path[:0] = [str(Path(folder).resolve()) for folder in settings["path"]]
    if settings["program"]:
        start_elsewhere(settings["program"])
    outcomes = Outcomes()
    code = int(pytest.main(["-q", "--tb=line", "-p", "no:cacheprovider", *sys.argv[2:]], plugins=[outcomes]))
    with os.fdopen(report, "w") as stream:
        json.dump({"exit": code, "phases": outcomes.phases}, stream)
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
