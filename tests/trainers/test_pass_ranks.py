"""Two processes that make unlike passes, or of which one lacks memory, take the steps of one process."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import fill, make_samples
from pass_ranks import BUDGETS, POISON, STEP
from safetensors.torch import load_file

from clawrl_trl.credit import TrainingSample
from clawrl_trl.ledger import Ledger
from clawrl_trl.ledger.schema import Sample

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("pass ranks")]

VERSIONS = (1, 2)
POISONED = 3
"""A sample of the first step; of two processes the second has it."""


def make_rows() -> list[TrainingSample]:
    """Samples of two steps, of which the first of two processes has the long ones."""
    rng = np.random.default_rng(1)
    rows = []
    for index, sample in enumerate(make_samples(STEP * len(VERSIONS))):
        prompt = rng.integers(2, POISON, 14 if index % 2 == 0 else 2)
        rows.append(replace(sample, prompt_ids=prompt, completion_ids=sample.completion_ids % POISON))
    rows[POISONED] = replace(rows[POISONED], completion_ids=np.full_like(rows[POISONED].completion_ids, POISON))
    return rows


@pytest.fixture(scope="module")
def runs(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folders of one process, and of two, by their number."""
    root = tmp_path_factory.mktemp("passes")
    script = Path(__file__).with_name("pass_ranks.py")
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    for ranks in (1, 2):
        folders = [root / str(ranks) / name for name in BUDGETS]
        for folder in folders:
            folder.mkdir(parents=True)
            ledger = Ledger.open(folder / "ledger.db")
            fill(ledger, make_rows())
            ledger.close()
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        command = [*launcher, *map(str, (script, tiny, ranks, *folders))]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
        assert result.returncode == 0, result.stderr[-3000:]
    return root


def read_passes(run: Path, rank: int) -> list[int]:
    passes: list[int] = json.loads((run / f"rank{rank}.json").read_text())
    return passes


def read_states(run: Path) -> list[tuple[str, str | None]]:
    ledger = Ledger.open(run / "ledger.db")
    with ledger.reader() as tx:
        states = [(sample.state, sample.reason) for sample in tx.query(Sample)]
    ledger.close()
    return sorted(states, key=str)


@pytest.mark.parametrize("name", BUDGETS)
def test_the_steps_of_one_process(runs: Path, name: str) -> None:
    for version in VERSIONS:
        alone, together = (
            load_file(runs / ranks / name / "policies" / f"policy-v{version}" / "adapter_model.safetensors")
            for ranks in ("1", "2")
        )
        assert alone.keys() == together.keys()
        assert any(value.any() for key, value in alone.items() if "lora_B" in key)
        for key, value in alone.items():
            torch.testing.assert_close(together[key], value, rtol=1e-4, atol=1e-6)


def test_the_processes_make_equally_many_passes(runs: Path) -> None:
    """Of which those of the process with the short rows are empty at the end of a step."""
    first, second = (read_passes(runs / "2" / "uneven", rank) for rank in (0, 1))
    assert first == [1, 1, 1] * len(VERSIONS)
    assert len(second) == len(first)
    assert sum(second) == sum(first)
    assert second[2] == 0


def test_a_process_that_lacks_memory_repeats_its_passes_alone(runs: Path) -> None:
    """It splits three rows until the one that does not fit is alone; nobody else makes another pass."""
    first, second = (read_passes(runs / "2" / "memory", rank) for rank in (0, 1))
    assert first == [3, 3]
    assert second[0] == 3
    assert len(second) > 3
    assert second[-1] == 3
    for ranks in ("1", "2"):
        expected = [("dropped", "out of memory"), *[("trained", None)] * (STEP * len(VERSIONS) - 1)]
        assert read_states(runs / ranks / "memory") == expected
