"""More requests than places, clients that leave, and mistakes at the start."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from engine_server import Server, start_engine
from safetensors.torch import load_file, save_file

from clawrl_trl.config.serving import ServeSettings

CHAT = "/v1/chat/completions"
LONG = {"model": "base", "messages": [{"role": "user", "content": "go on"}], "ignore_eos": True, "max_tokens": 800}

pytestmark = pytest.mark.xdist_group("engine")


@pytest.fixture(scope="module")
def small(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An engine with two places and room for two to wait."""
    run = tmp_path_factory.mktemp("small-engine")
    model = str(model_folder / "base")
    process, server = start_engine(run, model_name_or_path=model, max_model_len=1024, max_running=2, max_waiting=2)
    yield server
    process.terminate()
    process.wait(30)


async def polled(http: httpx.AsyncClient) -> AsyncIterator[dict[str, int]]:
    """What the engine says runs and waits, asked again and again."""
    while True:
        text = (await http.get("/metrics")).text
        pairs = (line.split() for line in text.splitlines())
        yield {name.removeprefix("vllm:num_requests_"): int(value) for name, value in pairs}


async def until(http: httpx.AsyncClient, **wanted: int) -> None:
    """Return when the engine runs and has waiting what is wanted; the test's own time limit ends a vain wait."""
    async for found in polled(http):
        if found == wanted:
            return


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_place(small: Server, stream: bool) -> None:
    async with small.async_http() as http, small.async_http() as watcher:
        calls = [asyncio.create_task(http.post(CHAT, json=LONG | {"stream": stream, "n": 2})) for _ in range(2)]
        await until(watcher, running=2, waiting=1)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await until(watcher, running=0, waiting=0)
        reply = await http.post(CHAT, json=LONG | {"max_tokens": 2})
        assert reply.status_code == 200


async def test_one_request_too_many_is_a_429_and_the_others_are_served(small: Server) -> None:
    async with small.async_http() as http, small.async_http() as watcher:
        body = LONG | {"max_tokens": 300}
        calls = [asyncio.create_task(http.post(CHAT, json=body)) for _ in range(2)]
        await until(watcher, running=2, waiting=0)
        calls += [asyncio.create_task(http.post(CHAT, json=body)) for _ in range(2)]
        await until(watcher, running=2, waiting=2)
        refused = await watcher.post(CHAT, json=body)
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "RateLimitError"
        replies = await asyncio.gather(*calls)
    assert [reply.status_code for reply in replies] == [200] * 4
    assert {reply.json()["usage"]["completion_tokens"] for reply in replies} == {300}


async def test_a_prompt_of_many_chunks_beside_running_rows(small: Server) -> None:
    async with small.async_http() as http:
        running = asyncio.create_task(http.post(CHAT, json=LONG | {"max_tokens": 200}))
        prompt = [5 + place % 300 for place in range(900)]
        body = {"model": "base", "prompt": prompt, "max_tokens": 3, "prompt_logprobs": 0}
        scored = await http.post("/v1/completions", json=body)
        assert len(scored.json()["choices"][0]["prompt_logprobs"]) == 900
        assert (await running).json()["usage"]["completion_tokens"] == 200


def test_a_model_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    ServeSettings(run=str(tmp_path), model_name_or_path=str(tmp_path / "nowhere")).save()
    command = [sys.executable, "-m", "clawrl_trl.engines.embedded", "--run", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert "nowhere" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_model_that_can_not_go_on_never_serves(model_folder: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(model_folder / "base", tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"].fill_(float("nan"))
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    ServeSettings(run=str(tmp_path), model_name_or_path=str(broken)).save()
    command = [sys.executable, "-m", "clawrl_trl.engines.embedded", "--run", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"error: {broken} can't be served") and "not numbers" in last
    assert not (tmp_path / "engine.json").exists()
