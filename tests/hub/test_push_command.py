"""`clawrl push`: what it lists, what it sends, and what it refuses."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hub_server import CANARY, TOKEN, HubServer
from secret_run import make_run, open_ledger
from test_trainer_push import ADAPTER, COMPANIONS, PAPERS, check_nothing_private, make_live_source, make_trainer

from clawrl_trl.ledger import policies
from clawrl_trl.ledger.schema import Policy
from clawrl_trl.run import RunFolder

# One worker, for the policy that all of them publish is trained once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("push")]
FILES = ADAPTER | COMPANIONS | PAPERS


@pytest.fixture(scope="module")
def trained_once(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Path]:
    """A run after two updates, with a third that was rejected, and a copy of its folder."""
    run = make_run(tmp_path_factory.mktemp("trained"))
    ledger = open_ledger(run)
    make_trainer(run, make_live_source(ledger), tiny, push_to_hub=False).train()
    with ledger.transaction() as tx:
        policies.add(tx, Policy(version=3, parent=2, path=str(run.policies / "policy-v3"), sha256="0" * 64))
        policies.reject(tx, 3, "gate: too far from the base")
    ledger.close()
    return run, Path(shutil.copytree(run.path, tmp_path_factory.mktemp("copy") / "run"))


@pytest.fixture
def trained(hub: HubServer, trained_once: tuple[RunFolder, Path]) -> RunFolder:
    """That run as training left it, whatever was done to it since."""
    run, copy = trained_once
    shutil.rmtree(run.path)
    shutil.copytree(copy, run.path)
    return run


def run_clawrl(*words: str | Path, token: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"HF_TOKEN": token} if token else {})}
    command = [sys.executable, "-m", "clawrl_trl.cli.main", "push", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)


def push_policy(*words: str | Path, token: str | None = TOKEN) -> dict[str, Any]:
    process = run_clawrl(*words, "--json", token=token)
    assert process.returncode == 0, process.stderr
    report: dict[str, Any] = json.loads(process.stdout)
    return report


def test_the_command_sends_what_the_dry_run_lists(hub: HubServer, trained: RunFolder) -> None:
    listed = push_policy("policy", "--run", trained.path, "--dry-run", token=None)
    assert not hub.requests
    assert {file["name"] for file in listed["files"]} == FILES
    assert (listed["policy"], listed["private"], listed["dry_run"]) == (2, True, True)
    plain = run_clawrl("policy", "--run", trained.path, "--dry-run")
    assert all(re.search(rf"^ +[\d,]+  {re.escape(name)}$", plain.stdout, re.MULTILINE) for name in FILES)
    upload = push_policy("policy", "--run", trained.path)
    repository = hub.repositories["tester/policy"]
    assert upload["repo"] == "tester/policy" and repository.private
    assert {file["name"]: file["bytes"] for file in upload["files"]} == {
        name: len(content) for name, content in repository.files.items()
    }
    assert set(repository.files) == FILES
    check_nothing_private(hub, trained)
    again = run_clawrl("tester/policy", "--run", trained.path, "--public", token=TOKEN)
    assert again.returncode == 0 and again.stdout.startswith("Pushed policy version 2 to tester/policy")


def test_an_earlier_version_and_a_named_base(hub: HubServer, trained: RunFolder) -> None:
    report = push_policy(
        "tester/old", "--run", trained.path, "--policy", "1", "--public", "--base-model", "Qwen/Qwen3-0.6B"
    )
    repository = hub.repositories["tester/old"]
    assert report["policy"] == 1 and not repository.private
    committed = trained.policies / "policy-v1" / "adapter_model.safetensors"
    assert repository.files["adapter_model.safetensors"] == committed.read_bytes()
    assert json.loads(repository.files["adapter_config.json"])["base_model_name_or_path"] == "Qwen/Qwen3-0.6B"
    assert "base_model: Qwen/Qwen3-0.6B" in repository.files["README.md"].decode()
    check_nothing_private(hub, trained)


MISTAKES: tuple[tuple[list[str], str | None, str], ...] = (
    (["policy"], None, "HF_TOKEN"),
    (["policy"], "hf_wrong", "401"),
    (["policy", "--policy", "0"], TOKEN, "Version 0 is the base model"),
    (["policy", "--policy", "3"], TOKEN, "Version 3 was rejected"),
    (["policy", "--policy", "9"], TOKEN, "no policy version 9"),
    (["a/b/c"], TOKEN, "OWNER/NAME"),
    (["someone/else/../x", "--dry-run"], None, "OWNER/NAME"),
    (["$(reboot)", "--dry-run"], None, "OWNER/NAME"),
)


def test_mistakes_cost_one_line_and_send_no_file(hub: HubServer, trained: RunFolder) -> None:
    for words, token, says in MISTAKES:
        process = run_clawrl(*words, "--run", trained.path, token=token)
        assert process.returncode == 2, process.stderr
        (line,) = process.stderr.splitlines()
        assert line.startswith("error: ") and says in line and TOKEN not in line
        assert not any(repository.commits for repository in hub.repositories.values()) and not hub.blobs, words


def test_damaged_weights_are_not_published(hub: HubServer, trained: RunFolder) -> None:
    weights = trained.policies / "policy-v2" / "adapter_model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-64] + bytes(64))
    process = run_clawrl("policy", "--run", trained.path, token=TOKEN)
    assert process.returncode == 2 and "version 2 are damaged" in process.stderr and not hub.blobs


def test_a_repository_that_holds_a_run_folder_is_refused(hub: HubServer, trained: RunFolder) -> None:
    push_policy("policy", "--run", trained.path)
    hub.repositories["tester/policy"].files["policies/ledger.db"] = b"chats"
    process = run_clawrl("policy", "--run", trained.path, token=TOKEN)
    assert process.returncode == 2 and "already holds ledger.db" in process.stderr


def test_a_hub_that_is_away_costs_one_line(
    trained: RunFolder, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    process = run_clawrl("tester/policy", "--run", trained.path, token=TOKEN)
    assert process.returncode == 2 and "Traceback" not in process.stderr
    assert process.stderr.splitlines()[-1].startswith("error: ") and "try again" in process.stderr


def test_versions_of_an_older_release_are_published_too(hub: HubServer, trained: RunFolder) -> None:
    for record in trained.policies.glob("policy-v*/training.json"):
        record.unlink()
    push_policy("policy", "--run", trained.path)
    files = hub.repositories["tester/policy"].files
    assert set(files) == FILES
    assert json.loads(files["training_receipt.json"])["method"] is None
    check_nothing_private(hub, trained)


def test_hostile_files_of_a_run_folder_stay_where_they_are(hub: HubServer, trained: RunFolder) -> None:
    """Whatever lies beside the weights, or is written into the files that are read, is not repeated."""
    version = trained.policies / "policy-v2"
    for name in ("notes.txt", "scaler.pt", "modeling_secret.py", "optimizer.pt", ".env"):
        (version / name).write_text(CANARY)
    record = json.loads((version / "training.json").read_text())
    record["hyper_parameters"] |= {"learning_rate": f"/home/{CANARY}", CANARY: 1, "optim": {"key": CANARY}}
    record |= {
        "method": f"combine {CANARY}",
        "trainer": [CANARY],
        "base_model": f"/home/{CANARY}/model",
        "note": CANARY,
    }
    (version / "training.json").write_text(json.dumps(record))
    config = json.loads((version / "adapter_config.json").read_text())
    config |= {"token": CANARY, "corda_config": {"cache_file": f"/data/{CANARY}.pt"}, "revision": None}
    (version / "adapter_config.json").write_text(json.dumps(config))
    metrics = {"policy_version": 2, "env": CANARY, "success_before": CANARY, "score_before": 0.1, "score_after": 0.2}
    (trained.path / "metrics.json").write_text(json.dumps(metrics))
    push_policy("policy", "--run", trained.path)
    assert set(hub.repositories["tester/policy"].files) <= FILES
    check_nothing_private(hub, trained)


def test_listing_loads_no_torch(trained: RunFolder, hub: HubServer) -> None:
    code = (
        "import sys; from clawrl_trl.cli.main import _command; "
        f"_command(['push', 'x', '--dry-run', '--run', {str(trained.path)!r}]); print('torch' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert process.returncode == 0 and process.stdout.splitlines()[-1] == "False", process.stderr
