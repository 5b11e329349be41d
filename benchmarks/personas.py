"""Does the model learn from its chats? Every method, persona and seed, and controls that must not learn.

    python benchmarks/personas.py --out benchmarks/results

Each cell is one run of `examples/train.py` in a folder of its own. The control replaces the judge by random
signs (`benchmarks/controls.py`); a control that passes means that the benchmark measures something else than
learning. Writes `personas.json` and `personas.md`; finished cells are kept, so the benchmark can be interrupted.
"""

import argparse
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from check_run import find_shortfalls
from processes import CONTROLS, run_training
from reporting import RESULTS, ROOT, Row, describe_setting, make_table, write_results
from tqdm import tqdm

METHODS = ("binary", "opd", "combine")
PERSONAS = ("student", "teacher")
COLUMNS = (
    "persona", "method", "seed", "score_before", "score_after", "correct_before", "correct_after",
    "interactions_to_hold", "policy_versions", "samples_trained", "failed_requests", "wall_s",
)  # fmt: skip
DIGITS = {"correct_before": 3, "correct_after": 3, "wall_s": 0}


def run(folder: Path, persona: str, method: str, seed: int, control: bool, arguments: argparse.Namespace) -> Row:
    """Run one cell, or read its result if it is there."""
    flags = [
        *("--persona", persona, "--method", method, "--seed", str(seed), "--engine", arguments.engine),
        *("--interactions", str(arguments.interactions), "--eval_problems", str(arguments.eval_problems)),
    ]
    if control:
        flags += ["--custom_rm_path", f"{CONTROLS}:random_sign"]
    row = run_training(folder, *flags, timeout=1800)
    return row | {"method": f"{method}, random signs" if control else method}


def summarise(rows: list[Row]) -> str:
    """List the median interactions until the style held, by method and persona."""
    lines = []
    for persona in PERSONAS:
        for method in METHODS:
            interactions = [
                row["interactions_to_hold"] or float("inf")
                for row in rows
                if row["method"] == method and row["persona"] == persona
            ]
            if interactions:
                lines.append(f"- {persona}, {method}: median interactions to hold {statistics.median(interactions):g}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "personas")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--personas", nargs="+", default=PERSONAS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--interactions", type=int, default=36)
    parser.add_argument(
        "--eval_problems", type=int, default=400, help="held-out problems of an evaluation; of 50, chance takes two"
    )
    parser.add_argument("--controls", nargs="*", type=int, default=(0, 1, 2), help="seeds of the control runs")
    parser.add_argument("--engine", default="transformers")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    arguments = parser.parse_args()
    cells = [(p, m, s, False) for p in arguments.personas for m in arguments.methods for s in arguments.seeds]
    cells += [(p, "combine", s, True) for p in arguments.personas for s in arguments.controls]

    def play(cell: tuple[str, str, int, bool]) -> Row:
        persona, method, seed, control = cell
        folder = arguments.runs / f"{persona}-{method}{'-control' if control else ''}-{seed}"
        return run(folder, persona, method, seed, control, arguments)

    started = time.monotonic()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = list(tqdm(pool.map(play, cells), total=len(cells), desc="runs"))
    minutes = (time.monotonic() - started) / 60
    learned = [row for row in rows if "random" not in row["method"]]
    table = make_table(COLUMNS, rows, lambda row: "; ".join(find_shortfalls(row)) or "pass", DIGITS)
    page = (
        f"# Personas: does the model learn from its chats?\n\n{describe_setting()}. "
        f"Engine {arguments.engine}. {arguments.interactions} interactions a run, {arguments.eval_problems} held-out "
        f"problems before and after, sampled at the serving temperature, {arguments.jobs} run(s) at a time. "
        f"`python benchmarks/personas.py --engine {arguments.engine}`, {minutes:.0f} minutes.\n\n"
        f"{summarise(learned)}\n\n{table}\n"
    )
    name = "personas" if arguments.engine == "transformers" else f"personas_{arguments.engine}"
    write_results(arguments.out, name, rows, page)
    failed = [row for row in learned if find_shortfalls(row)]
    passed_controls = [row for row in rows if row not in learned and not find_shortfalls(row)]
    return 1 if failed or passed_controls else 0


if __name__ == "__main__":
    sys.exit(main())
