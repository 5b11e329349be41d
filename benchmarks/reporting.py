"""Results of the benchmarks as files: what machine they were measured on, a table in Markdown, JSON beside it.

No benchmark of its own: the others import it.
"""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

Row = dict[str, Any]
"""The figures of one run."""


def describe_machine() -> str:
    """The machine in one line."""
    memory = psutil.virtual_memory().total / 2**30
    return f"{psutil.cpu_count()} cores ({platform.machine()}), {memory:.0f} GiB, no GPU, {platform.python_version()}"


def describe_setting() -> str:
    """Today's date and the machine, as a page of results begins."""
    return f"{date.today()}, {describe_machine()}"


def make_table(
    columns: Sequence[str], rows: Sequence[Row], judge: Callable[[Row], str], digits: Mapping[str, int] | None = None
) -> str:
    """Make a Markdown table with one line a run.

    Args:
        columns: Keys of the rows, in order.
        rows: The runs.
        judge: The verdict on a row, in the last column.
        digits: Decimals of a column's floats; 2 where a column is not named.
    """
    lines = ["| " + " | ".join((*columns, "verdict")).replace("_", " ") + " |", "|" + "---|" * (len(columns) + 1)]
    for row in rows:
        cells = [
            f"{row[name]:.{(digits or {}).get(name, 2)}f}" if isinstance(row[name], float) else str(row[name])
            for name in columns
        ]
        lines.append("| " + " | ".join([*cells, judge(row)]) + " |")
    return "\n".join(lines)


def write_results(out: Path, name: str, content: object, page: str) -> None:
    """Write `name.json` and `name.md` to a folder, and print the page."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    (out / f"{name}.md").write_text(page)
    print(page)
