"""What the disk does to a run that is served: damaged policies, a moved run folder, a ledger that goes away."""

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_rig import Rig, ScriptedEngine, running, wait_until

from clawrl_trl.gateway.policies import router
from clawrl_trl.ledger import Ledger, events, policies, schema
from clawrl_trl.policies import PolicyStore

CHAT = "/v1/chat/completions"
WEIGHTS = bytes(range(256)) * 64


def publish(ledger: Ledger, run: Path, version: int, *, absolute: bool = False) -> Path:
    store = PolicyStore(run / "policies")
    folder = store.begin(version)
    (folder / "adapter_model.safetensors").write_bytes(WEIGHTS + bytes([version]))
    (folder / "adapter_config.json").write_text('{"r": 8}')
    final = store.finish(version)
    path = str(final) if absolute else f"policies/{final.name}"
    with ledger.transaction() as tx:
        row = schema.Policy(version=version, parent=version - 1, path=path, sha256=store.sha256(version))
        policies.add(tx, row)
        policies.promote(tx, version)
    return final


def half_zeroed(folder: Path, name: str = "adapter_model.safetensors") -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))


def ask(rig: Rig, model: str = "clawrl") -> httpx.Response:
    with rig.client() as http:
        return http.post(CHAT, json={"messages": [{"role": "user", "content": "hello"}], "model": model})


def ready(rig: Rig) -> tuple[int, str]:
    with rig.client() as http:
        answer = http.get("/readyz")
    return answer.status_code, " ".join(answer.json().get("reasons", []))


def states(ledger: Ledger) -> dict[int, str]:
    with ledger.reader() as tx:
        return {policy.version: policy.state for policy in policies.all(tx)}


def serves(rig: Rig, version: int) -> None:
    wait_until(lambda: rig.gateway.policies.serving.number == version)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_damaged_version_does_not_come_back_after_a_restart(tmp_path: Path, name: str) -> None:
    def before(ledger: Ledger) -> None:
        publish(ledger, tmp_path, 1)
        half_zeroed(publish(ledger, tmp_path, 2), name)

    with running(tmp_path, before=before) as rig:
        answer = ask(rig)
        assert (answer.status_code, answer.headers["x-clawrl-policy-version"]) == (200, "1")
        assert "policy-v2" not in rig.engine.loaded
        assert ready(rig)[0] == 200
        assert states(rig.ledger) == {0: "retired", 1: "serving", 2: "rejected"}
        with rig.ledger.reader() as tx:
            (row,) = [row for row in policies.all(tx) if row.version == 2]
            kinds = [event.kind for event in (*events.of(tx, "1"), *events.of(tx, "2"))]
        assert row.reason is not None and row.reason.startswith("damaged: ")
        assert "rollback" in kinds and "policy_rejected" in kinds
        assert ask(rig, "policy-v2").status_code == 404


def test_damaged_versions_in_a_row_are_passed_over(tmp_path: Path) -> None:
    def before(ledger: Ledger) -> None:
        publish(ledger, tmp_path, 1)
        half_zeroed(publish(ledger, tmp_path, 2))
        half_zeroed(publish(ledger, tmp_path, 3))

    with running(tmp_path, before=before) as rig:
        assert ask(rig).headers["x-clawrl-policy-version"] == "1"


def test_a_version_damaged_before_it_is_loaded_never_serves(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        publish(rig.ledger, tmp_path, 1)
        serves(rig, 1)
        rig.engine.refuse_load = True
        folder = publish(rig.ledger, tmp_path, 2)
        half_zeroed(folder)
        rig.engine.refuse_load = False
        wait_until(lambda: states(rig.ledger)[2] == "rejected")
        serves(rig, 1)
        assert ask(rig).headers["x-clawrl-policy-version"] == "1"


def test_until_the_last_good_one_is_loaded_it_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has lost its adapters, the serving one is damaged, and the one before can't be loaded yet."""
    monkeypatch.setattr(router, "RETRY_LOAD_S", 0.05)
    with running(tmp_path, keep_policies=0) as rig:
        publish(rig.ledger, tmp_path, 1)
        serves(rig, 1)
        folder = publish(rig.ledger, tmp_path, 2)
        serves(rig, 2)
        wait_until(lambda: "policy-v1" not in rig.engine.loaded)
        half_zeroed(folder)
        assert ask(rig).headers["x-clawrl-policy-version"] == "2", "what is in memory is whole"
        rig.engine.refuse_load = True
        rig.engine.loaded.clear()
        refused = ask(rig)
        assert refused.status_code == 503 and "damaged" in refused.json()["error"]["message"]
        assert "\n" not in refused.json()["error"]["message"]
        status, reason = ready(rig)
        assert status == 503 and "Policy version 2 is damaged" in reason
        rig.engine.refuse_load = False
        serves(rig, 1)
        assert ready(rig)[0] == 200
        assert ask(rig).headers["x-clawrl-policy-version"] == "1"
        assert states(rig.ledger) == {0: "retired", 1: "serving", 2: "rejected"}


@pytest.mark.parametrize("absolute", [False, True])
def test_a_moved_and_a_copied_run_serve_their_own_files(tmp_path: Path, absolute: bool) -> None:
    first = tmp_path / "first"
    first.mkdir()
    ledger = Ledger.open(first / "ledger.db")
    publish(ledger, first, 1, absolute=absolute)
    ledger.close()
    shutil.copytree(first, tmp_path / "copied")
    with running(tmp_path / "copied") as rig:
        assert ask(rig).headers["x-clawrl-policy-version"] == "1"
        assert rig.engine.loaded["policy-v1"] == str(tmp_path / "copied" / "policies" / "policy-v1")
    first.rename(tmp_path / "moved")
    with running(tmp_path / "moved") as rig:
        assert ask(rig).headers["x-clawrl-policy-version"] == "1"
        assert rig.engine.loaded["policy-v1"] == str(tmp_path / "moved" / "policies" / "policy-v1")


def test_a_copy_on_an_engine_that_has_the_first_runs_policy_does_not_serve_that(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    ledger = Ledger.open(first / "ledger.db")
    theirs = publish(ledger, first, 1, absolute=True)
    ledger.close()
    shutil.copytree(first, tmp_path / "copied")
    engine = ScriptedEngine(loaded={"policy-v1": str(theirs)})
    with running(tmp_path / "copied", engine=engine, patience_s=0.1) as rig:
        refused = ask(rig)
        assert refused.status_code == 503 and "another run" in refused.json()["error"]["message"]


def test_a_ledger_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        assert ask(rig).status_code == 200
        away = rig.run.ledger.rename(tmp_path / "away.db")
        refused = ask(rig)
        error: dict[str, Any] = refused.json()["error"]
        assert refused.status_code == 503 and "moved or deleted" in error["message"] and "\n" not in error["message"]
        assert "retry-after" in refused.headers
        status, reason = ready(rig)
        assert status == 503 and "moved or deleted" in reason
        assert not rig.run.ledger.exists()
        away.rename(rig.run.ledger)
        assert ask(rig).status_code == 200
        assert ready(rig)[0] == 200
        assert len(rig.turns()) == 2
