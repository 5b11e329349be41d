"""Does an environment's own checker teach, with hints and no reward?

    python benchmarks/environments_hints.py --out benchmarks/results

Each cell is one run of `examples/train.py --config examples/configs/SETTING.yaml --method opd` (or combine) in a
folder of its own: held-out tasks before and after. The control tells the teacher another task's words (swe), or of
another element on the screen (gui): a teacher that teaches nonsense must not make the model better. Writes
`environments_hints.json` and `environments_hints.md`; finished cells are kept, so the benchmark can be interrupted.
"""

import argparse
import json
import random
import shutil
import sys
from pathlib import Path

from processes import run_training
from reporting import RESULTS, ROOT, Row, describe_setting, make_table, write_results

from clawrl_trl.json_lines import split_lines

EPISODES = {"swe": 120, "gui": 200}
RISE = 0.15
"""Least that success must rise with a task's own hints, and most that it may with others'."""
COLUMNS = (
    "env", "method", "hints", "seed", "success_before", "success_after", "eval_episodes", "episodes", "hinted",
    "taught", "policy_versions", "samples_trained", "failed_requests", "wall_s",
)  # fmt: skip


def shuffle_swe(rows: list[Row]) -> list[Row]:
    """The tasks with each other's messages; none keeps its own."""
    hinted = [row for row in rows if "test_messages" in row]
    for row, message in zip(hinted, [donor["test_messages"] for donor in hinted[7:] + hinted[:7]], strict=True):
        row["test_messages"] = message
    return rows


def shuffle_gui(rows: list[Row]) -> list[Row]:
    """The tasks whose oracle is about another element of the same screen, where they have a list of some."""
    rng = random.Random(0)
    for row in rows:
        items = row.get("data", {}).get("items", [])
        label = row["oracle"][0].get("element", "")
        others = [item for item in items if f'"{item}"' not in label]
        if len(others) < len(items) and others:
            row["oracle"] = [{**row["oracle"][0], "element": f'{label.split()[0]} "{rng.choice(others)}"'}]
    return rows


SHUFFLES = {"swe": shuffle_swe, "gui": shuffle_gui}


def make_control(env: str, folder: Path) -> Path:
    """A copy of a shipped task set, whose training tasks have others' hints."""
    shutil.copytree(ROOT / "examples" / "tasks" / env, folder, dirs_exist_ok=True)
    path = ROOT / "examples" / "tasks" / env / "train.jsonl"
    rows = SHUFFLES[env]([json.loads(line) for line in split_lines(path.read_text())])
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(folder: Path, env: str, method: str, control: bool, seed: int, arguments: argparse.Namespace) -> Row:
    """Run one cell, or read its result if it is there."""
    flags = [
        *("--config", str(ROOT / "examples" / "configs" / f"{env}.yaml"), "--method", method, "--seed", str(seed)),
        *("--episodes", str(arguments.episodes or EPISODES[env]), "--eval_problems", str(arguments.eval_problems)),
        *arguments.flags,
    ]
    if control:
        flags += ["--tasks", str(make_control(env, folder.with_name(f"{folder.name}-tasks")))]
    row = run_training(folder, *flags, timeout=3600)
    episodes = [json.loads(line) for line in split_lines((folder / "episodes.jsonl").read_text())]
    log = (folder / "logs" / "judge.log").read_text()
    return {
        **row,
        "hints": "other tasks'" if control else "its own",
        "hinted": sum(episode["settled"].get("hinted", 0) for episode in episodes),
        "taught": log.count("with a teacher"),
    }


def judge_row(row: Row) -> str:
    """The verdict on a cell."""
    rise = row["success_after"] - row["success_before"]
    if row["hints"] == "its own":
        return "as it must be" if rise >= RISE else f"rose by {rise:.2f} < {RISE}"
    return "as it must be" if rise < RISE else f"rose by {rise:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "environments_hints")
    parser.add_argument("--envs", nargs="+", default=tuple(EPISODES), choices=tuple(EPISODES))
    parser.add_argument("--methods", nargs="+", default=("opd",), choices=("opd", "combine"))
    parser.add_argument("--seeds", nargs="*", type=int, default=(0,))
    parser.add_argument("--controls", nargs="*", type=int, default=(0,), help="seeds of the control runs")
    parser.add_argument("--episodes", type=int, help="episodes of a run; default: what each setting needs")
    parser.add_argument("--eval_problems", type=int, default=50, help="held-out episodes of each evaluation")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of every run; comes last")
    arguments = parser.parse_args()
    rows = []
    for env in arguments.envs:
        for method in arguments.methods:
            cells = [(seed, False) for seed in arguments.seeds]
            if method == "opd":  # with combine the reward teaches, whatever the hints say
                cells += [(seed, True) for seed in arguments.controls]
            for seed, control in cells:
                folder = arguments.runs / f"{env}-{method}{'-control' if control else ''}-{seed}"
                rows.append(run(folder, env, method, control, seed, arguments))
    table = make_table(COLUMNS, rows, judge_row)
    page = (
        "# Environments: does the checker's own word teach?\n\n"
        f"{describe_setting()}. The bundled model, the easiest step of the shipped task sets; hints of "
        "the environment's checker on failed steps, held-out tasks before and after. With `--method opd` no reward is "
        f"trained on. `python benchmarks/environments_hints.py`.\n\n{table}\n"
    )
    write_results(arguments.out, "environments_hints", rows, page)
    return 1 if any(judge_row(row) != "as it must be" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
