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
from pathlib import Path
from typing import Any

import psutil
from reporting import RESULTS, ROOT, Row, describe_setting, write_results
from tqdm import tqdm

from clawrl_trl.envs import AgentEnv, GUIEnv, SWEEnv, TerminalEnv, ToolCallEnv, read_swe_tasks, read_tool_tasks
from clawrl_trl.envs.gui.oracle import solve
from clawrl_trl.envs.gui.tasks import read_tasks
from clawrl_trl.envs.swe.tasks import SENTINEL

TASKS = ROOT / "examples" / "tasks"
SETTLED = 50
"""Episodes after which what is kept for the next episode is there."""
GIVEN_UP = 10
SLACK = 5
"""What may be under way when it is counted; a leak of one an episode would make hundreds."""
Play = Callable[[AgentEnv[Any], Any], Any]


@dataclass(frozen=True)
class Resources:
    """Resources that this process holds."""

    processes: int
    files: int
    folders: int
    rss_mib: float


def count_resources() -> Resources:
    """Count what this process, its children and the folder for temporary files hold now."""
    this = psutil.Process()
    children = [child for child in this.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    folders = sum(1 for _ in Path(tempfile.gettempdir()).iterdir())
    return Resources(len(children), this.num_fds(), folders, this.memory_info().rss / 2**20)


def call_tool(name: str, **arguments: Any) -> str:
    """An action that calls a tool."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def take(*actions: str) -> Play:
    """Play an episode by these actions, whatever comes."""

    def play(env: AgentEnv[Any], state: Any) -> Any:
        for action in actions:
            if not state["done"]:
                state = env.step(state.set("action", action))["next"]
        return state

    return play


LITTER = "sleep 1000 & mkdir -p a/b; echo left > a/b/c"
"""A command that leaves a process and files behind."""


def make_terminal() -> tuple[AgentEnv[Any], Play]:
    """Shells that are littered."""
    tasks = TASKS / "terminal" / "train.jsonl"
    return TerminalEnv(tasks), take(call_tool("shell_exec", command=LITTER), "Done.")


def make_gui() -> tuple[AgentEnv[Any], Play]:
    """Pages, solved by their oracles."""
    return GUIEnv(read_tasks(TASKS / "gui" / "train.jsonl", difficulty=1)), solve


def make_swe() -> tuple[AgentEnv[Any], Play]:
    """Repositories that are littered, and submitted."""
    rows = read_swe_tasks(TASKS / "swe" / "train.jsonl", difficulty=1)
    return SWEEnv(rows), take(f"```bash\n{LITTER}\n```", f"```bash\necho {SENTINEL}\n```")


def make_toolcall() -> tuple[AgentEnv[Any], Play]:
    """The code interpreter, littered."""
    folder = TASKS / "toolcall"
    env = ToolCallEnv(read_tool_tasks(folder / "train.jsonl"), tools=folder / "tools.json")
    return env, take(call_tool("code_interpreter", code="open('left', 'w').write('x')"), "Done.")


SETTINGS = {"terminal": make_terminal, "gui": make_gui, "swe": make_swe, "toolcall": make_toolcall}


def soak(name: str, episodes: int) -> Row:
    """Play the episodes; count what is held before, after some, after the last, and with the environment closed."""
    bar = tqdm(range(1, episodes + 1), desc=name)  # it starts a process of its own
    before = count_resources()
    env, play = SETTINGS[name]()
    dropped, settled, began = 0, before, time.perf_counter()
    for number in bar:
        state = env.reset()
        if number % GIVEN_UP:
            dropped += bool(play(env, state)["dropped"])
        if number == SETTLED:
            settled = count_resources()
    wall, last = time.perf_counter() - began, count_resources()
    env.close()
    counts = {"before": before, "settled": settled, "last": last, "closed": count_resources()}
    return {"env": name, "episodes": episodes, "dropped": dropped, "wall_s": wall} | {
        when: asdict(what) for when, what in counts.items()
    }


def find_leaks(row: Row) -> list[str]:
    """List what was left behind: clearly more than after the first episodes, or children of a closed environment."""
    leaks = [what for what in ("processes", "files", "folders") if row["last"][what] > row["settled"][what] + SLACK]
    return leaks + ["children"] * (row["closed"]["processes"] > row["before"]["processes"])


def make_page(rows: list[Row]) -> str:
    """The results as a Markdown page."""
    lines = [
        f"| {row['env']} | {row['episodes']} | {row['dropped']} | {row['wall_s']:.0f} | "
        + " | ".join(
            ", ".join(str(round(row[when][what])) for when in ("before", "settled", "last", "closed"))
            for what in ("processes", "files", "folders", "rss_mib")
        )
        + f" | {', '.join(find_leaks(row)) or 'nothing'} |"
        for row in rows
    ]
    return (
        f"# Episodes in a row\n\n{describe_setting()}. `python benchmarks/soak.py`. Counts before "
        f"the first episode, after {SETTLED}, after the last, and with the environment closed; every {GIVEN_UP}th is "
        "given up.\n\n"
        "| setting | episodes | dropped | wall s | child processes | open files | temporary | MiB | left |\n"
        "|---|---|---|---|---|---|---|---|---|\n" + "\n".join(lines) + "\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--env", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    options = parser.parse_args()
    if options.episodes <= SETTLED:
        parser.error(f"--episodes must be more than {SETTLED}")
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        rows = [soak(name, options.episodes) for name in options.env]
        tempfile.tempdir = None
    write_results(options.out, "soak", rows, make_page(rows))
    return 1 if any(map(find_leaks, rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
