"""What a trainer sends to the Hub: the policy, and nothing else of its run folder."""

import io
import json
import logging
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import CANARY, TOKEN, HubServer
from made_up import make_samples
from peft import LoraConfig, PeftModel
from safetensors.torch import load
from transformers import AutoModelForCausalLM

from clawrl_trl.credit import LedgerSource
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger, policies
from clawrl_trl.run import RunFolder
from clawrl_trl.tiny import MODEL_PATH
from clawrl_trl.trainers import AsyncGRPOConfig, AsyncGRPOTrainer, CombineConfig, CombineTrainer

ADAPTER = {"adapter_config.json", "adapter_model.safetensors"}
MODEL = {"config.json", "model.safetensors", "generation_config.json"}
COMPANIONS = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
PAPERS = {"README.md", "training_receipt.json"}


def make_trainer(run: RunFolder, source: Any, tiny: Path, *, full: bool = False, **options: Any) -> AsyncGRPOTrainer:
    fields: dict[str, Any] = {
        "output_dir": str(run.path),
        "learning_rate": 1e-2,
        "max_kl": 100.0,
        "use_cpu": True,
        "disable_tqdm": True,
        "max_steps": 2,
        "push_to_hub": True,
        "hub_model_id": "tester/policy",
        "hub_token": TOKEN,
        **options,
    }
    peft = None if full else LoraConfig(r=4, target_modules="all-linear")
    return AsyncGRPOTrainer(model=str(tiny), args=AsyncGRPOConfig(**fields), source=source, peft_config=peft)


def make_live_source(ledger: Ledger) -> LedgerSource:
    return LedgerSource(ledger, timeout_s=0.0)


def check_nothing_private(hub: HubServer, run: RunFolder) -> None:
    """Nothing that was sent holds a secret, the token, or a path of this machine."""
    received = hub.seen()
    assert b"safetensors" in received and b"training_receipt" in received
    for secret in (CANARY, TOKEN, str(run.path.parent), f"{Path.home()}/", str(MODEL_PATH)):
        assert secret.encode() not in received, secret


def find_token_on_disk(folder: Path) -> list[Path]:
    """Files that hold the token, looked into where they are archives."""

    def holds(path: Path) -> bool:
        content = path.read_bytes()
        if zipfile.is_zipfile(io.BytesIO(content)):
            with zipfile.ZipFile(path) as archive:
                content += b"".join(archive.read(name) for name in archive.namelist())
        return TOKEN.encode() in content

    return [path for path in folder.rglob("*") if path.is_file() and holds(path)]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["end", "every_save", "checkpoint", "all_checkpoints"])
