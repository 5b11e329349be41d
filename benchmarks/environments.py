"""Does practice in the environments make the model better at tasks it has not seen?

    python benchmarks/environments.py --out benchmarks/results

Each cell is one run of `examples/train.py --config examples/configs/SETTING.yaml` in a folder of its own: episodes of
the training tasks, and the held-out tasks of the same difficulty before and after. The control tosses a coin for each
episode's outcome (`benchmarks/controls.py`); a control that improves means that something else than learning is
measured. Writes `environments.json` and `environments.md`; finished cells are kept, so the benchmark can be
interrupted.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

from personas import machine
from tqdm import tqdm

ROOT = Path(__file__).parents[1]
WANTED = {"terminal": 0.85, "gui": 0.85, "swe": 0.7, "toolcall": 0.85}
"""Success on held-out tasks after practice."""
MINUTES = 20
CHANCE = 0.15
"""Most that the success of a control may rise: two evaluations of 100 episodes do by chance once in a hundred."""
COLUMNS = (
    "env", "reward", "seed", "success_before", "success_after", "eval_episodes", "episodes", "dropped_episodes",
    "policy_versions", "samples_trained", "failed_requests", "wall_s",
)  # fmt: skip


def run(folder: Path, env: str, seed: int, control: bool, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one cell, or read its result if it is there."""
    result = folder / "metrics.json"
    if not result.exists():
        command = [
            sys.executable, "-m", "accelerate.commands.launch", str(ROOT / "examples" / "train.py"), "--port", "0",
            "--config", str(ROOT / "examples" / "configs" / f"{env}.yaml"), "--seed", str(seed),
            "--output_dir", str(folder), "--eval_problems", str(arguments.eval_problems), *arguments.flags,
        ]  # fmt: skip
        if control:
            command += ["--reward_function_path", f"{ROOT / 'benchmarks' / 'controls.py'}:random_outcome"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    metrics: dict[str, Any] = json.loads(result.read_text())
    return metrics | {"reward": "a coin" if control else "the outcome"}


def shortfalls(row: dict[str, Any]) -> list[str]:
    """What a run falls short in; a control's is that it improved."""
    before, after = row["success_before"], row["success_after"]
    if row["reward"] == "a coin":
        return [f"rose from {before:.2f} to {after:.2f}"] if after - before > CHANCE else []
    found = []
    if after < WANTED[row["env"]]:
        found.append(f"success after {after:.2f} < {WANTED[row['env']]}")
    if row["wall_s"] > 60 * MINUTES:
        found.append(f"took {row['wall_s'] / 60:.0f} minutes")
    if row["failed_requests"]:
        found.append(f"{row['failed_requests']} requests failed")
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """The results as a Markdown table."""
    lines = ["| " + " | ".join((*COLUMNS, "verdict")).replace("_", " ") + " |", "|" + "---|" * (len(COLUMNS) + 1)]
    for row in rows:
        cells = [f"{row[c]:.2f}" if isinstance(row[c], float) else str(row[c]) for c in COLUMNS]
        lines.append("| " + " | ".join([*cells, "; ".join(shortfalls(row)) or "as it must be"]) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "environments")
    parser.add_argument("--envs", nargs="+", default=tuple(WANTED), choices=tuple(WANTED))
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--controls", nargs="*", type=int, default=(0,), help="seeds of the control runs")
    parser.add_argument("--eval_problems", type=int, default=100, help="held-out episodes of each evaluation")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of every run; comes last")
    arguments = parser.parse_args()
    cells = [(env, seed, False) for env in arguments.envs for seed in arguments.seeds]
    cells += [(env, seed, True) for env in arguments.envs for seed in arguments.controls]

    def play(cell: tuple[str, int, bool]) -> dict[str, Any]:
        env, seed, control = cell
        folder = arguments.runs / f"{env}{'-control' if control else ''}-{seed}"
        return run(folder, env, seed, control, arguments)

    started = time.monotonic()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = list(tqdm(pool.map(play, cells), total=len(cells), desc="runs"))
    minutes = (time.monotonic() - started) / 60
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "environments.json").write_text(json.dumps(rows, indent=1) + "\n")
    page = (
        f"# Environments: does practice help with tasks not seen before?\n\n{date.today()}, {machine()}. The bundled "
        "model, the easiest step of each shipped task set; practice on its training tasks, success on its held-out "
        f"tasks before and after. `python benchmarks/environments.py`, {arguments.jobs} run(s) at a time, "
        f"{minutes:.0f} minutes.\n\n"
        f"{table(rows)}\n"
    )
    (arguments.out / "environments.md").write_text(page)
    print(page)
    return 1 if any(shortfalls(row) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
