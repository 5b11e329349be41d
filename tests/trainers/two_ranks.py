"""Run under torchrun by test_two_ranks.py: processes train from one ledger in each of the run folders named."""

import json
import sys
from pathlib import Path

import torch
from made_up import open_source
from peft import LoraConfig

from clawrl_trl.ledger import Ledger
from clawrl_trl.trainers import CombineConfig, CombineTrainer
from clawrl_trl.trainers.inputs import Inputs
from clawrl_trl.trainers.micro_batch import MicroBatch
from clawrl_trl.trainers.parallel.process_group import leave_process_group

STEP = 4
"""Samples per optimizer step, over all processes."""


class Recording(CombineTrainer):
    def _prepare_inputs(self, generation_batch: MicroBatch) -> Inputs:
        ids = [row.sample.sample_id for row in generation_batch.rows]
        self.__dict__.setdefault("recorded", []).append(ids)
        return super()._prepare_inputs(generation_batch)


def main(tiny: Path, run: Path, ranks: int, top_k: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ledger = Ledger.open(run / "ledger.db")

    args = CombineConfig(
        output_dir=str(run),
        per_device_train_batch_size=STEP // ranks,
        loss_type=run.name,
        opd_top_k=top_k,
        kl_estimator="exact" if top_k else "sampled",
        beta=0.5,
        learning_rate=0.05,
        optim="sgd",
        max_grad_norm=0.0,
        max_kl=100.0,
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Recording(
        model=str(tiny),
        args=args,
        source=open_source(ledger),
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
    )
    trainer.train()
    total = sum(float(p.detach().double().sum()) for p in trainer.model.parameters() if p.requires_grad)
    facts = {"rows": trainer.recorded, "version": trainer.policy_version, "weights": total}
    (run / f"rank{trainer.accelerator.process_index}.json").write_text(json.dumps(facts))
    ledger.close()


if __name__ == "__main__":
    for folder in sys.argv[4:]:
        main(Path(sys.argv[1]), Path(folder), ranks=int(sys.argv[2]), top_k=int(sys.argv[3]))
    leave_process_group()
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    assert not [name for name in names if "gloo" in name], names
