"""New policy versions under load: what do the chats notice?

    python benchmarks/swap_under_load.py --engine vllm --out benchmarks/results

A run is served as `clawrl serve` does it. Clients stream chats without a pause while 20 versions (made-up LoRA
adapters) are published, through the gate, the engine and the ledger, as a trainer does. Then the turns are read from
the ledger and their log-probs are computed anew with transformers and PEFT, under the version each says it is of
and, to see that this tells versions apart, under the one before.

Stretches with swaps and without alternate, so that whatever else the machine does hits both; without swaps an
adapter is served too. A gap between tokens counts for the stretch in which the later token arrives; the two seconds
after a stretch with swaps, when replies of older versions still run, count for neither. One more client asks for a
single token five times a second, so that it shows how soon a new request meets a new version. Writes
`swap_under_load_<engine>.json` and `.md`.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
from processes import serve
from reporting import RESULTS, Row, describe_setting, write_results
from sqlalchemy import select

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.doctor.reference import Reference
from clawrl_trl.doctor.shape import Shape
from clawrl_trl.engines.sync_client import SyncEngineClient
from clawrl_trl.envs.chat.problems import draw_problems
from clawrl_trl.ledger import Ledger, batches, policies
from clawrl_trl.ledger.schema import Event, Policy, Turn
from clawrl_trl.policies import Candidate, PolicyStore, Publisher
from clawrl_trl.run import RunFolder
from clawrl_trl.tiny import MODEL_PATH

LARGEST_GAP = 0.02
LARGEST_DELAY_S = 1.0
LARGEST_RATIO = 1.5
WARM_UP_S, SETTLING_S = 10.0, 2.0
PROBE_S = 0.2
RECOMPUTED = 400
"""Turns that are computed anew; spread evenly over all."""


@dataclass
class Reply:
    """One streamed reply as its client saw it; times are seconds since the epoch."""

    sent: float
    version: int | None = None
    turn_id: str | None = None
    arrivals: list[float] = field(default_factory=list)
    tokens: int | None = None
    text: str = ""
    finish: str | None = None
    done: bool = False
    error: str | None = None


@dataclass(frozen=True)
class Stretch:
    """A piece of the run's time."""

    kind: str
    start: float
    end: float


