"""Does the model learn from its chats? Every method, persona and seed, and controls that must not learn.

    python benchmarks/personas.py --out benchmarks/results
    python benchmarks/personas.py --personas thumbs noisy_student curt bilingual --methods combine --controls

Each cell is one run of `examples/train.py` in a folder of its own. The control replaces the judge by random
signs (`benchmarks/controls.py`); a control that passes means that the benchmark measures something else than
learning. A bilingual persona has cells of two judges: the embedded one, which reads English, and `--judge auto` with a
language model whose votes are scripted (`benchmarks/scripted_judge.py`). Writes `personas.json` and `personas.md`, or
`personas_others` where others than student and teacher play; finished cells are kept, so the benchmark can be
interrupted.
"""

import argparse
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from check_run import find_shortfalls
from processes import CONTROLS, run_training
from reporting import RESULTS, ROOT, Row, describe_setting, make_table, write_results
from scripted_judge import ScriptedJudge, read_exam, serve_judge
from tqdm import tqdm

METHODS = ("binary", "opd", "combine")
PERSONAS = ("student", "teacher")
JUDGES = {"bilingual": ("rules", "auto")}
"""The judges of a persona's cells, where they are others than the embedded one."""
COLUMNS = (
    "persona", "method", "seed", "score_before", "score_after", "correct_before", "correct_after",
    "interactions_to_hold", "policy_versions", "samples_trained", "failed_requests", "wall_s",
)  # fmt: skip
DIGITS = {"correct_before": 3, "correct_after": 3, "wall_s": 0}


@dataclass(frozen=True)
class Cell:
    """One run of the benchmark; `judge` is `rules`, `auto`, or `random` for a control."""

    persona: str
    method: str
    seed: int
    judge: str = "rules"

    @property
    def folder(self) -> str:
        """Name of its run folder."""
        suffix = {"rules": "", "random": "-control"}.get(self.judge, f"-{self.judge}")
        return f"{self.persona}-{self.method}{suffix}-{self.seed}"

    @property
    def title(self) -> str:
        """The method as the table shows it."""
        suffix = {"rules": "", "random": ", random signs"}.get(self.judge, f", {self.judge} judge")
        return f"{self.method}{suffix}"


def list_cells(arguments: argparse.Namespace) -> list[Cell]:
    """The runs that were asked for, the controls last."""
    learning = [
        Cell(persona, method, seed, judge)
        for persona in arguments.personas
        for judge in JUDGES.get(persona, ("rules",))
        for method in arguments.methods
        for seed in arguments.seeds
    ]
    controls = [
        Cell(persona, "combine", seed, "random") for persona in arguments.personas for seed in arguments.controls
    ]
    return learning + controls


def run(cell: Cell, arguments: argparse.Namespace, judge_url: str) -> Row:
    """Run one cell, or read its result if it is there."""
    flags = [
        *("--persona", cell.persona, "--method", cell.method, "--seed", str(cell.seed), "--engine", arguments.engine),
        *("--interactions", str(arguments.interactions), "--eval_problems", str(arguments.eval_problems)),
    ]
    if cell.judge == "random":
        flags += ["--custom_rm_path", f"{CONTROLS}:random_sign"]
    if cell.judge == "auto":
        flags += ["--judge", "auto", "--judge_url", judge_url]
    row = run_training(arguments.runs / cell.folder, *flags, timeout=1800)
    return row | {"method": cell.title}


def summarise(rows: list[Row]) -> str:
    """List the median interactions until the style held, by method and persona."""
    lines = []
    for persona in dict.fromkeys(row["persona"] for row in rows):
        for method in dict.fromkeys(row["method"] for row in rows if row["persona"] == persona):
            interactions = [
                row["interactions_to_hold"] or float("inf")
                for row in rows
                if row["method"] == method and row["persona"] == persona
            ]
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
    cells = list_cells(arguments)
    started = time.monotonic()
    with serve_judge(ScriptedJudge(read_exam())) as judge_url, ThreadPoolExecutor(arguments.jobs) as pool:
        played = pool.map(lambda cell: run(cell, arguments, judge_url), cells)
        rows = list(tqdm(played, total=len(cells), desc="runs"))
    minutes = (time.monotonic() - started) / 60
    learned = [row for row in rows if "random" not in row["method"]]
    table = make_table(COLUMNS, rows, lambda row: "; ".join(find_shortfalls(row)) or "pass", DIGITS)
    page = (
        f"# Personas: does the model learn from its chats?\n\n{describe_setting()}. "
        f"Engine {arguments.engine}. {arguments.interactions} interactions a run, {arguments.eval_problems} held-out "
        f"problems before and after, sampled at the serving temperature, {arguments.jobs} run(s) at a time. "
        f"`python benchmarks/personas.py --engine {arguments.engine} --personas {' '.join(arguments.personas)} "
        f"--methods {' '.join(arguments.methods)}`, {minutes:.0f} minutes.\n\n"
        f"{summarise(learned)}\n\n{table}\n"
    )
    name = "personas" if set(arguments.personas) <= set(PERSONAS) else "personas_others"
    if arguments.engine != "transformers":
        name = f"{name}_{arguments.engine}"
    write_results(arguments.out, name, rows, page)
    failed = [row for row in learned if find_shortfalls(row)]
    passed_controls = [row for row in rows if row not in learned and not find_shortfalls(row)]
    return 1 if failed or passed_controls else 0


if __name__ == "__main__":
    sys.exit(main())
