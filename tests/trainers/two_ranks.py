"""Run under torchrun by test_two_ranks.py: two processes train from one ledger."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig

from clawrl_trl.credit import LedgerSource
from clawrl_trl.ledger import Ledger
from clawrl_trl.ledger.schema import Sample
from clawrl_trl.trainers import AsyncGRPOConfig, AsyncGRPOTrainer


class Recording(AsyncGRPOTrainer):
    def _prepare_inputs(self, generation_batch: dict[str, Any]) -> dict[str, Any]:
        ids = [row.sample.sample_id for row in generation_batch["rows"]]
        self.__dict__.setdefault("recorded", []).append(ids)
        return super()._prepare_inputs(generation_batch)


def main(tiny: Path, run: Path) -> None:
    torch.set_num_threads(1)
    ledger = Ledger.open(run / "ledger.db")

    def empty() -> bool:
        with ledger.reader() as tx:
            return tx.query(Sample).where(Sample.state.in_(["ready", "leased"])).count() == 0

    args = AsyncGRPOConfig(
        output_dir=str(run),
        per_device_train_batch_size=2,
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
        source=LedgerSource(ledger, poll_s=0.01, timeout_s=0.0, stop=empty),
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
    )
    trainer.train()
    total = sum(float(p.detach().double().sum()) for p in trainer.model.parameters() if p.requires_grad)
    facts = {"rows": trainer.recorded, "version": trainer.policy_version, "weights": total}
    (run / f"rank{trainer.accelerator.process_index}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
