"""Top-K distillation from the engine to the weights: real replies, a real teacher, the ledger in between."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from teaching import REQUESTS, check, judge, list_taught_samples, log_probs, sample
from transformers import AutoModelForCausalLM

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.credit import LedgerSource
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.judge.rules import RulesJudge
from clawrl_trl.ledger import Ledger
from clawrl_trl.ledger.schema import Sample, Turn, Verdict
from clawrl_trl.run import RunFolder
from clawrl_trl.tiny import MODEL_PATH
from clawrl_trl.trainers import OPDConfig, OPDTrainer

pytestmark = pytest.mark.slow

K = 4


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    folder = RunFolder(tmp_path / "run").make()
    ServeSettings(run=str(folder.path), model_name_or_path=str(MODEL_PATH)).save()
    command = [sys.executable, "-m", "clawrl_trl.engines.embedded", "--run", str(folder.path)]
    with (folder.logs / "engine.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while folder.read_announced("engine") is None:
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        raise RuntimeError((folder.logs / "engine.log").read_text())
    yield folder
    process.terminate()
    process.wait(30)


async def chat_and_judge(run: RunFolder, ledger: Ledger) -> None:
    async with EngineClient.of_run(run, ServeSettings.load(run.path), timeout=120) as engine:
        replies = [await sample(engine, request, seed=number) for number, request in enumerate(REQUESTS)]
        await judge(ledger, engine, replies, RulesJudge(), K)


def divergence(policy: Any, base: Any, rows: list[tuple[Sample, Turn, Verdict]]) -> float:
    """Mean KL(policy || teacher) over the replies' tokens and the whole vocabulary."""
    values = []
    for _, turn, verdict in rows:
        student, teacher = log_probs(policy, turn), log_probs(base, turn, verdict.hint)
        values.append((student.exp() * (student - teacher)).sum(-1))
    return float(torch.cat(values).mean())


@pytest.mark.timeout(600)
def test_it_brings_the_policy_to_its_teacher(run: RunFolder, ledger: Ledger, tmp_path: Path) -> None:
    asyncio.run(chat_and_judge(run, ledger))
    rows = list_taught_samples(ledger)
    assert len(rows) == len(REQUESTS)
    base = AutoModelForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32).eval()
    for row in rows:
        assert check(base, base, K, *row) > 0.8

    def is_all_trained() -> bool:
        with ledger.reader() as tx:
            return tx.query(Sample).where(Sample.state != "trained").count() == 0

    args = OPDConfig(
        output_dir=str(tmp_path / "out"), opd_top_k=K, opd_clip=float("inf"), learning_rate=2e-3, beta=0.0,
        num_iterations=12, max_kl=100.0, per_device_train_batch_size=len(REQUESTS), use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = OPDTrainer(
        model=str(MODEL_PATH),
        args=args,
        source=LedgerSource(ledger, poll_s=0.01, timeout_s=0.0, stop=is_all_trained),
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"),
    )
    before = divergence(trainer.model.eval(), base, rows)
    trainer.train()
    after = divergence(trainer.model.eval(), base, rows)
    assert trainer.policy_version == 1 and trainer.state.global_step == 12
    assert before > 0.05 and after < 0.5 * before
    logged = [row["opd/kl"] for row in trainer.state.log_history if "opd/kl" in row]
    assert 0 < logged[-1] < logged[0] <= before + 1e-3, "what is minimised is a lower bound of the divergence"
