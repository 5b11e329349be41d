"""A whole model on an engine that holds one at a time: what the gateway offers, loads and never puts back.

The engine is scripted: it says what a vLLM server of ours says about itself. That a real one does what it says is
tested in `tests/vllm`.
"""

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gateway_rig import ExchangingEngine, Rig, running, wait_until

from clawrl_trl.gateway.auth import Keys
from clawrl_trl.ledger import Ledger, policies, schema

CHAT = "/v1/chat/completions"
WEIGHTS = b"weights"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(tmp_path / "run", engine=ExchangingEngine()) as rig:
        yield rig


def publish(ledger: Ledger, version: int, kind: str = "full") -> None:
    with ledger.transaction() as tx:
        if policies.get(tx, version) is None:
            path = f"policies/policy-v{version}"
            sha256 = hashlib.sha256(WEIGHTS).hexdigest()
            policies.add(tx, schema.Policy(version=version, parent=0, path=path, sha256=sha256, kind=kind))
        policies.promote(tx, version)


def folder_of(rig: Rig, version: int, name: str = "config.json") -> None:
    """A policy's folder of a whole model (or of an adapter, by the name of its config)."""
    folder = rig.run.policies / f"policy-v{version}"
    folder.mkdir(parents=True)
    (folder / name).write_text("{}")
    (folder / "model.safetensors").write_bytes(WEIGHTS)


def serve(rig: Rig, version: int, kind: str = "full") -> None:
    if version and not (rig.run.policies / f"policy-v{version}").exists():
        folder_of(rig, version, "config.json" if kind == "full" else "adapter_config.json")
    publish(rig.ledger, version, kind)
    wait_until(lambda: rig.gateway.policies.serving.number == version)


def ask(rig: Rig, model: str = "clawrl") -> Any:
    with rig.client() as http:
        return http.post(CHAT, json={"messages": [{"role": "user", "content": "hello"}], "model": model})


def names(rig: Rig) -> list[str]:
    with rig.client() as http:
        return [card["id"] for card in http.get("/v1/models").json()["data"]]


def engine_of(rig: Rig) -> ExchangingEngine:
    assert isinstance(rig.engine, ExchangingEngine)
    return rig.engine


def test_one_version_at_a_time(rig: Rig) -> None:
    engine = engine_of(rig)
    assert names(rig) == ["clawrl", "base"]
    for version in (1, 2):
        serve(rig, version)
    assert [name for name, _ in engine.exchanged] == ["policy-v1", "policy-v2"]
    assert names(rig) == ["clawrl", "policy-v2"]
    assert ask(rig).status_code == ask(rig, "policy-v2").status_code == 200
    assert {request["model"] for request in engine.requests} == {"policy"}
    refused = ask(rig, "base")
    assert refused.status_code == 404 and "is not in the engine" in refused.json()["error"]["message"]
    assert ask(rig, "policy-v1").status_code == 404
    assert engine.loaded == {}


def test_back_to_the_base_and_to_adapters(rig: Rig) -> None:
    engine = engine_of(rig)
    serve(rig, 1)
    serve(rig, 2, "adapter")
    assert [name for name, _ in engine.exchanged] == ["policy-v1", "base"] and list(engine.loaded) == ["policy-v2"]
    assert names(rig) == ["clawrl", "base", "policy-v2"]
    assert ask(rig).status_code == 200 and engine.requests[-1]["model"] == "policy-v2"
    serve(rig, 1)
    serve(rig, 0)
    assert [name for name, _ in engine.exchanged][2:] == ["policy-v1", "base"]
    assert ask(rig).status_code == 200 and engine.requests[-1]["model"] == "base"


def test_a_publisher_that_is_ahead_is_not_turned_back(rig: Rig) -> None:
    """The engine holds the next version before the ledger says so: requests take it, and nothing is loaded."""
    engine = engine_of(rig)
    serve(rig, 1)
    engine.hold("policy-v2", "elsewhere")
    assert ask(rig).status_code == 200 and ask(rig, "policy-v1").status_code == 200
    assert [name for name, _ in engine.exchanged] == ["policy-v1"]
    serve(rig, 2)
    assert [name for name, _ in engine.exchanged] == ["policy-v1", "policy-v2"]


def test_an_adapter_that_lost_its_base_while_it_was_asked_for(rig: Rig) -> None:
    engine = engine_of(rig)
    serve(rig, 1, "adapter")
    engine.hold("policy-v2", "elsewhere")
    assert ask(rig).status_code == 200
    assert engine.requests[-1]["model"] == "policy" and engine.exchanged == []


def test_a_version_that_is_taken_back_while_it_is_asked_for(rig: Rig) -> None:
    """The base is in place again before the gateway has adopted it; nobody puts the version before it back."""
    engine = engine_of(rig)
    serve(rig, 1)
    engine.exchange_goes_on = threading.Event()
    publish(rig.ledger, 0, "base")
    wait_until(lambda: len(engine.exchanged) == 2)
    engine.hold("base", None)  # it has, but its answer to the gateway is still on its way
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(ask, rig)
        wait_until(lambda: engine.refused == 1)
        engine.exchange_goes_on.set()
        assert asked.result().status_code == 200
    assert engine.requests[-1]["model"] == "base"
    assert [name for name, _ in engine.exchanged] == ["policy-v1", "base"]


def test_an_engine_that_restarted_gets_the_serving_version_back(rig: Rig) -> None:
    engine = engine_of(rig)
    for version in (1, 2):
        serve(rig, version)
    engine.hold("base", None)
    assert ask(rig).status_code == 200
    assert [name for name, _ in engine.exchanged][2:] == ["policy-v2"]
    assert engine.requests[-1]["model"] == "policy"


def test_a_gateway_that_restarts_finds_what_is_in_place(tmp_path: Path) -> None:
    engine = ExchangingEngine()
    engine.hold("policy-v1", "elsewhere")
    with running(tmp_path / "run", engine=engine, before=lambda ledger: publish(ledger, 1)) as rig:
        assert ask(rig).status_code == 200
        wait_until(lambda: names(rig) == ["clawrl", "policy-v1"])
        assert engine.exchanged == []


def test_what_is_merged_is_loaded_from_inside_its_folder(rig: Rig) -> None:
    folder_of(rig, 1, "adapter_config.json")
    merged = rig.run.policies / "policy-v1" / "merged"
    merged.mkdir()
    (merged / "config.json").write_text("{}")
    serve(rig, 1)
    assert [Path(str(folder)) for _, folder in engine_of(rig).exchanged] == [merged]


def test_requests_do_not_wait_for_an_exchange(rig: Rig) -> None:
    engine = engine_of(rig)
    serve(rig, 1)
    engine.exchange_goes_on = threading.Event()
    folder_of(rig, 2)
    publish(rig.ledger, 2)
    wait_until(lambda: len(engine.exchanged) == 2)
    assert ask(rig).status_code == 200
    assert rig.gateway.policies.serving.number == 1
    engine.exchange_goes_on.set()
    wait_until(lambda: rig.gateway.policies.serving.number == 2)


def test_clients_cannot_exchange_the_model(tmp_path: Path) -> None:
    keys = Keys(chat=("chat",), admin=("admin",))
    with running(tmp_path / "run", engine=ExchangingEngine(), keys=keys) as rig:
        with rig.client(headers={"authorization": "Bearer chat"}) as http:
            answer = http.post("/v1/policy", json={"name": "policy-v9", "folder": "/tmp"})
        assert answer.status_code in (401, 403) and engine_of(rig).exchanged == []
