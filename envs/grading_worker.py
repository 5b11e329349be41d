"""Runs pytest in the grading sandbox and tells what became of each test, by its full name.

Run isolated from the repository (`python -I`), and with pytest imported before the repository can be, so that a
module there called like one of pytest's is not taken for it. It reports once, at the end: code under test that
leaves early leaves no report.
"""

import json
import os
import sys
from pathlib import Path

import pytest


class Outcomes:
    """A plugin that keeps the outcome of each test: passed only if set-up, call and tear-down all were."""

    def __init__(self) -> None:
        self.passed: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        """Called by pytest after each phase of a test."""
        expected = report.skipped and hasattr(report, "wasxfail")
        fine = report.passed or expected
        self.passed[report.nodeid] = self.passed.get(report.nodeid, True) and fine


def main() -> None:
    """Run the files named as arguments."""
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, str(Path.cwd()))
    outcomes = Outcomes()
    pytest.main(["-q", "--tb=short", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[outcomes])
    json.dump(outcomes.passed, report)
    report.flush()


if __name__ == "__main__":
    main()
