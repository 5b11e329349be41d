"""The finding of one check.

A finding is one line for a person and one object for a program. It says ok, warn (training works, something is
worse than it need be), fail (what is trained would be wrong, or nothing would run) or skipped, with the reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail", "skipped"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        name: The property that was checked.
        status: `"ok"`, `"warn"`, `"fail"` or `"skipped"`.
        detail: One line with the figure; the reason, when it was skipped.
        fix: The remedy, where there is one.
        group: Heading under which it is shown; set by whoever runs the check.
    """

    name: str
    status: Status
    detail: str
    fix: str | None = None
    group: str = ""


class Skip(Exception):
    """A check can't be made here.

    Args:
        reason: Why, in one line.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 0 when nothing failed, else 1."""
    return int(any(finding.status == "fail" for finding in findings))
