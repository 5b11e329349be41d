"""Adapters come and go while an engine works; for every engine."""

import asyncio
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_checks import logprobs_of, reference_logits, reference_model
from engine_server import Server

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "something new, please"}], "ignore_eos": True}
TOLD = {"logprobs": True, "top_logprobs": 0, "return_token_ids": True}
SLOTS = 8
"""More adapters than an engine with the default settings has room for at once."""


def load(http: httpx.Client, name: str, path: Path) -> httpx.Response:
    return http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)})


def unload(http: httpx.Client, name: str) -> httpx.Response:
    return http.post("/v1/unload_lora_adapter", json={"lora_name": name})


def names(http: httpx.Client) -> list[str]:
    return [card["id"] for card in http.get("/v1/models").json()["data"]]


def test_loading_listing_and_unloading(server: Server, model_folder: Path) -> None:
    with server.http() as http:
        assert load(http, "fresh", model_folder / "one").is_success
        for folder in ("one", "two"):
            refusal = load(http, "fresh", model_folder / folder)
            assert refusal.status_code == 400
            assert "already been loaded" in refusal.json()["error"]["message"]
        assert "fresh" in names(http)
        assert unload(http, "fresh").is_success
        assert unload(http, "fresh").status_code == 404
        assert unload(http, "base").status_code == 404
        assert "fresh" not in names(http)
        assert http.post(CHAT, json={**ASK, "model": "fresh"}).status_code == 404


def test_an_adapter_samples_from_its_own_weights(server: Server, model_folder: Path) -> None:
    with server.http() as http:
        assert load(http, "own", model_folder / "one").is_success
        reply = http.post(CHAT, json={**ASK, **TOLD, "model": "own", "max_tokens": 20, "seed": 1}).json()
        unload(http, "own")
    assert_sampled_from(reference_model(model_folder / "base", model_folder / "one"), reply)


def assert_sampled_from(model: Any, reply: dict[str, Any]) -> None:
    """The log-probs of a reply's first choice are those of a model."""
    choice = reply["choices"][0]
    expected = logprobs_of(
        reference_logits(model, reply["prompt_token_ids"], choice["token_ids"]), choice["token_ids"]
    )
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == pytest.approx(expected, abs=1e-3)


async def test_the_base_stays_the_base_beside_as_many_adapters_as_there_is_room_for(
    server: Server, model_folder: Path
) -> None:
    """In one batch with them, whatever slot an engine has put them in; log-probs of prompts too."""
    names = [f"slot-{number}" for number in range(SLOTS)]
    body = {**ASK, **TOLD, "max_tokens": 24, "temperature": 1.0}
    scored = {"model": "base", "prompt": list(range(5, 60)), "max_tokens": 1, "prompt_logprobs": 0}
    async with server.async_http() as http:
        for name in names:
            load_body = {"lora_name": name, "lora_path": str(model_folder / "one")}
            (await http.post("/v1/load_lora_adapter", json=load_body)).raise_for_status()
        requests = [http.post(CHAT, json={**body, "model": name}) for name in ["base", *names, "base"]]
        replies = await asyncio.gather(*requests, *(http.post("/v1/completions", json=scored) for _ in range(3)))
        for name in names:
            (await http.post("/v1/unload_lora_adapter", json={"lora_name": name})).raise_for_status()
    base = reference_model(model_folder / "base")
    adapted = reference_model(model_folder / "base", model_folder / "one")
    for reply in replies[: len(names) + 2]:
        assert_sampled_from(base if reply.json()["model"] == "base" else adapted, reply.json())
    ids = scored["prompt"]
    expected = logprobs_of(reference_logits(base, ids[:1], ids[1:]), ids[1:])
    for reply in replies[len(names) + 2 :]:
        entries = reply.json()["choices"][0]["prompt_logprobs"][1:]
        got = [entry[str(token)]["logprob"] for token, entry in zip(ids[1:], entries, strict=True)]
        assert got == pytest.approx(expected, abs=1e-3)


