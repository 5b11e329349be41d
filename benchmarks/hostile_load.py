"""Does one client stop the others? Time to first token of ordinary chats beside hostile requests.

    python benchmarks/hostile_load.py --out benchmarks/results

Two clients chat through gateway and embedded engine, streaming short replies. Each kind of hostile load runs for some
seconds beside them, between two quiet phases of the same length, so a drift of the machine hits both. Last, the
engine is killed and the time until the next reply is measured, with the stages that its log tells. Writes
`hostile_load.json` and `hostile_load.md`.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
from processes import serve, wait_for
from reporting import RESULTS, Row, describe_setting, write_results

from clawrl_trl.run import RunFolder

CLIENTS = 2
PAUSE_S = 0.1
GOAL = 2.0
HALF_OPEN = 1200


class Chatter(threading.Thread):
    """An ordinary client; notes when each chat began and how long its first token took."""

    def __init__(self, base_url: str, name: int) -> None:
        super().__init__(daemon=True)
        self.client = openai.OpenAI(base_url=base_url, api_key="local", max_retries=0, timeout=120)
        self.number = name
        self.waits: list[tuple[float, float]] = []
        self.failures: list[float] = []
        self.halt = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.halt.wait(PAUSE_S):
            number += 1
            began = time.monotonic()
            try:
                first = self._first_token(f"What is {number % 40 + 2} plus {self.number + 3}?", began)
            except openai.OpenAIError:
                self.failures.append(began)
            else:
                self.waits.append((began, first))

    def _first_token(self, question: str, began: float) -> float:
        waited = None
        messages: Any = [{"role": "user", "content": question}]
        with self.client.chat.completions.create(
            model="clawrl", messages=messages, max_tokens=16, stream=True
        ) as stream:
            for chunk in stream:
                if waited is None and any(choice.delta.content for choice in chunk.choices):
                    waited = time.monotonic() - began
        return time.monotonic() - began if waited is None else waited


def make_text(megabytes: float) -> bytes:
    words = "please read this carefully " * int(megabytes * 2**20 / 27)
    return json.dumps({"messages": [{"role": "user", "content": words}]}).encode()


HOSTILE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "text of 1 MB": ("chat/completions", lambda: make_text(1)),
    "text of 4 MB": ("chat/completions", lambda: make_text(4)),
    "text of 31 MB": ("chat/completions", lambda: make_text(31)),
    "4 MB of wrong items": ("chat/completions", lambda: b'{"messages": [' + b"1," * 2**21 + b"1]}"),
    "1 MB of wrong messages": ("chat/completions", lambda: b'{"messages": [' + b'{"x":1},' * 2**17 + b"{}]}"),
    "2,000 prompts": ("completions", lambda: json.dumps({"prompt": ["hello"] * 2000, "max_tokens": 64}).encode()),
    "n=128 x 20": ("completions", lambda: json.dumps({"prompt": ["hello"] * 20, "n": 128}).encode()),
    "1 MB of token ids": ("completions", lambda: json.dumps({"prompt": [5] * 250_000}).encode()),
}


def post(url: str, kind: str, halt: Any, statuses: Any) -> None:
    """Post one body again and again, in a process of its own: the chats' clients shall not wait for it."""
    content, answers = HOSTILE[kind][1](), Counter[int]()
    headers = {"content-type": "application/json"}
    with httpx.Client(timeout=300, trust_env=False) as client:
        while not halt.wait(0.05):
            with contextlib.suppress(httpx.HTTPError):
                answers[client.post(url, content=content, headers=headers).status_code] += 1
    statuses.put(answers)


@contextlib.contextmanager
def post_repeatedly(base_url: str, kind: str) -> Iterator[Counter[int]]:
    """Post a hostile body again and again; the statuses that came are there at the end."""
    context = multiprocessing.get_context("spawn")
    halt, statuses, answers = context.Event(), context.Queue(), Counter[int]()
    process = context.Process(target=post, args=(f"{base_url}/{HOSTILE[kind][0]}", kind, halt, statuses), daemon=True)
    process.start()
    try:
        yield answers
    finally:
        halt.set()
        answers.update(statuses.get(timeout=300))
        process.join(10)


@contextlib.contextmanager
def hold_half_open(base_url: str) -> Iterator[Counter[int]]:
    """Hold connections that sent half a head."""
    url = httpx.URL(base_url)
    with contextlib.ExitStack() as stack:
        for _ in range(HALF_OPEN):
            connection = stack.enter_context(socket.create_connection((url.host, url.port or 0), 120))
            with contextlib.suppress(OSError):
                connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        yield Counter()


def wait_phase(seconds: float) -> tuple[float, float]:
    begin = time.monotonic()
    time.sleep(seconds)
    return begin, time.monotonic()


