"""Run under torchrun by test_pass_ranks.py: processes train in passes, in each of the run folders named."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from made_up import VOCABULARY, open_source
from peft import LoraConfig

from clawrl_trl.ledger import Ledger
from clawrl_trl.trainers import AsyncGRPOConfig, AsyncGRPOTrainer
from clawrl_trl.trainers.inputs import Inputs
from clawrl_trl.trainers.micro_batch import MicroBatch
from clawrl_trl.trainers.parallel.process_group import leave_process_group

STEP = 6
"""Samples per optimizer step, over all processes."""
POISON = VOCABULARY - 1
"""Token of which a pass needs more memory than there is."""
BUDGETS = {"uneven": 24, "memory": 0}
"""Tokens of a pass, by the name of the run folder."""


class Recording(AsyncGRPOTrainer):
    """Trainer that notes how many rows each of its passes has, those included that are repeated."""

    def _prepare_inputs(self, generation_batch: MicroBatch) -> Inputs:
        self.__dict__.setdefault("recorded", []).append(len(generation_batch.rows))
        return super()._prepare_inputs(generation_batch)


def run_out_of_memory(
    trainer: Any, model: Any, inputs: Any, default_loss: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """A loss whose failed pass leaves gradients behind."""
    loss = default_loss(model, inputs)
    if (inputs["completion_ids"] == POISON).any():
        loss.backward()
        raise torch.OutOfMemoryError("CUDA out of memory.")
    return loss


def main(tiny: Path, run: Path, ranks: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ledger = Ledger.open(run / "ledger.db")

    args = AsyncGRPOConfig(
        output_dir=str(run),
        per_device_train_batch_size=STEP // ranks,
        max_pass_tokens=BUDGETS[run.name],
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
        custom_loss_function=run_out_of_memory if run.name == "memory" else None,
    )
    trainer.train()
    (run / f"rank{trainer.accelerator.process_index}.json").write_text(json.dumps(trainer.recorded))
    ledger.close()


if __name__ == "__main__":
    for folder in sys.argv[3:]:
        main(Path(sys.argv[1]), Path(folder), ranks=int(sys.argv[2]))
    leave_process_group()
