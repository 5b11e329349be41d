"""Two processes on gloo under each backend make the policy versions of one process, come what may."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from made_up import fill, make_samples
from ranks import MIXED, WAYS
from safetensors import safe_open
from safetensors.torch import load_file

from clawrl_trl.ledger import Ledger, policies

# One worker, for the runs that several tests look at take minutes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.xdist_group("ranks")]

ZERO = [pytest.param(name, marks=pytest.mark.deepspeed) for name in ("zero2", "zero3")]
BACKENDS = ["ddp", "fsdp", *ZERO]
SAMPLES = 19
"""Five steps of four, the last of three: one process then has a row fewer."""
EXACT = [way for way in WAYS if way != "bf16"]
HALF = 0.3
"""Bound on a log-probability's difference between two trainings that compute in bfloat16."""
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
}

Tensors = dict[str, torch.Tensor]


def launch(
    backend: str, ranks: int, tiny: Path, root: Path, *ways: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    arguments = [str(Path(__file__).with_name("ranks.py")), backend, str(tiny), str(root), *ways]
    own = FSDP if backend == "fsdp" else {"ACCELERATE_USE_CPU": "true"} if backend == "ddp" else {}
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", **own, **environment}
    return subprocess.run([*command, *arguments], env=variables, capture_output=True, text=True, timeout=1400)


def make_runs(root: Path, *ways: str) -> Path:
    for way in ways:
        (root / way).mkdir(parents=True)
        ledger = Ledger.open(root / way / "ledger.db")
        fill(ledger, make_samples(SAMPLES))
        ledger.close()
    return root


@pytest.fixture(scope="module")
def alone(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one process."""
    root = make_runs(tmp_path_factory.mktemp("alone"), *EXACT, MIXED)
    result = launch("ddp", 1, tiny, root, *EXACT, MIXED)
    assert result.returncode == 0, result.stderr[-3000:]
    return root


@pytest.fixture(scope="module", params=BACKENDS)
def together(request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes under a backend."""
    ways = WAYS if request.param.startswith("zero") else (*WAYS, MIXED)
    root = make_runs(tmp_path_factory.mktemp(request.param), *ways)
    result = launch(request.param, 2, tiny, root, *ways)
    assert result.returncode == 0, result.stderr[-3000:]
    return root


def load_versions(run: Path) -> dict[str, Tensors]:
    """Weights of each version of a run; of adapters and models alike."""
    files = sorted((run / "policies").glob("policy-v*/*model.safetensors"))
    return {file.parent.name: load_file(file) for file in files}


def assert_equal(first: Tensors, second: Tensors) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(second[name].float(), value.float(), rtol=1e-5, atol=1e-5)


def read_states(run: Path) -> list[str]:
    ledger = Ledger.open(run / "ledger.db")
    with ledger.reader() as tx:
        states = [policy.state for policy in policies.all(tx)]
    ledger.close()
    return states


@pytest.mark.parametrize("way", EXACT)
def test_the_versions_of_one_process(alone: Path, together: Path, way: str) -> None:
    """All of them: rejected ones, those before and after a rollback, and what is in memory at the end."""
    assert read_states(together / way) == read_states(alone / way)
    own, others = load_versions(alone / way), load_versions(together / way)
    assert own.keys() == others.keys()
    assert len(own) >= 5
    for name, weights in own.items():
        assert_equal(weights, others[name])
    assert_equal(load_file(alone / way / "memory.safetensors"), load_file(together / way / "memory.safetensors"))


def test_a_rejected_update_is_gone(together: Path) -> None:
    """Of three rejections in a row none is larger than the learning rate allows a first step to be."""
    assert read_states(together / "reject")[1:] == ["rejected"] * 5
    memory = load_file(together / "reject" / "memory.safetensors")
    assert all(not value.any() for name, value in memory.items() if "lora_B" in name)
    for weights in load_versions(together / "reject").values():
        assert max(float(value.abs().max()) for name, value in weights.items() if "lora_B" in name) <= 0.0101


def test_memory_holds_the_version_that_serves(together: Path) -> None:
    for way in ("back0", "back1", "during", "resume"):
        with safe_open(together / way / "memory.safetensors", framework="pt") as file:
            version = file.metadata()["version"]
            total = sum(float(file.get_tensor(name).double().sum()) for name in file.keys())  # noqa: SIM118
        saved = sum(
            float(value.double().sum()) for value in load_versions(together / way)[f"policy-v{version}"].values()
        )
        assert total == pytest.approx(saved, rel=1e-5, abs=1e-5)


def test_a_bf16_base_is_trained(together: Path) -> None:
    assert read_states(together / "bf16")[1:] == ["retired"] * 4 + ["serving"]
    versions = load_versions(together / "bf16")
    for before, after in zip(list(versions.values()), list(versions.values())[1:], strict=False):
        assert any(not torch.equal(value, after[name]) for name, value in before.items())


@pytest.mark.parametrize("together", ["ddp", "fsdp"], indirect=True)  # DeepSpeed has a mixed precision of its own
def test_log_probabilities_of_mixed_precision_are_not_rounded(alone: Path, together: Path) -> None:
    """What bfloat16 computes differs a little; the numbers themselves have all the bits of float32."""
    own, others = (load_file(root / MIXED / "scores.safetensors")["logps"] for root in (alone, together))
    assert others.dtype == torch.float32
    assert (others.bfloat16().float() != others).float().mean() > 0.5
    torch.testing.assert_close(others, own, rtol=0, atol=HALF)


def test_each_layer_is_gathered_by_itself(together: Path) -> None:
    """Of FSDP's divided modules two are the model's layers; else both would be in memory at once."""
    for way in ("train", "whole"):
        assert load_file(together / way / "scores.safetensors")["layers"] == (2 if "fsdp" in together.name else 0)


def test_only_what_is_trained_is_saved(together: Path) -> None:
    """No state of an adapter's training holds the base model."""
    base = {name for name in load_versions(together / "whole")["policy-v1"] if "embed" in name}
    assert base, "of a whole model the embeddings are saved"
    states = together / "train" / "policies" / "policy-v5"
    assert not list(states.rglob("pytorch_model_fsdp*"))
    assert all("lora" in name for name in load_versions(together / "train")["policy-v5"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_resume_with_another_number_of_processes(backend: str, tiny: Path, tmp_path: Path, alone: Path) -> None:
    root = make_runs(tmp_path, "continue")
    for ranks, way in ((2, "begin"), (1, "continue")):
        result = launch(backend, ranks, tiny, root, way)
        assert result.returncode == 0, result.stderr[-3000:]
    versions, expected = load_versions(root / "continue"), load_versions(alone / "resume")
    assert versions.keys() == expected.keys()
    if backend.startswith("zero"):
        assert "can't be used" in result.stderr
        expected = {name: weights for name, weights in expected.items() if name in ("policy-v1", "policy-v2")}
    for name, weights in expected.items():
        assert_equal(weights, versions[name])


def test_what_fsdp_keeps_in_one_piece_is_saved_too(tiny: Path, tmp_path: Path, alone: Path) -> None:
    """PEFT then turns the adapter off and on where shards and whole parameters take turns."""
    root = make_runs(tmp_path, "train")
    whole = {"FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP", "FSDP_MIN_NUM_PARAMS": "100000000"}
    result = launch("fsdp", 2, tiny, root, "train", **whole)
    assert result.returncode == 0, result.stderr[-3000:]
    versions = load_versions(root / "train")
    for name, weights in load_versions(alone / "train").items():
        assert_equal(weights, versions[name])


def test_a_process_that_dies_ends_the_other(tiny: Path, tmp_path: Path) -> None:
    """With one line, long before any time-out and without a launcher that ends it; what was committed stays."""
    root = make_runs(tmp_path, "dying")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    script = [sys.executable, str(Path(__file__).with_name("ranks.py")), "ddp", str(tiny), str(root), "dying"]
    common = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "WORLD_SIZE": "2"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(script, env={**common, "RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 7]
    assert "error: Another process of this training has ended" in errors[0]
    assert "Traceback" not in errors[0]
    assert read_states(root / "dying") == ["retired", "serving"]


def test_fsdp_1_is_refused(tiny: Path, tmp_path: Path) -> None:
    root = make_runs(tmp_path, "train")
    result = launch("fsdp", 2, tiny, root, "train", FSDP_VERSION="1")
    assert result.returncode != 0
    assert "error: FSDP's first version can't restore a policy: set fsdp_version: 2" in result.stderr
