"""Many episodes in a row, and what they leave behind: `python benchmarks/soak.py --out benchmarks/results`.

One environment of each setting plays shipped tasks, one episode after the other: most to their ends, every tenth given
up in the middle. Processes, open files and temporary folders are counted after the first fifty, at the end, and once
the environment is closed. Writes `soak.json` and `soak.md`; the exit code is 1 if anything was left.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import psutil
from personas import machine
from tqdm import tqdm

from clawrl_trl.envs import AgentEnv, GUIEnv, SWEEnv, TerminalEnv, ToolCallEnv, read_swe_tasks, read_tool_tasks
from clawrl_trl.envs.gui.oracle import solve
from clawrl_trl.envs.gui.tasks import read_tasks
from clawrl_trl.envs.swe.tasks import SENTINEL

ROOT = Path(__file__).parents[1]
TASKS = ROOT / "examples" / "tasks"
SETTLED = 50
"""Episodes after which what is kept for the next episode is there."""
GIVEN_UP = 10
SLACK = 5
"""What may be under way when it is counted; a leak of one an episode would make hundreds."""
Play = Callable[[AgentEnv[Any], Any], Any]


@dataclass(frozen=True)
class Held:
    """What this process holds."""

    processes: int
    files: int
    folders: int
    rss_mib: float


def held() -> Held:
    """What this process, its children and the folder for temporary files hold now."""
    this = psutil.Process()
    children = [one for one in this.children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]
    folders = sum(1 for _ in Path(tempfile.gettempdir()).iterdir())
    return Held(len(children), this.num_fds(), folders, this.memory_info().rss / 2**20)


def call(name: str, **arguments: Any) -> str:
    """An action that calls a tool."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def acts(*actions: str) -> Play:
    """Takes these actions, whatever comes."""

    def play(env: AgentEnv[Any], state: Any) -> Any:
        for action in actions:
            if not state["done"]:
                state = env.step(state.set("action", action))["next"]
        return state

    return play


LITTER = "sleep 1000 & mkdir -p a/b; echo left > a/b/c"
"""A command that leaves a process and files behind."""


def terminal() -> tuple[AgentEnv[Any], Play]:
    """Shells that are littered."""
    tasks = TASKS / "terminal" / "train.jsonl"
    return TerminalEnv(tasks), acts(call("shell_exec", command=LITTER), "Done.")


def gui() -> tuple[AgentEnv[Any], Play]:
    """Pages, solved by their oracles."""
    return GUIEnv(read_tasks(TASKS / "gui" / "train.jsonl", difficulty=1)), solve


def swe() -> tuple[AgentEnv[Any], Play]:
    """Repositories that are littered, and submitted."""
    rows = read_swe_tasks(TASKS / "swe" / "train.jsonl", difficulty=1)
    return SWEEnv(rows), acts(f"```bash\n{LITTER}\n```", f"```bash\necho {SENTINEL}\n```")


def toolcall() -> tuple[AgentEnv[Any], Play]:
    """The code interpreter, littered."""
    folder = TASKS / "toolcall"
    env = ToolCallEnv(read_tool_tasks(folder / "train.jsonl"), tools=folder / "tools.json")
    return env, acts(call("code_interpreter", code="open('left', 'w').write('x')"), "Done.")


SETTINGS = {"terminal": terminal, "gui": gui, "swe": swe, "toolcall": toolcall}


def soak(name: str, episodes: int) -> dict[str, Any]:
    """Play the episodes; what was held when, and how many were dropped."""
    bar = tqdm(range(1, episodes + 1), desc=name)  # it starts a process of its own
    before = held()
    env, play = SETTINGS[name]()
    dropped, settled, began = 0, before, time.perf_counter()
    for number in bar:
        state = env.reset()
        if number % GIVEN_UP:
            dropped += bool(play(env, state)["dropped"])
        if number == SETTLED:
            settled = held()
    wall, last = time.perf_counter() - began, held()
    env.close()
    held_by = {"before": before, "settled": settled, "last": last, "closed": held()}
    return {"env": name, "episodes": episodes, "dropped": dropped, "wall_s": wall} | {
        when: asdict(what) for when, what in held_by.items()
    }


def leaks(row: dict[str, Any]) -> list[str]:
    """What was left behind: clearly more than after the first episodes, or children of a closed environment."""
    found = [what for what in ("processes", "files", "folders") if row["last"][what] > row["settled"][what] + SLACK]
    return found + ["children"] * (row["closed"]["processes"] > row["before"]["processes"])


def page(rows: list[dict[str, Any]]) -> str:
    """The results as a Markdown page."""
    lines = [
        f"| {row['env']} | {row['episodes']} | {row['dropped']} | {row['wall_s']:.0f} | "
        + " | ".join(
            ", ".join(str(round(row[when][what])) for when in ("before", "settled", "last", "closed"))
            for what in ("processes", "files", "folders", "rss_mib")
        )
        + f" | {', '.join(leaks(row)) or 'nothing'} |"
        for row in rows
    ]
    return (
        f"# Episodes in a row\n\n{date.today()}, {machine()}. `python benchmarks/soak.py`. Counts before "
        f"the first episode, after {SETTLED}, after the last, and with the environment closed; every {GIVEN_UP}th is "
        "given up.\n\n"
        "| setting | episodes | dropped | wall s | child processes | open files | temporary | MiB | left |\n"
        "|---|---|---|---|---|---|---|---|---|\n" + "\n".join(lines) + "\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--env", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    given = parser.parse_args()
    if given.episodes <= SETTLED:
        parser.error(f"--episodes must be more than {SETTLED}")
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        rows = [soak(name, given.episodes) for name in given.env]
        tempfile.tempdir = None
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "soak.json").write_text(json.dumps(rows, indent=1) + "\n")
    (given.out / "soak.md").write_text(page(rows))
    print(page(rows))
    return 1 if any(map(leaks, rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
