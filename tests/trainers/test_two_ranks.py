"""Two processes on gloo: disjoint slices, one set of weights, one line of versions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import fill, make_samples
from safetensors.torch import load_file

from clawrl_trl.ledger import Ledger, policies
from clawrl_trl.ledger.schema import Batch


def launch(tiny: Path, run: Path, ranks: int) -> None:
    script = Path(__file__).with_name("two_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(script), str(tiny), str(run)], env=environment, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.timeout(900)
def test_two_ranks(tiny: Path, tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    fill(ledger, make_samples(5))
    ledger.close()
    launch(tiny, tmp_path, 2)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    with_ledger = Ledger.open(tmp_path / "ledger.db")
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
    adapter = load_file(tmp_path / "policies" / "policy-v2" / "adapter_model.safetensors")
    saved = sum(float(value.double().sum()) for value in adapter.values())
    torch.testing.assert_close(torch.tensor(saved), torch.tensor(ranks[0]["weights"]), rtol=1e-5, atol=1e-5)
