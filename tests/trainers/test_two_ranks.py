"""Two processes on gloo: disjoint slices, one set of weights, one line of versions, the losses of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from made_up import fill, make_samples, with_candidates
from safetensors.torch import load_file

from clawrl_trl.credit import TrainingSample
from clawrl_trl.ledger import Ledger, policies
from clawrl_trl.ledger.schema import Batch

pytestmark = pytest.mark.slow

LOSSES = ("grpo", "dapo")
K = 4


def launch(tiny: Path, ranks: int, top_k: int, runs: list[Path]) -> None:
    script = Path(__file__).with_name("two_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    arguments = map(str, (script, tiny, ranks, top_k, *runs))
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    result = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=800)
    assert result.returncode == 0, result.stderr[-3000:]


def ledger_of(run: Path, samples: list[TrainingSample]) -> Path:
    ledger = Ledger.open(run / "ledger.db")
    fill(ledger, samples)
    ledger.close()
    return run


def weights(run: Path, version: int) -> dict[str, torch.Tensor]:
    return load_file(run / "policies" / f"policy-v{version}" / "adapter_model.safetensors")


@pytest.mark.timeout(900)
def test_two_ranks(tiny: Path, tmp_path: Path) -> None:
    run = ledger_of(tmp_path / "grpo", make_samples(5))
    launch(tiny, 2, 0, [run])
    ranks = [json.loads((run / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    with_ledger = Ledger.open(run / "ledger.db")
    with with_ledger.reader() as tx:
        leased = [batch.sample_ids for batch in tx.query(Batch).order_by(Batch.created_at)]
        versions = [policy.state for policy in policies.all(tx)]
    with_ledger.close()
    assert [len(ids) for ids in leased] == [4, 1]
    assert versions == ["retired", "retired", "serving"]
    first, second = ranks[0]["rows"], ranks[1]["rows"]
    assert [sorted(a + b) for a, b in zip(first, second, strict=True)] == [sorted(ids) for ids in leased]
    assert [len(ids) for ids in second] == [2, 0]
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert ranks[0]["version"] == ranks[1]["version"] == 2
    saved = sum(float(value.double().sum()) for value in weights(run, 2).values())
    torch.testing.assert_close(torch.tensor(saved), torch.tensor(ranks[0]["weights"]), rtol=1e-5, atol=1e-5)


@pytest.mark.timeout(900)
def test_two_ranks_take_the_steps_of_one(tiny: Path, tmp_path: Path) -> None:
    """With candidates on some samples only: at times one process has a teacher's term and the other has none."""
    samples = [
        with_candidates(sample, K, i, empty=0.2) if i in (0, 2, 4) else sample
        for i, sample in enumerate(make_samples(5))
    ]
    for ranks in (1, 2):
        launch(tiny, ranks, K, [ledger_of(tmp_path / str(ranks) / loss, samples) for loss in LOSSES])
    for loss in LOSSES:
        for version in (1, 2):
            alone, together = (weights(tmp_path / ranks / loss, version) for ranks in ("1", "2"))
            assert alone.keys() == together.keys()
            for name, value in alone.items():
                torch.testing.assert_close(value, together[name], rtol=1e-4, atol=1e-6)
        moved = [torch.equal(value, weights(tmp_path / "1" / loss, 1)[name]) for name, value in alone.items()]
        assert not any(moved)