def _truncated(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def _no_weights(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()


def _no_config(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{")


def _gone(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize("damage", [_truncated, _no_weights, _no_config, _gone])
def test_a_damaged_folder_is_refused_and_harms_nothing(
    server: Server, model_folder: Path, tmp_path: Path, adapters: dict[str, Path], damage: Any
) -> None:
    folder = tmp_path / "adapter"
    shutil.copytree(model_folder / "one", folder)
    damage(folder)
    with server.http() as http:
        body = {**ASK, **TOLD, "seed": 2, "max_tokens": 8}
        before = [http.post(CHAT, json={**body, "model": name}).json()["choices"] for name in ("base", "policy-v1")]
        refused = load(http, "damaged", folder)
        assert refused.status_code in (400, 404, 500), refused.text
        assert refused.json()["error"]["message"]
        assert "damaged" not in names(http)
        after = [http.post(CHAT, json={**body, "model": name}).json()["choices"] for name in ("base", "policy-v1")]
    assert [choices[0]["token_ids"] for choices in after] == [choices[0]["token_ids"] for choices in before]


async def test_updates_under_load_fail_no_request(server: Server, model_folder: Path) -> None:
    """Clients keep asking for the newest version while versions are loaded, and unloaded once nobody uses them."""
    folders = [model_folder / "one", model_folder / "two"]
    newest = 0
    leases: Counter[int] = Counter()
    returned = asyncio.Condition()

    async def put(http: httpx.AsyncClient, verb: str, name: str, **more: str) -> None:
        (await http.post(f"/v1/{verb}_lora_adapter", json={"lora_name": name, **more})).raise_for_status()

    async def ask(http: httpx.AsyncClient) -> int:
        version = newest
        leases[version] += 1
        body = {**ASK, "model": f"live-v{version}", "max_tokens": 12, "return_token_ids": True}
        response = await http.post(CHAT, json=body)
        async with returned:
            leases[version] -= 1
            returned.notify_all()
        assert response.status_code == 200, response.text
        return len(response.json()["choices"][0]["token_ids"])

    async def keep_asking(http: httpx.AsyncClient, done: asyncio.Event) -> list[int]:
        counts = []
        while not done.is_set():
            counts.append(await ask(http))
        return counts

    async with server.async_http() as http:
        await put(http, "load", "live-v0", lora_path=str(folders[0]))
        done = asyncio.Event()
        clients = [asyncio.create_task(keep_asking(http, done)) for _ in range(4)]
        for version in range(1, 6):
            await put(http, "load", f"live-v{version}", lora_path=str(folders[version % 2]))
            newest, previous = version, newest
            async with returned:
                await returned.wait_for(lambda previous=previous: not leases[previous])
            await put(http, "unload", f"live-v{previous}")
        await ask(http)
        done.set()
        counts = [count for counted in await asyncio.gather(*clients) for count in counted]
        await put(http, "unload", f"live-v{newest}")
    assert counts
    assert set(counts) == {12}


async def test_a_policy_in_use_finishes_after_it_was_unloaded(server: Server, model_folder: Path) -> None:
    body = {**ASK, "model": "leased", "seed": 3, "max_tokens": 60, "return_token_ids": True}
    async with server.async_http() as http:
        load_body = {"lora_name": "leased", "lora_path": str(model_folder / "one")}
        (await http.post("/v1/load_lora_adapter", json=load_body)).raise_for_status()
        expected = (await http.post(CHAT, json=body)).json()["choices"][0]["token_ids"]
        got: list[int] = []
        unloaded = False
        async with http.stream("POST", CHAT, json={**body, "stream": True}) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                if not unloaded:
                    unloaded = True
                    (await http.post("/v1/unload_lora_adapter", json={"lora_name": "leased"})).raise_for_status()
                    assert (await http.post(CHAT, json=body)).status_code == 404
                choices = json.loads(line.removeprefix("data: "))["choices"]
                got += choices[0].get("token_ids") or []
    assert got == expected
