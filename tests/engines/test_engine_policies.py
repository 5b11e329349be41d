"""Policies come and go while the engine works."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from engine_checks import logprobs_of, reference_logits, reference_model
from engine_server import Server
from safetensors.torch import load_file, save_file

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "something new, please"}], "ignore_eos": True}
TOLD = {"logprobs": True, "top_logprobs": 0, "return_token_ids": True}

pytestmark = pytest.mark.xdist_group("engine")


def load(http: httpx.Client, name: str, path: Path) -> httpx.Response:
    return http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)})


def unload(http: httpx.Client, name: str) -> httpx.Response:
    return http.post("/v1/unload_lora_adapter", json={"lora_name": name})


def names(http: httpx.Client) -> list[str]:
    return [card["id"] for card in http.get("/v1/models").json()["data"]]


def test_loading_listing_and_unloading(server: Server, model_folder: Path) -> None:
    with server.http() as http:
        assert load(http, "fresh", model_folder / "one").is_success
        assert load(http, "fresh", model_folder / "one").is_success
        taken = load(http, "fresh", model_folder / "two")
        assert taken.status_code == 400
        assert "already been loaded" in taken.json()["error"]["message"]
        assert "fresh" in names(http)
        assert unload(http, "fresh").is_success
        assert unload(http, "fresh").status_code == 404
        assert unload(http, "base").status_code == 404
        assert "fresh" not in names(http)
        assert http.post(CHAT, json={**ASK, "model": "fresh"}).status_code == 404


@pytest.mark.parametrize("kind", ["one", "dora", "full"])
def test_every_kind_of_policy_samples_from_its_own_weights(server: Server, model_folder: Path, kind: str) -> None:
    base, folder = model_folder / "base", model_folder / kind
    model = reference_model(folder) if kind == "full" else reference_model(base, folder)
    with server.http() as http:
        assert load(http, f"kind-{kind}", folder).is_success
        reply = http.post(CHAT, json={**ASK, **TOLD, "model": f"kind-{kind}", "max_tokens": 20, "seed": 1}).json()
        unload(http, f"kind-{kind}")
    ids = reply["choices"][0]["token_ids"]
    expected = logprobs_of(reference_logits(model, reply["prompt_token_ids"], ids), ids)
    assert [one["logprob"] for one in reply["choices"][0]["logprobs"]["content"]] == pytest.approx(expected, abs=1e-3)


def _nan(folder: Path) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    weights[next(iter(weights))][0, 0] = float("nan")
    save_file(weights, folder / "adapter_model.safetensors")


def _rank(folder: Path) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"r": 16}))


def _truncated(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def _other_base(folder: Path) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    path = folder / "adapter_model.safetensors"
    save_file({name.replace("layers.1.", "layers.9."): value for name, value in weights.items()}, path)


def _no_weights(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()


def _no_config(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{")


def _gone(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize("damage", [_nan, _rank, _truncated, _other_base, _no_weights, _no_config, _gone])
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
        assert refused.status_code == 400
        assert "damaged" in refused.json()["error"]["message"]
        assert "damaged" not in names(http)
        after = [http.post(CHAT, json={**body, "model": name}).json()["choices"] for name in ("base", "policy-v1")]
    assert [one[0]["token_ids"] for one in after] == [one[0]["token_ids"] for one in before]


def test_a_full_model_with_nan_is_refused(server: Server, model_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(model_folder / "full", tmp_path / "full")
    weights = load_file(tmp_path / "full" / "model.safetensors")
    weights[next(iter(weights))].view(-1)[0] = torch.inf
    save_file(weights, tmp_path / "full" / "model.safetensors", metadata={"format": "pt"})
    with server.http() as http:
        assert load(http, "sick", tmp_path / "full").status_code == 400


async def test_updates_under_load_fail_no_request(server: Server, model_folder: Path) -> None:
    """Clients keep asking for the newest version while versions are loaded and the oldest unloaded."""
    folders = [model_folder / "one", model_folder / "two"]
    newest = 0

    async def put(http: httpx.AsyncClient, verb: str, name: str, **more: str) -> None:
        (await http.post(f"/v1/{verb}_lora_adapter", json={"lora_name": name, **more})).raise_for_status()

    async def ask(http: httpx.AsyncClient) -> int:
        body = {**ASK, "model": f"live-v{newest}", "max_tokens": 12, "return_token_ids": True}
        response = await http.post(CHAT, json=body)
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
