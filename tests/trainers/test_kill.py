"""A trainer that dies at the worst moments trains no sample twice."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up import VOCABULARY, fill, make_samples, open_source
from peft import LoraConfig

from clawrl_trl.ledger import Ledger, batches, policies
from clawrl_trl.ledger.schema import Batch, Sample
from clawrl_trl.policies import PolicyStore, Publisher
from clawrl_trl.trainers import AsyncGRPOConfig, AsyncGRPOTrainer, checkpoint, policy_line


def _die(*args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _then_die(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)
        _die()

    return wrapped


DEATHS: dict[str, Callable[[Any], None]] = {
    "while the weights are written": lambda patch: patch(checkpoint, "_write_weights", _die),
    "before the state is written": lambda patch: patch(AsyncGRPOTrainer, "_save_rng_state", _die),
    "before the rename": lambda patch: patch(PolicyStore, "finish", _die),
    "between rename and commit": lambda patch: patch(policy_line.batches, "commit", _die),
    "inside the commit": lambda patch: patch(batches, "commit", _then_die(batches.commit)),
    "between commit and publication": lambda patch: patch(Publisher, "publish", _die),
    "after publication": lambda patch: patch(policy_line.PolicyLine, "_prune", _die),
    "in the optimizer": lambda patch: patch(torch.optim.AdamW, "step", _then_die(torch.optim.AdamW.step)),
}


def _die_at(poison: int) -> Callable[..., Any]:
    """A loss that ends the process at a row with this token."""

    def loss(trainer: Any, model: Any, inputs: Any, default_loss: Callable[..., torch.Tensor]) -> torch.Tensor:
        if (inputs["completion_ids"] == poison).any():
            _die()
        return default_loss(model, inputs)

    return loss


def train(tiny: Path, run: Path, death: str | None, poison: int | None = None) -> None:
    torch.set_num_threads(1)
    ledger = Ledger.open(run / "ledger.db")

    args = AsyncGRPOConfig(
        output_dir=str(run),
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        max_kl=100.0,
        max_staleness=100,
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = AsyncGRPOTrainer(
        model=str(tiny),
        args=args,
        source=open_source(ledger),
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
        custom_loss_function=None if poison is None else _die_at(poison),
    )
    if death is not None:
        DEATHS[death](setattr)
    trainer.train()
    ledger.close()


def run_child(tiny: Path, run: Path, death: str | None, poison: int | None = None) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=train, args=(tiny, run, death, poison))
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.kill9
@pytest.mark.timeout(900)
def test_each_sample_is_trained_once_whatever_dies(tiny: Path, tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    fill(ledger, make_samples(2 * len(DEATHS)))
    ledger.close()
    for death in DEATHS:
        assert run_child(tiny, tmp_path, death) == -signal.SIGKILL, death
    assert run_child(tiny, tmp_path, None) == 0

    ledger = Ledger.open(tmp_path / "ledger.db")
    with ledger.reader() as tx:
        rows = policies.all(tx)
        serving = policies.serving(tx)
        assert {sample.state for sample in tx.query(Sample)} == {"trained"}
        trained = {batch.trained_into: batch.sample_ids for batch in tx.query(Batch).where(Batch.state == "trained")}
    parents = {policy.version: policy.parent for policy in rows}
    surviving, version = [], serving.version
    while version is not None:
        surviving.append(version)
        version = parents[version]
    assert sorted(surviving) == sorted(parents)
    sample_ids = [sample for version in surviving for sample in trained.get(version, [])]
    assert len(sample_ids) == len(set(sample_ids)) == 2 * len(DEATHS)
    store = PolicyStore(tmp_path / "policies")
    assert sorted(path.name for path in store.root.iterdir()) == sorted(f"policy-v{v}" for v in parents if v > 0)
    assert all(store.sha256(policy.version) == policy.sha256 for policy in rows if policy.version > 0)
    ledger.close()


@pytest.mark.kill9
@pytest.mark.timeout(900)
def test_a_sample_that_kills_its_trainer_is_dropped_and_the_others_are_trained(tiny: Path, tmp_path: Path) -> None:
    poison = VOCABULARY - 1
    samples = [replace(sample, completion_ids=sample.completion_ids % poison) for sample in make_samples(4)]
    samples[2] = replace(samples[2], completion_ids=np.full_like(samples[2].completion_ids, poison))
    ledger = Ledger.open(tmp_path / "ledger.db")
    fill(ledger, samples)
    ledger.close()
    ends = [run_child(tiny, tmp_path, None, poison) for _ in range(4)]
    assert ends == [-signal.SIGKILL] * 3 + [0]
    ledger = Ledger.open(tmp_path / "ledger.db")
    with ledger.reader() as tx:
        states = {sample.id: (sample.state, sample.reason) for sample in tx.query(Sample)}
    ledger.close()
    assert sorted(states.values(), key=str) == [
        ("dropped", "interrupted training 3 times"),
        *[("trained", None)] * 3,
    ]
