"""What many environments at a time cost: `python benchmarks/pool.py --out benchmarks/results`.

Two figures. 64 terminals, each a real shell in a sandbox of its own, run commands of 200 ms (give or take half) at the
same time; the ideal is what the terminal with the longest commands sleeps. And the rollout's own work: processor time
a step of a world that does nothing for as long, on 64 threads through [`Rollout`], less what the same steps cost on
one thread without it. Writes `pool.json` and `pool.md`.
"""

import argparse
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reporting import RESULTS, ROOT, describe_setting, write_results
from tqdm import tqdm

from clawrl_trl.envs import AgentEnv, Effect, Rollout, Start, TerminalEnv
from clawrl_trl.envs.base.actor import ModelReply

TASKS = ROOT / "examples" / "tasks" / "terminal" / "train.jsonl"
MEAN = 0.2
Step = Callable[[Any], None]


def call_tool(command: str) -> str:
    """An action that runs `command`."""
    return f"<tool_call>{json.dumps({'name': 'shell_exec', 'arguments': {'command': command}})}</tool_call>"


def measure_terminals(count: int, steps: int, seed: int) -> dict[str, float]:
    """Wall time of `count` terminals at work at the same time, and the ideal, in seconds."""
    rng = random.Random(seed)
    sleeps = [[rng.uniform(0.5, 1.5) * MEAN for _ in range(steps)] for _ in range(count)]
    envs = [TerminalEnv(TASKS, max_steps=steps + 1) for _ in range(count)]
    gate = threading.Barrier(count + 1, timeout=600)

    def work(place: int) -> None:
        state = envs[place].reset()
        gate.wait()
        for seconds in sleeps[place]:
            state = envs[place].step(state.set("action", call_tool(f"sleep {seconds:.4f}")))["next"]
            assert not state["done"], state["reason"]

    try:
        with ThreadPoolExecutor(count) as threads:
            jobs = [threads.submit(work, place) for place in range(count)]
            gate.wait()
            began, worked = time.perf_counter(), time.process_time()
            for job in jobs:
                job.result()
            wall, driver = time.perf_counter() - began, time.process_time() - worked
    finally:
        for env in envs:
            env.close()
    ideal = max(map(sum, sleeps))
    return {"wall_s": wall, "ideal_s": ideal, "ratio": wall / ideal, "driver_ms_a_step": 1e3 * driver / count / steps}


@dataclass(frozen=True)
class Nothing:
    """A task about nothing."""

    id: str = "nothing"


class StillEnv(AgentEnv[Nothing]):
    """A world in which nothing happens, which takes `seconds`."""

    seconds = 0.0

    def begin(self, task: Nothing) -> Start:
        return Start([{"role": "user", "content": "Go on."}])

    def act(self, action: Any) -> Effect:
        time.sleep(self.seconds)
        return Effect(["Go on."])

    def evaluate(self) -> float:
        return 1.0


class Mute:
    """A policy that costs next to nothing."""

    reply_message = ModelReply("on", message={"role": "assistant", "content": "on"})

    def reply(self, conversation: Any, **how: Any) -> ModelReply:
        return self.reply_message


def measure_overhead(count: int, steps: int, episodes: int) -> dict[str, float]:
    """Processor time a step in milliseconds: alone, and through the rollout on `count` threads."""
    env = StillEnv([Nothing()], max_steps=steps)
    worked = time.process_time()
    for _ in range(episodes):
        state = env.reset()
        while not state["done"]:
            json.loads(state["conversation"]), json.loads(state["tools"])
            state = env.step(state.set("action", Mute.reply_message.action))["next"]
    alone = time.process_time() - worked

    def make_slow_env() -> StillEnv:
        env = StillEnv([Nothing()], max_steps=steps)
        env.seconds = MEAN
        return env

    rollout = Rollout(
        make_slow_env,
        Mute(),  # type: ignore[arg-type]
        num_generations=1,
        parallel_envs=count,
        report=False,
    )
    worked = time.process_time()
    played = sum(1 for _ in rollout.play([0] * episodes))
    through = time.process_time() - worked
    assert played == episodes
    return {"alone_ms": 1e3 * alone / episodes / steps, "rollout_ms": 1e3 * through / episodes / steps}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--count", type=int, default=64, help="environments at a time")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    count, steps = arguments.count, arguments.steps
    shells = [measure_terminals(count, steps, seed) for seed in tqdm(range(arguments.rounds), desc="terminals")]
    stills = [measure_overhead(count, steps, 2 * count) for _ in tqdm(range(arguments.rounds), desc="rollout")]
    ratio = statistics.median(row["ratio"] for row in shells)
    own = statistics.median(row["rollout_ms"] - row["alone_ms"] for row in stills)
    facts = {"count": count, "steps": steps, "terminals": shells, "overhead": stills}
    rows = [
        f"| {row['wall_s']:.2f} | {row['ideal_s']:.2f} | {row['ratio']:.3f} | {row['driver_ms_a_step']:.2f} |"
        for row in shells
    ]
    page = (
        f"# Many environments at a time\n\n{describe_setting()}. `python benchmarks/pool.py`.\n\n"
        f"{count} terminals, {steps} commands each of {MEAN * 1e3:.0f} ms ± 50%: {ratio:.3f} times the ideal.\n\n"
        "| wall s | ideal s | ratio | driver ms a step |\n|---|---|---|---|\n" + "\n".join(rows) + "\n\n"
        f"The rollout's own work: {own:.2f} ms of processor time a step (median; "
        + ", ".join(f"{row['rollout_ms']:.2f} less {row['alone_ms']:.2f}" for row in stills)
        + f"), {count} threads.\n"
    )
    write_results(arguments.out, "pool", facts, page)
    return 0 if ratio <= 1.1 and own < 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