def summarise(chatters: list[Chatter], spans: list[tuple[float, float]]) -> dict[str, float]:
    """Times to first token, in ms, of the chats that began within these spans."""

    def inside(at: float) -> bool:
        return any(begin <= at <= end for begin, end in spans)

    waits = [1000 * wait for chatter in chatters for at, wait in chatter.waits if inside(at)]
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    failures = sum(inside(at) for chatter in chatters for at in chatter.failures)
    return {"chats": len(waits), "failed": failures, "p50_ms": cuts[49], "p99_ms": cuts[98], "max_ms": max(waits)}


def measure_kind(base_url: str, chatters: list[Chatter], kind: str, seconds: float, rounds: int) -> Row:
    """Measure one kind. The ratio is the median over the rounds of p99 beside it by p99 in the quiet around it."""
    quiet, loud = [wait_phase(seconds)], []
    statuses: Counter[int] = Counter()
    for _ in range(rounds):
        hostile = hold_half_open(base_url) if kind not in HOSTILE else post_repeatedly(base_url, kind)
        with hostile as answers:
            loud.append(wait_phase(seconds))
        statuses += answers
        quiet.append(wait_phase(seconds))
    time.sleep(2)
    ratios = [
        summarise(chatters, [loud[at]])["p99_ms"] / summarise(chatters, quiet[at : at + 2])["p99_ms"]
        for at in range(rounds)
    ]
    return {
        "kind": kind,
        "quiet": summarise(chatters, quiet),
        "hostile": summarise(chatters, loud),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "statuses": dict(statuses),
    }


def measure_recovery(folder: RunFolder, base_url: str) -> Row:
    """Kill the engine; seconds until the next reply, and what the logs say of the way there."""
    announced = folder.read_announced("engine") or {}
    os.kill(announced["pid"], signal.SIGKILL)
    killed_at = time.monotonic()
    statuses: list[tuple[int, str | None]] = []
    body = {"messages": [{"role": "user", "content": "What is 2 plus 3?"}], "max_tokens": 8}
    while not statuses or statuses[-1][0] != 200:
        answer = httpx.post(f"{base_url}/chat/completions", json=body, timeout=300, trust_env=False)
        statuses.append((answer.status_code, answer.headers.get("retry-after")))
    seconds = time.monotonic() - killed_at
    stages = re.findall(r"ready: (.*)", (folder.logs / "engine.log").read_text())
    return {"seconds": seconds, "refused": [status for status in statuses if status[0] != 200], "stages": stages[-1]}


def make_page(rows: list[Row], recoveries: list[Row], seconds: float, rounds: int) -> str:
    lines = [
        "# Hostile load: does one client stop the others?",
        "",
        f"{describe_setting()}. {CLIENTS} streaming clients, {rounds} phases of "
        f"{seconds:.0f} s of each kind, each between quiet ones. The ratio is that of the p99 of the time to first "
        f"token to the one in the quiet before and after, its median over the phases. Goal: at most {GOAL:.0f}.",
        "",
        "| beside | answered | quiet p50 / p99 ms | p50 / p99 / max ms | failed | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        quiet, hostile = row["quiet"], row["hostile"]
        answered = ", ".join(f"{count} x {status}" for status, count in row["statuses"].items())
        lines.append(
            f"| {row['kind']} | {answered or 'never'} | {quiet['p50_ms']:.0f} / {quiet['p99_ms']:.0f} | "
            f"{hostile['p50_ms']:.0f} / {hostile['p99_ms']:.0f} / {hostile['max_ms']:.0f} | {hostile['failed']} | "
            f"{row['ratio']:.2f} |"
        )
    lines += [
        "",
        "## After the engine is killed",
        "",
        "| next reply after, s | refused meanwhile | stages |",
        "|---|---|---|",
    ]
    for row in recoveries:
        lines.append(f"| {row['seconds']:.1f} | {len(row['refused'])} | {row['stages']} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a phase")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(place).make()
        with serve(folder, "--judge", "off") as base_url:
            chatters = [Chatter(base_url, number) for number in range(CLIENTS)]
            for chatter in chatters:
                chatter.start()
            wait_for(lambda: all(len(chatter.waits) > 5 for chatter in chatters))
            kinds = [*HOSTILE, f"{HALF_OPEN:,} half-open connections"]
            rows = [measure_kind(base_url, chatters, kind, arguments.seconds, arguments.rounds) for kind in kinds]
            for chatter in chatters:
                chatter.halt.set()
            for chatter in chatters:
                chatter.join(130)
            recoveries = [measure_recovery(folder, base_url) for _ in range(arguments.kills)]
    content = {"rows": rows, "recoveries": recoveries, "goal": GOAL}
    page = make_page(rows, recoveries, arguments.seconds, arguments.rounds)
    write_results(arguments.out, "hostile_load", content, page)
    return 0 if all(row["ratio"] <= GOAL and not row["hostile"]["failed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
