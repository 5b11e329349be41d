"""Does practice in the environments make the model better at tasks it has not seen?

    python benchmarks/environments.py --out benchmarks/results

Each cell is one run of `examples/train.py --config examples/configs/SETTING.yaml` in a folder of its own: episodes of
the training tasks, and the held-out tasks of the same difficulty before and after. The control tosses a coin for each
episode's outcome (`benchmarks/controls.py`); a control that improves means that something else than learning is
measured. Writes `environments.json` and `environments.md`; finished cells are kept, so the benchmark can be
interrupted.
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from processes import CONTROLS, run_training
from reporting import RESULTS, ROOT, Row, describe_setting, make_table, write_results
from tqdm import tqdm

GOALS = {"terminal": 0.85, "gui": 0.85, "swe": 0.7, "toolcall": 0.85}
"""Success on held-out tasks after practice."""
MINUTES = 20
CHANCE = 0.15
"""Most that the success of a control may rise: two evaluations of 100 episodes do by chance once in a hundred."""
COLUMNS = (
    "env", "reward", "seed", "success_before", "success_after", "eval_episodes", "episodes", "dropped_episodes",
    "policy_versions", "samples_trained", "failed_requests", "wall_s",
)  # fmt: skip


def run(folder: Path, env: str, seed: int, control: bool, arguments: argparse.Namespace) -> Row:
    """Run one cell, or read its result if it is there."""
    flags = [
        *("--config", str(ROOT / "examples" / "configs" / f"{env}.yaml"), "--seed", str(seed)),
        *("--eval_problems", str(arguments.eval_problems), *arguments.flags),
    ]
    if control:
        flags += ["--reward_function_path", f"{CONTROLS}:random_outcome"]
    return run_training(folder, *flags, timeout=3600) | {"reward": "a coin" if control else "the outcome"}


def find_shortfalls(row: Row) -> list[str]:
    """List what a run falls short in; a control's is that it improved."""
    before, after = row["success_before"], row["success_after"]
    if row["reward"] == "a coin":
        return [f"rose from {before:.2f} to {after:.2f}"] if after - before > CHANCE else []
    shortfalls = []
    if after < GOALS[row["env"]]:
        shortfalls.append(f"success after {after:.2f} < {GOALS[row['env']]}")
    if row["wall_s"] > 60 * MINUTES:
        shortfalls.append(f"took {row['wall_s'] / 60:.0f} minutes")
    if row["failed_requests"]:
        shortfalls.append(f"{row['failed_requests']} requests failed")
    return shortfalls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "environments")
    parser.add_argument("--envs", nargs="+", default=tuple(GOALS), choices=tuple(GOALS))
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--controls", nargs="*", type=int, default=(0,), help="seeds of the control runs")
    parser.add_argument("--eval_problems", type=int, default=100, help="held-out episodes of each evaluation")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of every run; comes last")
    arguments = parser.parse_args()
    cells = [(env, seed, False) for env in arguments.envs for seed in arguments.seeds]
    cells += [(env, seed, True) for env in arguments.envs for seed in arguments.controls]

    def play(cell: tuple[str, int, bool]) -> Row:
        env, seed, control = cell
        folder = arguments.runs / f"{env}{'-control' if control else ''}-{seed}"
        return run(folder, env, seed, control, arguments)

    started = time.monotonic()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = list(tqdm(pool.map(play, cells), total=len(cells), desc="runs"))
    minutes = (time.monotonic() - started) / 60
    table = make_table(COLUMNS, rows, lambda row: "; ".join(find_shortfalls(row)) or "as it must be")
    page = (
        f"# Environments: does practice help with tasks not seen before?\n\n{describe_setting()}. "
        "The bundled model, the easiest step of each shipped task set; practice on its training tasks, success on its "
        f"held-out tasks before and after. `python benchmarks/environments.py`, {arguments.jobs} run(s) at a time, "
        f"{minutes:.0f} minutes.\n\n"
        f"{table}\n"
    )
    write_results(arguments.out, "environments", rows, page)
    return 1 if any(find_shortfalls(row) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