def test_every_strategy_sends_the_policy_alone(
    hub: HubServer,
    run: RunFolder,
    ledger: Ledger,
    tiny: Path,
    strategy: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        options = {"save_strategy": "steps", "save_steps": 1, "hub_always_push": True}
        trainer = make_trainer(run, make_live_source(ledger), tiny, hub_strategy=strategy, **options)
    assert ("optimizer states" in caplog.text) == ("checkpoint" in strategy)
    trainer.train()
    trainer.save_model()
    repository = hub.repositories["tester/policy"]
    assert repository.private
    during = [f"Training in progress, step {step}" for step in (1, 2)] if strategy != "end" else []
    assert [message for message, _ in repository.commits] == [*during, "Model save"]
    assert set(repository.files) == ADAPTER | COMPANIONS | PAPERS
    check_nothing_private(hub, run)
    for version, (_, files) in enumerate(repository.commits[: len(during)], 1):
        assert json.loads(files["training_receipt.json"])["policy"]["version"] == version
        committed = run.policies / f"policy-v{version}" / "adapter_model.safetensors"
        assert files["adapter_model.safetensors"] == committed.read_bytes()


def test_a_push_by_hand_sends_the_committed_version(
    hub: HubServer, run: RunFolder, ledger: Ledger, tiny: Path
) -> None:
    trainer = make_trainer(run, make_live_source(ledger), tiny, push_to_hub=False)
    trainer.train()
    assert not hub.requests
    trainer.push_to_hub("by hand", tags="mine")
    repository = hub.repositories["tester/policy"]
    assert set(repository.files) == ADAPTER | COMPANIONS | PAPERS
    assert "- mine\n" in repository.files["README.md"].decode()
    check_nothing_private(hub, run)
    base = AutoModelForCausalLM.from_pretrained(tiny)
    folder = run.path / "received"
    folder.mkdir()
    for name, content in repository.files.items():
        (folder / name).write_bytes(content)
    ids = torch.tensor([[2, 3, 4]])
    with torch.no_grad():
        received = PeftModel.from_pretrained(base, folder)(ids).logits
        torch.testing.assert_close(received, trainer.model.eval()(ids).logits)
    future = trainer.push_to_hub("later", blocking=False)
    assert future.result(60).commit_message == "later"


def test_the_receipt_counts_what_the_version_learned_from(
    hub: HubServer, run: RunFolder, ledger: Ledger, tiny: Path
) -> None:
    trainer = make_trainer(run, make_live_source(ledger), tiny)
    trainer.train()
    trainer.push_to_hub()
    files = hub.repositories["tester/policy"].files
    receipt = json.loads(files["training_receipt.json"])
    with ledger.reader() as tx:
        policy = policies.serving(tx)
    assert (receipt["method"], receipt["trainer"]) == ("binary", "AsyncGRPOTrainer")
    assert receipt["policy"]["version"] == policy.version == 2 and receipt["policy"]["parent"] == 1
    scores = [sample.score for sample in make_samples(8)]
    ups, downs = sum(score > 0 for score in scores), sum(score < 0 for score in scores)
    assert receipt["data"]["trained"] == {
        "versions": 2, "sessions": 1, "samples": 8, "scored_up": ups, "scored_down": downs, "with_teacher": 8
    }  # fmt: skip
    assert receipt["data"]["collected"]["turns"] == receipt["data"]["collected"]["verdicts"] == 8
    assert receipt["weights"] == {"adapter_model.safetensors": policy.sha256}
    assert receipt["hyper_parameters"]["learning_rate"] == 1e-2 and receipt["adapter"]["r"] == 4
    assert receipt["packages"]["torch"] == torch.__version__
    assert receipt["base_model"] == {
        "kind": "local", "name": None, "revision": None, "licence": None, "architecture": "qwen3"
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
def test_training_without_a_ledger_pushes_what_is_in_memory(
    hub: HubServer, run: RunFolder, tiny: Path, full: bool
) -> None:
    (run.path / "rows.jsonl").write_text(json.dumps({"text": CANARY}) + "\n")
    options = {"save_strategy": "steps", "save_steps": 1, "hub_always_push": True}
    trainer = make_trainer(run, make_samples(8), tiny, full=full, **options)
    trainer.train()
    trainer.push_to_hub()
    repository = hub.repositories["tester/policy"]
    assert set(repository.files) == (MODEL if full else ADAPTER) | COMPANIONS | PAPERS
    assert len(repository.commits) == 3
    check_nothing_private(hub, run)
    name = "model.safetensors" if full else "adapter_model.safetensors"
    sent = load(repository.files[name])
    weights = {key.replace(".default", ""): value for key, value in trainer.model.state_dict().items()}
    assert sent and all(torch.equal(value, weights[key]) for key, value in sent.items())


def test_full_versions_of_a_ledger_run_do_not_take_the_settings_for_a_model(
    hub: HubServer, run: RunFolder, ledger: Ledger, tiny: Path
) -> None:
    trainer = make_trainer(run, make_live_source(ledger), tiny, full=True)
    trainer.train()
    trainer.push_to_hub()
    files = hub.repositories["tester/policy"].files
    assert set(files) == MODEL | COMPANIONS | PAPERS
    assert json.loads(files["config.json"])["model_type"] == "qwen3"
    check_nothing_private(hub, run)


@pytest.mark.slow
def test_no_file_on_the_disk_holds_the_token(hub: HubServer, run: RunFolder, ledger: Ledger, tiny: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 1, "model_init_kwargs": {"token": TOKEN}}
    trainer = make_trainer(run, make_live_source(ledger), tiny, **options)
    trainer.train()
    trainer.save_model()
    assert list(run.path.rglob("training_args.bin"))
    assert find_token_on_disk(run.path) == []
    assert trainer.args.hub_token == TOKEN
    saved = torch.load(run.path / "training_args.bin", weights_only=False)
    assert saved.learning_rate == trainer.args.learning_rate and saved.hub_token is None


def test_a_run_that_learned_nothing_pushes_nothing(
    hub: HubServer, run: RunFolder, ledger: Ledger, tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(run, LedgerSource(ledger, timeout_s=0.0, stop=lambda: True), tiny)
    trainer.train()
    trainer.save_model()
    assert "nothing is pushed" in caplog.text
    with pytest.raises(UserError, match=r"Version 0 is the base model"):
        trainer.push_to_hub()
    assert not hub.repositories["tester/policy"].commits


@pytest.mark.slow
def test_a_push_that_fails_ends_no_training(
    hub: HubServer, run: RunFolder, ledger: Ledger, tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub.refuse_commits = True
    trainer = make_trainer(run, make_live_source(ledger), tiny, save_strategy="steps", save_steps=1)
    trainer.train()
    assert trainer.policy_version == 2
    assert "training goes on" in caplog.text and "over your quota" in caplog.text
    with pytest.raises(UserError, match=r"403.*over your quota.*may write"):
        trainer.push_to_hub()
    assert TOKEN not in caplog.text


def test_what_would_open_a_policy_to_the_public_is_refused(hub: HubServer, run: RunFolder, tiny: Path) -> None:
    make_trainer(run, make_samples(4), tiny, hub_private_repo=False)
    assert not hub.repositories["tester/policy"].private
    with pytest.raises(UserError, match=r"tester/policy exists and is public"):
        make_trainer(run, make_samples(4), tiny)


def test_a_missing_token_costs_one_line(hub: HubServer, run: RunFolder, tiny: Path) -> None:
    with pytest.raises(UserError, match=r"no token .*hf auth login.*HF_TOKEN"):
        make_trainer(run, make_samples(4), tiny, hub_token=None)
    with pytest.raises(UserError, match=r"answered 401 .*Invalid"):
        make_trainer(run, make_samples(4), tiny, hub_model_id="policy", hub_token="hf_wrong")


def test_chats_are_not_logged_to_the_hub() -> None:
    with pytest.raises(ValueError, match=r"log_completions_hub_repo would publish"):
        AsyncGRPOConfig(output_dir="unused", log_completions_hub_repo="tester/chats")


@pytest.mark.slow
def test_the_card_of_a_policy_on_the_bundled_model(
    hub: HubServer, run: RunFolder, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = {
        "persona": CANARY, "score_before": 0.125, "score_after": 0.875, "correct_before": 1.0, "correct_after": 0.96,
        "success_before": 0.125, "success_after": 0.875, "eval_problems": 50, CANARY: 1.0, "policy_version": 1,
    }  # fmt: skip
    (run.path / "metrics.json").write_text(json.dumps(metrics))
    args = CombineConfig(
        output_dir=str(run.path), use_cpu=True, disable_tqdm=True, max_steps=1, max_kl=100.0,
        hub_model_id="tester/policy", hub_token=TOKEN,
    )  # fmt: skip
    trainer = CombineTrainer(
        model=str(MODEL_PATH),
        args=args,
        source=make_live_source(ledger),
        peft_config=LoraConfig(target_modules="all-linear"),
    )
    trainer.train()
    trainer.push_to_hub()
    card = hub.repositories["tester/policy"].files["README.md"].decode()
    header, body = card.split("---\n")[1:3]
    assert "license: apache-2.0" in header and "library_name: peft" in header and "- clawrl-trl" in header
    evaluated = "| replies in the wanted style | 0.125 | 0.875 |"
    for text in ("clawrl-tiny", "CombineTrainer", "2603.10165", "| samples | 4 |", evaluated, "vllm serve",
                 "clawrl serve", "## Privacy", "MODEL_PATH", "## Licence"):  # fmt: skip
        assert text in body, text
    assert "--max-lora-rank 8" in body
    check_nothing_private(hub, run)
    received = run.path / "received"
    received.mkdir()
    for name, content in hub.repositories["tester/policy"].files.items():
        (received / name).write_bytes(content)
    monkeypatch.chdir(run.path)
    code = "".join(re.findall(r"```python\n(.*?)```", body, re.DOTALL))
    exec(code.replace("tester/policy", str(received)), {})
    merged = AutoModelForCausalLM.from_pretrained(run.path / "merged", dtype=torch.float32)
    ids = torch.tensor([[2, 3, 4]])
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, trainer.model.eval()(ids).logits, rtol=0.1, atol=0.1)


@pytest.mark.slow
def test_one_of_two_processes_pushes(hub: HubServer, run: RunFolder, ledger: Ledger, tiny: Path) -> None:
    script = Path(__file__).with_name("pushing_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    process = subprocess.run(
        [*command, str(tiny), str(run.path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    outcomes = [json.loads((run.path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert outcomes == [{"version": 1, "pushed": True}, {"version": 1, "pushed": False}]
    assert [message for message, _ in hub.repositories["tester/policy"].commits] == [
        "Training in progress, step 1",
        "by hand",
    ]
    assert sum(request.path == "/api/repos/create" for request in hub.requests) == 1
    assert not any("telemetry" in request.path for request in hub.requests)
    check_nothing_private(hub, run)
