"""`kill -9` of vLLM under load: who has seen nothing is served, who has is told, nothing captured is lost."""

import asyncio
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import pytest
from live_run import LiveRun, wait_for
from vllm_live import launcher, make_adapter, serve_policy, server_process

from clawrl_trl.engines.client import EngineClient
from clawrl_trl.ledger import Ledger, turns
from clawrl_trl.ledger.schema import Turn

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("vllm kill")]

PLACES = 4
"""Requests that vLLM answers at once; the others wait, so that they have seen nothing when it dies."""
CLIENTS = 16
LENGTH = {True: 400, False: 100}
"""Tokens of a reply, streamed or whole. A stream lasts for seconds, and its server is killed at its first word."""
QUESTION = "Tom has {} apples. He buys {} more apples. How many apples does Tom have now?"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    folder = tmp_path_factory.mktemp("killed")
    flags = ("--engine", "vllm", "--port", "0", "--judge", "off", "--max_running", str(PLACES))
    run = LiveRun(folder / "run", *flags).start()
    serve_policy(run, make_adapter(folder / "policy-v1"), 1)
    yield run
    assert run.stop() == 0


@dataclass
class Heard:
    """What one client got.

    Args:
        streamed: Whether it asked for a stream.
        status: HTTP status.
        turn_id: Where the gateway says it is recorded.
        text: The reply as far as it came.
        finished: Whether it came to its end.
        error: The error it ended with.
    """

    streamed: bool
    status: int = 0
    turn_id: str = ""
    text: str = ""
    finished: bool = False
    error: dict[str, Any] | None = None


async def ask(http: httpx.AsyncClient, number: int, heard: Heard, begun: asyncio.Event) -> None:
    body = {
        "model": "clawrl",
        "messages": [{"role": "user", "content": QUESTION.format(number + 2, number + 3)}],
        "max_tokens": LENGTH[heard.streamed],
        "ignore_eos": True,
        "stream": heard.streamed,
    }
    if not heard.streamed:
        response = await http.post("/chat/completions", json=body)
        assert response.status_code == 200, response.text
        heard.status, heard.turn_id = response.status_code, response.headers["x-clawrl-turn-id"]
        heard.text = response.json()["choices"][0]["message"]["content"]
        heard.finished = True
        return
    async with http.stream("POST", "/chat/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        heard.status, heard.turn_id = response.status_code, response.headers["x-clawrl-turn-id"]
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                heard.error = event.get("error") or heard.error
                for choice in event.get("choices") or []:
                    heard.text += choice["delta"].get("content") or ""
            heard.finished = heard.finished or line == "data: [DONE]"
            if heard.text:
                begun.set()


async def load(live: LiveRun, kill: psutil.Process) -> list[Heard]:
    """Sixteen clients, and a kill once one of their streams speaks."""
    everybody = [Heard(streamed=number % 2 == 0) for number in range(CLIENTS)]
    begun = asyncio.Event()
    async with httpx.AsyncClient(base_url=live.base_url, timeout=300) as http:
        asked = [asyncio.create_task(ask(http, number, heard, begun)) for number, heard in enumerate(everybody)]
        await asyncio.wait_for(begun.wait(), 120)
        kill.send_signal(signal.SIGKILL)
        await asyncio.wait_for(asyncio.gather(*asked), 600)
    return everybody


def recorded(live: LiveRun, turn_id: str) -> Turn:
    ledger = Ledger.open(live.folder.ledger)
    with ledger.reader() as tx:
        turn = turns.get(tx, turn_id)
    ledger.close()
    assert turn is not None, "what a client has seen is not in the ledger"
    return turn


@pytest.mark.parametrize("victim", ["front end", "core"])
async def test_a_killed_server_costs_nobody_who_had_seen_nothing(live: LiveRun, victim: str) -> None:
    before = server_process(live)
    family = before.children(recursive=True)
    kill = before if victim == "front end" else next(one for one in family if "EngineCore" in " ".join(one.cmdline()))
    everybody = await load(live, kill)

    cut = [heard for heard in everybody if not heard.finished]
    assert {heard.status for heard in everybody} == {200}
    assert all(heard.streamed for heard in cut), "only who had seen something may be let down"
    assert all(heard.error and heard.error["type"] == "server_error" for heard in cut)
    assert cut, "nobody was being answered: the kill came too late"
    assert len(everybody) - len(cut) >= CLIENTS - PLACES
    for heard in everybody:
        turn = recorded(live, heard.turn_id)
        assert turn.policy_version == 1
        assert turn.response["content"] == heard.text or (
            not heard.finished and turn.response["content"] in heard.text
        )
        assert turn.completion_ids is not None and turn.logprobs is not None
        assert len(turn.completion_ids) == len(turn.logprobs) > 0
        assert (turn.finish_reason == "abort") == (not heard.finished)

    wait_for(lambda: launcher(live) and live.folder.read_announced("engine"), 300, "the engine's return")
    engine = live.folder.read_announced("engine")
    assert engine is not None
    assert server_process(live).pid != before.pid
    memory = json.loads((live.folder.path / "engine_memory.json").read_text())
    words = server_process(live).cmdline()
    assert words[words.index("--kv-cache-memory-bytes") + 1] == str(memory["cache_bytes"]), "whatever is free by now"
    async with EngineClient(engine["base_url"], engine["key"]) as client:
        assert "policy-v1" in await client.models()
    _, alive = psutil.wait_procs([before, *family], timeout=30)
    assert not alive, "a dead server's processes must not hold its memory"
