"""Does the model learn from its chats? Every method, persona and seed, and controls that must not learn.

    python benchmarks/personas.py --out benchmarks/results

Each cell is one run of `examples/train.py` in a folder of its own. The control replaces the judge by random
signs (`benchmarks/controls.py`); a control that passes means that the benchmark measures something else than
learning. Writes `personas.json` and `personas.md`; finished cells are kept, so the benchmark can be interrupted.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import psutil
from check_run import shortfalls
from tqdm import tqdm

ROOT = Path(__file__).parents[1]
METHODS = ("binary", "opd", "combine")
PERSONAS = ("student", "teacher")
COLUMNS = (
    "persona", "method", "seed", "score_before", "score_after", "correct_before", "correct_after",
    "interactions_to_hold", "policy_versions", "samples_trained", "failed_requests", "wall_s",
)  # fmt: skip
DIGITS = {"correct_before": 3, "correct_after": 3, "wall_s": 0}


def run(
    folder: Path, persona: str, method: str, seed: int, control: bool, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Run one cell, or read its result if it is there."""
    result = folder / "metrics.json"
    if not result.exists():
        command = [
            sys.executable, "-m", "accelerate.commands.launch", str(ROOT / "examples" / "train.py"), "--port", "0",
            "--persona", persona, "--method", method, "--seed", str(seed), "--output_dir", str(folder),
            "--interactions", str(arguments.interactions), "--eval_problems", str(arguments.eval_problems),
            "--engine", arguments.engine,
        ]  # fmt: skip
        if control:
            command += ["--custom_rm_path", f"{ROOT / 'benchmarks' / 'controls.py'}:random_sign"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    metrics: dict[str, Any] = json.loads(result.read_text())
    metrics["method"] = f"{method}, random signs" if control else method
    return metrics


def table(rows: list[dict[str, Any]]) -> str:
    """The results as a Markdown page."""
    head = "| " + " | ".join((*COLUMNS, "verdict")).replace("_", " ") + " |"
    lines = [head, "|" + "---|" * (len(COLUMNS) + 1)]
    for row in rows:
        cells = [f"{row[c]:.{DIGITS.get(c, 2)}f}" if isinstance(row[c], float) else str(row[c]) for c in COLUMNS]
        lines.append("| " + " | ".join([*cells, "; ".join(shortfalls(row)) or "pass"]) + " |")
    return "\n".join(lines)


def summary(rows: list[dict[str, Any]]) -> str:
    """Median interactions until the style held, by method and persona."""
    lines = []
    for persona in PERSONAS:
        for method in METHODS:
            held = [
                row["interactions_to_hold"] or float("inf")
                for row in rows
                if row["method"] == method and row["persona"] == persona
            ]
            if held:
                lines.append(f"- {persona}, {method}: median interactions to hold {statistics.median(held):g}")
    return "\n".join(lines)


def machine() -> str:
    """The machine in one line."""
    memory = psutil.virtual_memory().total / 2**30
    return f"{psutil.cpu_count()} cores ({platform.machine()}), {memory:.0f} GiB, no GPU, {platform.python_version()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
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

    def play(cell: tuple[str, str, int, bool]) -> dict[str, Any]:
        persona, method, seed, control = cell
        folder = arguments.runs / f"{persona}-{method}{'-control' if control else ''}-{seed}"
        return run(folder, persona, method, seed, control, arguments)

    started = time.monotonic()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = list(tqdm(pool.map(play, cells), total=len(cells), desc="runs"))
    minutes = (time.monotonic() - started) / 60
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = "personas" if arguments.engine == "transformers" else f"personas_{arguments.engine}"
    (arguments.out / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
    learned = [row for row in rows if "random" not in row["method"]]
    page = (
        f"# Personas: does the model learn from its chats?\n\n{date.today()}, {machine()}. "
        f"Engine {arguments.engine}. {arguments.interactions} interactions a run, {arguments.eval_problems} held-out "
        f"problems before and after, sampled at the serving temperature, {arguments.jobs} run(s) at a time. "
        f"`python benchmarks/personas.py --engine {arguments.engine}`, {minutes:.0f} minutes.\n\n"
        f"{summary(learned)}\n\n{table(rows)}\n"
    )
    (arguments.out / f"{name}.md").write_text(page)
    print(page)
    failed = [row for row in learned if shortfalls(row)]
    passed_controls = [row for row in rows if row not in learned and not shortfalls(row)]
    return 1 if failed or passed_controls else 0


if __name__ == "__main__":
    sys.exit(main())
