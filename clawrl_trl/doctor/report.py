"""Reports of findings: a page for a person, plain lines in a pipe, a list for a program.

Each finding is printed when it is there, so a slow check is seen to be at work. Nothing but the last line depends on
what came before.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clawrl_trl.doctor.finding import Finding, Status

MARKS: dict[Status, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "warn": ("!", "yellow"),
    "fail": ("✗", "bold red"),
    "skipped": ("·", "dim"),
}
NAME_WIDTH = 22
WORDS: dict[Status, str] = {"ok": "ok", "warn": "warned", "fail": "failed", "skipped": "skipped"}


class ReportPage:
    """Prints findings one by one under their headings.

    Args:
        console: Takes the output.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._group: str | None = None

    def show(self, finding: Finding) -> None:
        """Print one finding."""
        if not self._console.is_terminal:
            self._print_plain(finding)
            return
        if finding.group != self._group:
            self._console.print(f"\n[bold]{finding.group}[/bold]")
            self._group = finding.group
        mark, style = MARKS[finding.status]
        row = Table.grid(padding=(0, 1))
        row.add_column(width=3, justify="right")
        row.add_column(width=NAME_WIDTH, no_wrap=True)
        row.add_column(overflow="fold")
        detail = Text(finding.detail, style="dim" if finding.status == "skipped" else "")
        row.add_row(Text(mark, style=style), finding.name, detail)
        if finding.fix and finding.status != "ok":
            row.add_row("", "", Text(f"→ {finding.fix}", style=style))
        self._console.print(row)

    def _print_plain(self, finding: Finding) -> None:
        fix = f" -> {finding.fix}" if finding.fix and finding.status != "ok" else ""
        line = f"{finding.status:<8}{finding.group.lower()}: {finding.name}: {finding.detail}{fix}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self, findings: Sequence[Finding], seconds: float) -> None:
        """Print how many findings there are of each kind, and the time taken."""
        counts = Counter(finding.status for finding in findings)
        parts = [Text(f"{counts[status]} {word}", style=MARKS[status][1]) for status, word in WORDS.items()]
        line = Text(", ").join(part for status, part in zip(WORDS, parts, strict=True) if counts[status])
        self._console.print(Text("\n") + line + Text(f" in {seconds:.0f} s"))


def format_json(findings: Sequence[Finding]) -> str:
    """Format the findings as a JSON list."""
    return json.dumps([asdict(finding) for finding in findings], ensure_ascii=False, indent=1)