class Load:
    """Clients that stream one chat after the other.

    Args:
        base_url: The gateway.
        streams: Number of clients.
        tokens: Longest reply.
        answer: What a client says to a reply in the same chat, so that it has a next state; `None` for nothing.
    """

    def __init__(self, base_url: str, streams: int, tokens: int, answer: str | None = None) -> None:
        self._url, self._streams, self._tokens = f"{base_url}/chat/completions", streams, tokens
        self._answer = answer
        self._questions = [problem.question for problem in draw_problems(0, "train", 500)]
        self.replies: list[Reply] = []
        self.stretches: list[Stretch] = []
        self._stop = asyncio.Event()

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=300, limits=limits, trust_env=False) as http:
            clients = [self._client(http, number) for number in range(self._streams)]
            await asyncio.gather(*clients, self._prober(http))

    def stop(self) -> None:
        self._stop.set()

    @contextmanager
    def stretch(self, kind: str) -> Iterator[None]:
        """The block is a stretch of this kind."""
        start = time.time()
        yield
        self.stretches.append(Stretch(kind, start, time.time()))

    def gaps(self, kind: str) -> list[float]:
        """Seconds between successive tokens of a reply, of which the later arrived in a stretch of this kind."""
        return [
            later - earlier
            for reply in self.replies
            for earlier, later in zip(reply.arrivals, reply.arrivals[1:], strict=False)
            if self._within(kind, later)
        ]

    def waits(self, kind: str) -> list[float]:
        """Seconds until the first token of each reply that was asked for in a stretch of this kind."""
        return [
            reply.arrivals[0] - reply.sent
            for reply in self.replies
            if reply.arrivals and self._within(kind, reply.sent)
        ]

    def rate(self, kind: str) -> float:
        """Tokens a second that arrived in stretches of this kind; an engine that is ahead sends several at once."""
        count = sum(
            (reply.tokens or len(reply.arrivals)) / len(reply.arrivals)
            for reply in self.replies
            for at in reply.arrivals
            if self._within(kind, at)
        )
        seconds = sum(stretch.end - stretch.start for stretch in self.stretches if stretch.kind == kind)
        return count / seconds if seconds else 0.0

    def _within(self, kind: str, at: float) -> bool:
        return any(stretch.kind == kind and stretch.start <= at < stretch.end for stretch in self.stretches)

    async def _client(self, http: httpx.AsyncClient, number: int) -> None:
        turn = 0
        while not self._stop.is_set():
            session, seed = f"load-{number}-{turn}", number + self._streams * turn
            question = self._questions[seed % len(self._questions)]
            messages = [{"role": "user", "content": question}]
            reply = await self._ask(http, session, seed, messages)
            if self._answer is not None and reply.done:
                messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": self._answer}]
                await self._ask(http, session, seed, messages)
            turn += 1

    async def _prober(self, http: httpx.AsyncClient) -> None:
        number = 0
        async with asyncio.TaskGroup() as group:
            while not self._stop.is_set():
                messages = [{"role": "user", "content": f"Hello, {number}"}]
                group.create_task(self._ask(http, f"probe-{number}", number, messages, 1))
                number += 1
                await asyncio.sleep(PROBE_S)

    async def _ask(
        self, http: httpx.AsyncClient, session: str, seed: int, messages: list[dict[str, str]], tokens: int = 0
    ) -> Reply:
        body = {
            "model": "clawrl",
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": tokens or self._tokens - seed % 16,
            "ignore_eos": True,
            "seed": seed,
        }
        reply = Reply(time.time())
        self.replies.append(reply)
        try:
            async with http.stream("POST", self._url, json=body, headers={"X-Session-Id": session}) as response:
                if response.status_code != 200:
                    reply.error = f"{response.status_code}: {(await response.aread())[:200]!r}"
                    return reply
                reply.version = int(response.headers["x-clawrl-policy-version"])
                reply.turn_id = response.headers["x-clawrl-turn-id"]
                async for line in response.aiter_lines():
                    self._take(reply, line)
        except httpx.HTTPError as error:
            reply.error = f"{type(error).__name__}: {error}"
        return reply

    @staticmethod
    def _take(reply: Reply, line: str) -> None:
        if line == "data: [DONE]":
            reply.done = True
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            if event.get("error"):
                reply.error = str(event["error"])[:200]
            if event.get("usage"):
                reply.tokens = event["usage"]["completion_tokens"]
            for choice in event.get("choices") or ():
                text = (choice.get("delta") or {}).get("content")
                if text:
                    reply.arrivals.append(time.time())
                    reply.text += text
                reply.finish = choice.get("finish_reason") or reply.finish


class Versions:
    """Made-up policy versions: written beforehand, published when told to."""

    def __init__(self, folder: RunFolder, count: int) -> None:
        self._ledger = Ledger.open(folder.ledger)
        self._store = PolicyStore(folder.policies)
        self.reference = Reference.load(str(MODEL_PATH), Shape.of(MODEL_PATH))
        engine = SyncEngineClient.of_run(folder, ServeSettings.load(folder.path))
        self._publisher = Publisher(self._ledger, self._store, engine=engine)
        prompt, reply = tokenize_example()
        with tempfile.TemporaryDirectory() as place:
            for version in range(1, count + 1):
                adapter = self.reference.make_adapter(self.adapter(version), Path(place), version, prompt, reply)
                folder = self._store.begin(version)
                for file in adapter.glob("adapter_*"):
                    file.rename(folder / file.name)
                self._store.finish(version)

    @staticmethod
    def adapter(version: int) -> str:
        return f"v{version}"

    def publish(self, version: int) -> None:
        """As a trainer does after a step: candidate, gate, engine, ledger."""
        folder = self._store.folder(version)
        row = Policy(version=version, parent=version - 1, path=str(folder), sha256=self._store.sha256(version))
        with self._ledger.transaction() as tx:
            batches.commit(tx, [], row)
        state = self._publisher.publish(Candidate(version, folder))
        if state != "serving":
            raise RuntimeError(f"version {version} is {state}")

    def promoted(self) -> dict[int, float]:
        """When each version was promoted in the ledger."""
        with self._ledger.reader() as tx:
            rows = tx.scalars(select(Event).where(Event.kind == "policy_serving"))
            return {int(row.subject): row.at for row in rows}

    def turns(self) -> list[Turn]:
        """Every turn of the run."""
        with self._ledger.reader() as tx:
            return list(tx.scalars(select(Turn).order_by(Turn.seq)))

    def serving(self) -> int:
        with self._ledger.reader() as tx:
            return policies.serving(tx).version

    def gap(self, turn: Turn, version: int) -> float:
        """Mean distance of a turn's log-probs from those of a version."""
        assert turn.prompt_ids is not None and turn.completion_ids is not None and turn.logprobs is not None
        prompt, completion = turn.prompt_ids.tolist(), turn.completion_ids.tolist()
        adapter = self.adapter(version) if version else None
        temperature = turn.sampling["temperature"]  # of the bundled model it is not 1
        expected = self.reference.logprobs(prompt, completion, adapter=adapter, temperature=temperature)
        return statistics.fmean(abs(a - b) for a, b in zip(turn.logprobs.tolist(), expected, strict=True))


