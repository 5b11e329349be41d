"""The run's own replies against the trainer's arithmetic: exact ones pass, those of a coarser engine are measured."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from doctor_rig import run_one_check
from made_up import fill, make_samples, save_tiny_model
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from clawrl_trl.credit import TrainingSample
from clawrl_trl.doctor.command import ENGINE_CHECKS
from clawrl_trl.doctor.finding import Finding
from clawrl_trl.doctor.mismatch import FACTOR, REPLIES, measure_bounded, read_replies
from clawrl_trl.doctor.reference import Reference
from clawrl_trl.ledger import Ledger
from clawrl_trl.run import RunFolder

CHECK = next(check for check in ENGINE_CHECKS if check.name == "log-probs of the run")


class Rig:
    """A run of a tiny model with one version, and replies that both sampled."""

    def __init__(self, folder: Path) -> None:
        self.run = RunFolder(folder / "run").make()
        self.model = save_tiny_model(folder / "model")
        self.base = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32).eval()
        torch.manual_seed(1)
        config = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
        self.policy = get_peft_model(self.load(), config).eval()
        self.policy.save_pretrained(self.run.policies / "policy-v1")

    def load(self) -> Any:
        return AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32)

    def store(self, *, noise: float = 0.0) -> None:
        samples = [
            self.score(sample, version, noise)
            for version in (0, 1)
            for sample in make_samples(5, seed=version, temperatures=(1.0, 0.5))
        ]
        ledger = Ledger.open(self.run.ledger)
        fill(ledger, samples)
        ledger.close()

    def score(self, sample: TrainingSample, version: int, noise: float) -> TrainingSample:
        network = self.policy if version else self.base
        prompt, completion = sample.prompt_ids.tolist(), sample.completion_ids.tolist()
        with torch.no_grad():
            logits = network(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        logprobs = (logits / sample.temperature).log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]
        logprobs[::2] -= noise
        fields = {**sample.__dict__, "policy_version": version, "logprobs": logprobs.double().numpy()}
        return TrainingSample(**fields)

    async def check(self) -> list[Finding]:
        return await run_one_check(
            CHECK, None, Reference(self.load(), "float32"), run=str(self.run.path), model_name_or_path=str(self.model)
        )


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


async def test_replies_of_every_version_are_computed_as_the_trainer_does(rig: Rig) -> None:
    assert await rig.check() == [], "a run without a ledger"
    rig.store()
    replies = read_replies(rig.run.ledger, rig.run.policies)
    assert {turn.policy_version for turn in replies} == {0, 1} and len(replies) == REPLIES
    (finding,) = await rig.check()
    assert (finding.status, finding.group) == ("ok", "Engine"), finding.detail
    assert "importance weights of 0.0% of them are bounded" in finding.detail


async def test_a_coarser_engine_is_measured(rig: Rig) -> None:
    rig.store(noise=1.0)
    (finding,) = await rig.check()
    assert finding.status == "fail" and "0.0%" not in finding.detail
    assert "are bounded" in finding.detail


async def test_versions_whose_files_are_gone_are_left_out(rig: Rig) -> None:
    rig.store()
    for file in (rig.run.policies / "policy-v1").iterdir():
        file.unlink()
    (rig.run.policies / "policy-v1").rmdir()
    assert {turn.policy_version for turn in read_replies(rig.run.ledger, rig.run.policies)} == {0}


def test_bounded_weights_are_counted_by_their_factor() -> None:
    edge = math.log(FACTOR)
    rows = [([-1.0, -1.0], [-1.0 - edge * 0.99, -1.0 + edge * 1.01]), ([-2.0, -2.0], [-2.0, -9.0])]
    assert measure_bounded(rows) == 0.5
