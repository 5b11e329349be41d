"""Which of several hints teaches best: the one that moves the teacher most, or the one that overlaps with the policy?

    python benchmarks/hint_choice.py --out benchmarks/results

Each cell is one run of `examples/train.py --method opd` with the bundled model in a folder of its own, with
`--hint_choice gap` or `overlap`: no score is trained on, so that what differs is the hint. Writes `hint_choice.json`
and `hint_choice.md`; finished cells are kept, so the benchmark can be interrupted. Eight runs, two at a time, take
some ten minutes on two cores. With `--interactions 4 --eval_problems 8 --seeds 0 --personas student` it shows in a few
minutes that both run, and nothing else.
"""

import argparse
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from check_run import find_shortfalls
from personas import COLUMNS as PERSONA_COLUMNS
from personas import DIGITS, PERSONAS
from processes import run_training
from reporting import RESULTS, ROOT, Row, describe_setting, make_table, write_results

CHOICES = ("gap", "overlap")
COLUMNS = ("hint_choice", *PERSONA_COLUMNS)


def run(folder: Path, persona: str, choice: str, seed: int, arguments: argparse.Namespace) -> Row:
    """Run one cell, or read its result if it is there."""
    flags = [
        *("--persona", persona, "--method", "opd", "--seed", str(seed), "--hint_choice", choice),
        *("--interactions", str(arguments.interactions), "--eval_problems", str(arguments.eval_problems)),
    ]
    return run_training(folder, *flags, timeout=1800) | {"hint_choice": choice}


def summarise(rows: list[Row]) -> str:
    """List the mean rise of the style, by persona and choice."""
    lines = []
    for persona in dict.fromkeys(row["persona"] for row in rows):
        for choice in CHOICES:
            chosen = [row for row in rows if (row["persona"], row["hint_choice"]) == (persona, choice)]
            rise = statistics.fmean(row["score_after"] - row["score_before"] for row in chosen)
            lines.append(f"- {persona}, {choice}: style rose by {rise:.2f} on average of {len(chosen)} runs")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "hint_choice")
    parser.add_argument("--personas", nargs="+", default=PERSONAS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1))
    parser.add_argument("--interactions", type=int, default=36)
    parser.add_argument("--eval_problems", type=int, default=200, help="held-out problems of an evaluation")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    arguments = parser.parse_args()
    cells = list(product(arguments.personas, arguments.seeds, CHOICES))

    def play(cell: tuple[str, int, str]) -> Row:
        persona, seed, choice = cell
        return run(arguments.runs / f"{persona}-{choice}-{seed}", persona, choice, seed, arguments)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = list(pool.map(play, cells))
    table = make_table(COLUMNS, rows, lambda row: "; ".join(find_shortfalls(row)) or "pass", DIGITS)
    page = (
        f"# The choice of a hint: gap or overlap\n\n{describe_setting()}. The bundled model, `--method opd`, "
        f"{arguments.interactions} interactions a run, {arguments.eval_problems} held-out problems before and after, "
        f"{arguments.jobs} run(s) at a time. "
        f"`python benchmarks/hint_choice.py`.\n\n{summarise(rows)}\n\n{table}\n"
    )
    write_results(arguments.out, "hint_choice", rows, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
