"""Does the chat wait for the training? Time to first token with training off and on, under the same load.

    python benchmarks/latency.py --out benchmarks/results

Two clients chat at a person's pace, streaming. In the first half of each round the run is only served, in the
second a trainer works beside it on what the same chats bring in, and publishes a version after each batch. Rounds
alternate, so a drift of the machine hits both halves. Writes `latency.json` and `latency.md`.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import openai
from processes import serve, wait_for
from reporting import RESULTS, ROOT, Row, describe_setting, write_results

from clawrl_trl.envs.chat.persona_file import persona
from clawrl_trl.ledger import Ledger, policies
from clawrl_trl.run import RunFolder

PAUSE = 0.4


class Client(threading.Thread):
    """Chats until it is stopped, and notes the time to the first token of each reply."""

    def __init__(self, base_url: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.client = openai.OpenAI(base_url=base_url, api_key="local", max_retries=0, timeout=60)
        self.seed = seed
        self.waits: list[tuple[float, float]] = []
        self.failed = 0
        self.halt = threading.Event()

    def run(self) -> None:
        student = persona("student")
        for index, task in enumerate(student.tasks(self.seed, "train", 5000)):
            rng = random.Random(f"{self.seed}-{index}")
            messages: list[Any] = [{"role": "user", "content": student.opening(task, rng)}]
            for turn in (1, 2):
                if self.halt.wait(rng.expovariate(1 / PAUSE)):
                    return
                reply = self._ask(messages, f"{self.seed}-{index}")
                if reply is None:
                    break
                messages.append({"role": "assistant", "content": reply})
                messages.append({"role": "user", "content": student.react(task, reply, turn, rng).text})

    def _ask(self, messages: list[Any], session: str) -> str | None:
        start, first, text = time.monotonic(), None, ""
        try:
            for chunk in self.client.chat.completions.create(
                model="clawrl",
                messages=messages,
                max_tokens=200,
                stream=True,
                extra_headers={"X-Session-Id": session},
            ):
                for choice in chunk.choices:
                    if choice.delta.content and first is None:
                        first = time.monotonic()
                    text += choice.delta.content or ""
        except openai.OpenAIError:
            self.failed += 1
            return None
        if first is not None:
            self.waits.append((start, first - start))
        return text


def read_version(folder: RunFolder) -> int:
    ledger = Ledger.open(folder.ledger)
    with ledger.reader() as tx:
        version = policies.serving(tx).version
    ledger.close()
    return version


def measure_half(folder: RunFolder, base_url: str, seconds: float, seed: int, train: bool) -> Row:
    """Load the run for a while, with or without a trainer beside it."""
    trainer = None
    if train:
        command = [sys.executable, str(ROOT / "examples" / "train.py"), "--output_dir", str(folder.path)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
        with (folder.logs / "trainer.log").open("ab") as log:
            trainer = subprocess.Popen(
                [*command, "--batch_timeout", "1"], env=environment, stdout=log, stderr=log, process_group=0
            )
    clients = [Client(base_url, 2 * seed + number) for number in range(2)]
    for client in clients:
        client.start()
    before = read_version(folder)
    if train:
        wait_for(lambda: read_version(folder) > before)
    start, first_version = time.monotonic(), read_version(folder)
    time.sleep(seconds)
    end, last_version = time.monotonic(), read_version(folder)
    for client in clients:
        client.halt.set()
    for client in clients:
        client.join(90)
    if trainer is not None:
        trainer.terminate()
        trainer.wait(90)
    waits = [wait for client in clients for at, wait in client.waits if start <= at <= end]
    return {
        "training": train,
        "waits": waits,
        "failed": sum(client.failed for client in clients),
        "updates": last_version - first_version,
    }


def summarise(halves: list[Row]) -> Row:
    waits = [wait for half in halves for wait in half["waits"]]
    cuts = statistics.quantiles(waits, n=100)
    return {
        "requests": len(waits),
        "failed": sum(half["failed"] for half in halves),
        "updates": sum(half["updates"] for half in halves),
        "ttft_p50_ms": 1000 * cuts[49],
        "ttft_p95_ms": 1000 * cuts[94],
        "ttft_max_ms": 1000 * max(waits),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each half")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    halves = []
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(place).make()
        with serve(folder) as base_url:
            wait_for(lambda: folder.read_announced("judge"))
            for number in range(arguments.rounds):
                halves += [measure_half(folder, base_url, arguments.seconds, 2 * number + t, bool(t)) for t in (0, 1)]
    rows = {
        name: summarise([half for half in halves if half["training"] is on])
        for name, on in (("off", False), ("on", True))
    }
    ratio = rows["on"]["ttft_p95_ms"] / rows["off"]["ttft_p95_ms"]
    columns = list(rows["off"])
    lines = ["| training | " + " | ".join(columns).replace("_", " ") + " |", "|" + "---|" * (len(columns) + 1)]
    for name, row in rows.items():
        lines.append(
            f"| {name} | " + " | ".join(f"{v:.1f}" if isinstance(v, float) else str(v) for v in row.values()) + " |"
        )
    page = (
        f"# Latency: does the chat wait for the training?\n\n{describe_setting()}. Two streaming "
        f"clients, {arguments.rounds} rounds of {arguments.seconds:.0f} s each way. p95 of the time to first token "
        f"with training on is {ratio:.2f}x that with training off.\n\n" + "\n".join(lines) + "\n"
    )
    write_results(arguments.out, "latency", {"rows": rows, "ratio": ratio}, page)
    return 0 if ratio <= 2.0 and rows["on"]["failed"] == 0 and rows["on"]["updates"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