def tokenize_example() -> tuple[list[int], list[int]]:
    """Token ids of a prompt and of a reply as the bundled model gives them; made-up versions must change its odds."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    question = [{"role": "user", "content": "Tom has 5 apples. He buys 7 more apples. How many apples does he have?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    reply = "**Step 1:** Tom has 5 apples.\n**Step 2:** He buys 7 more, so 5 + 7 = 12.\n\n**Final answer:** 12"
    return tokenizer(prompt).input_ids, tokenizer(reply).input_ids


async def play(load: Load, versions: Versions, options: argparse.Namespace) -> None:
    """Warm-up, then rounds of load without and load with swaps."""
    clients = asyncio.create_task(load.run())
    await asyncio.sleep(WARM_UP_S)
    numbers = iter(range(2, options.swaps + 2))
    each = options.swaps // options.rounds
    for _ in range(options.rounds):
        with load.stretch("without"):
            await asyncio.sleep(options.seconds)
        with load.stretch("with"):
            start = time.monotonic()
            for number in range(each):
                await asyncio.to_thread(versions.publish, next(numbers))
                await asyncio.sleep(max(0.0, start + (number + 1) * options.seconds / each - time.monotonic()))
        await asyncio.sleep(SETTLING_S)
    load.stop()
    await clients


def summarise(load: Load, versions: Versions) -> Row:
    """Every figure."""
    turns = {turn.id: turn for turn in versions.turns()}
    replies = load.replies
    good = [reply for reply in replies if reply.error is None and reply.done and reply.finish in ("stop", "length")]
    stored = [turns[reply.turn_id] for reply in good if reply.turn_id in turns]
    cuts = {kind: statistics.quantiles(load.gaps(kind), n=100) for kind in ("without", "with")}
    delays = _delays(replies, versions.promoted())
    sampled = stored[:: max(1, len(stored) // RECOMPUTED)]
    own = [versions.gap(turn, turn.policy_version or 0) for turn in sampled]
    other = [versions.gap(turn, (turn.policy_version or 0) - 1) for turn in sampled if turn.policy_version]
    return {
        "requests": len(replies),
        "failed": sum(reply.error is not None for reply in replies),
        "truncated": sum(reply.error is None and reply not in good for reply in replies),
        "not in the ledger": len(good) - len(stored),
        "of more than one version": sum(not _of_one_version(turn) for turn in stored),
        "another version than announced": sum(turns[reply.turn_id].policy_version != reply.version for reply in good),
        "turns recomputed": len(sampled),
        "mean log-prob gap, own version": statistics.fmean(own),
        "largest mean gap of a turn": max(own),
        "mean log-prob gap, version before": statistics.fmean(other),
        "delay to a version's first request, median s": statistics.median(delays["first"]),
        "delay to a version's first request, largest s": max(delays["first"]),
        "last request on an old version, largest s": max(delays["last"]),
        "gap between tokens without swaps, p50 ms": 1000 * cuts["without"][49],
        "gap between tokens without swaps, p95 ms": 1000 * cuts["without"][94],
        "gap between tokens with swaps, p50 ms": 1000 * cuts["with"][49],
        "gap between tokens with swaps, p95 ms": 1000 * cuts["with"][94],
        "p95 ratio": cuts["with"][94] / cuts["without"][94],
        "tokens/s without swaps": load.rate("without"),
        "tokens/s with swaps": load.rate("with"),
    }


def _of_one_version(turn: Turn) -> bool:
    return turn.policy_version is not None and turn.token_versions is None


def _delays(replies: Sequence[Reply], promoted: dict[int, float]) -> dict[str, list[float]]:
    """For each version, seconds from its promotion to the first request it answered and to the last older one."""
    first, last = [], []
    began = min(reply.sent for reply in replies)
    for version, at in ((version, at) for version, at in promoted.items() if at > began):
        own = [reply.sent - at for reply in replies if reply.version == version]
        older = [reply.sent - at for reply in replies if reply.version is not None and reply.version < version]
        first.append(max(0.0, min(own, default=float("inf"))))
        last.append(max([0.0, *older]))
    return {"first": first, "last": last}


def find_shortfalls(row: Row) -> list[str]:
    """List what is not as it must be."""
    wrong = [name for name in NEVER if row[name]]
    bounds = {
        "mean log-prob gap, own version": LARGEST_GAP,
        "delay to a version's first request, largest s": LARGEST_DELAY_S,
        "last request on an old version, largest s": LARGEST_DELAY_S,
        "p95 ratio": LARGEST_RATIO,
    }
    wrong += [f"{name} above {bound}" for name, bound in bounds.items() if row[name] > bound]
    if row["mean log-prob gap, version before"] < 5 * row["mean log-prob gap, own version"]:
        wrong.append("versions can't be told apart")
    return wrong


NEVER = (
    "failed",
    "truncated",
    "not in the ledger",
    "of more than one version",
    "another version than announced",
)


def make_page(row: Row, options: argparse.Namespace) -> str:
    """The result as Markdown."""
    lines = [f"| {name} | {value:.4g} |" for name, value in row.items()]
    verdict = "; ".join(find_shortfalls(row)) or "everything as it must be"
    return (
        f"# New policy versions under load: {options.engine}\n\n{describe_setting()}. "
        f"{options.streams} clients stream replies of about {options.tokens} tokens of the bundled model without a "
        f"pause. {options.rounds} rounds of {options.seconds:.0f} s without swaps and as long with, {options.swaps} "
        "versions published in all. Engine, gateway, publisher and clients share the machine. "
        f"Verdict: {verdict}.\n\n| | |\n|---|---|\n" + "\n".join(lines) + "\n"
    )


def measure(options: argparse.Namespace, place: str) -> Row:
    """Serve, load, publish, read."""
    folder = RunFolder(place).make()
    flags = ["--engine", options.engine, "--judge", "off", "--max_model_len", "512"]
    flags += ["--max_running", str(options.streams), "--max_waiting", str(4 * options.streams), *options.serve]
    with serve(folder, *flags) as base_url:
        versions = Versions(folder, options.swaps + 1)
        versions.publish(1)
        load = Load(base_url, options.streams, options.tokens)
        asyncio.run(play(load, versions, options))
        if options.raw:
            raw = {"replies": load.replies, "stretches": load.stretches}
            options.raw.write_text(json.dumps({name: [asdict(row) for row in rows] for name, rows in raw.items()}))
        return summarise(load, versions)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="vllm", choices=("vllm", "transformers"))
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--swaps", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=48, help="tokens of a reply, at most")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=7.0, help="length of a stretch")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--raw", type=Path, help="also write every reply's times here")
    options, options.serve = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as place:
        row = measure(options, place)
    write_results(options.out, f"swap_under_load_{options.engine}", row, make_page(row, options))
    return 1 if find_shortfalls(row) else 0


if __name__ == "__main__":
    sys.exit(main())
