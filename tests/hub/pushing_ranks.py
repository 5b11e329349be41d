"""Run under torchrun by test_trainer_push.py: two processes train from the ledger of a run folder, then push."""

import json
import sys
from pathlib import Path

import torch
from hub_server import TOKEN
from peft import LoraConfig

from clawrl_trl.credit import LedgerSource
from clawrl_trl.ledger import Ledger
from clawrl_trl.trainers import AsyncGRPOConfig, AsyncGRPOTrainer
from clawrl_trl.trainers.parallel.process_group import leave_process_group


def main(tiny: Path, run: Path) -> None:
    torch.set_num_threads(1)
    ledger = Ledger.open(run / "ledger.db")
    args = AsyncGRPOConfig(
        output_dir=str(run),
        per_device_train_batch_size=2,
        max_steps=1,
        max_kl=100.0,
        save_strategy="steps",
        save_steps=1,
        push_to_hub=True,
        hub_model_id="tester/policy",
        hub_token=TOKEN,
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = AsyncGRPOTrainer(
        model=str(tiny),
        args=args,
        source=LedgerSource(ledger, timeout_s=0.0),
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
    )
    trainer.train()
    commit = trainer.push_to_hub("by hand")
    outcome = {"version": trainer.policy_version, "pushed": commit is not None}
    (run / f"rank{trainer.accelerator.process_index}.json").write_text(json.dumps(outcome))
    ledger.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    leave_process_group()
