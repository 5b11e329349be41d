"""Run under torchrun by test_ranks.py: trains run folders with one backend, one after the other, each in its way."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from made_up import make_samples, open_source
from peft import LoraConfig
from safetensors.torch import save_file
from torch import distributed
from torch.distributed.fsdp import FSDPModule

from clawrl_trl.credit import CreditedSample
from clawrl_trl.errors import UserError, run_main
from clawrl_trl.ledger import Ledger
from clawrl_trl.policies import rollback
from clawrl_trl.trainers import CombineConfig, CombineTrainer
from clawrl_trl.trainers.parallel.process_group import leave_process_group, wait_for_all
from clawrl_trl.trainers.parallel.weights import gather_weights

STEP = 4
"""Samples per optimizer step, over all processes."""
WAYS = ("train", "bf16", "reject", "back0", "back1", "during", "resume", "whole")
MIXED = "mixed"
"""Way in bfloat16 beside float32 weights, as on a GPU; of the backends that divide no weights by DeepSpeed."""
ROLLBACKS = {"back0": (2, 0), "back1": (2, 1), "during": (2, 1), "whole": (2, 1)}
"""Rollbacks of a way: the version after which, and to which; with "during", while the next is trained."""
RESUMED = ("resume", "whole")
"""Ways that stop after some steps and begin again with a new trainer."""


class Rolling(CombineTrainer):
    """Trainer beside whom the operator rolls back."""

    back: tuple[int, int] | None = None
    early = False

    def _end_step(self) -> None:
        if self.early:
            self._roll_back()
        super()._end_step()
        if not self.early:
            self._roll_back()

    def _roll_back(self) -> None:
        if self.back is not None and self.policy_version == self.back[0]:
            if self.accelerator.is_main_process:
                rollback(self.source.ledger, to=self.back[1])
            self.back = None
            wait_for_all()


class Dying(CombineTrainer):
    """Trainer of which the second process dies after the first step."""

    def _end_step(self) -> None:
        super()._end_step()
        if not self.accelerator.is_main_process:
            os._exit(7)


def prepare(backend: str) -> None:
    """Let accelerate take gloo's processes for those of GPUs, which alone it divides weights among."""
    if backend == "ddp":
        return
    # transformers begins each configuration by forgetting what was prepared here.
    AcceleratorState._reset_state = staticmethod(lambda **_: None)
    PartialState(cpu=True)
    if backend.startswith("zero"):
        import deepspeed

        # Else its own collectives for the CPU would be compiled first, for minutes.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed("gloo", verbose=False)
    else:
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def choose(backend: str) -> dict[str, Any]:
    """Arguments that choose a backend."""
    if not backend.startswith("zero"):
        return {"use_cpu": backend == "ddp"}
    zero = {"stage": int(backend[-1])}
    if backend == "zero3":
        zero["stage3_param_persistence_threshold"] = 0
    return {
        "deepspeed": {
            "zero_optimization": zero,
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "train_batch_size": "auto",
            "gradient_clipping": "auto",
            "zero_force_ds_cpu_optimizer": False,
        }
    }


def train(backend: str, ranks: int, tiny: Path, run: Path, way: str, max_steps: int, kind: type = Rolling) -> None:
    torch.manual_seed(0)
    if way == MIXED:
        # As --bf16 does, which transformers refuses without a GPU.
        os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16"
    ledger = Ledger.open(run / "ledger.db")

    args = CombineConfig(
        output_dir=str(run),
        per_device_train_batch_size=STEP // ranks,
        model_init_kwargs={"dtype": "bfloat16"} if way == "bf16" else None,
        beta=0.0 if way == "whole" else 0.5,
        learning_rate=0.01,
        adam_epsilon=1e-3,
        max_steps=max_steps,
        max_kl=1e-9 if way == "reject" else 100.0,
        keep_training_states=10,
        disable_tqdm=True,
        bf16=False,
        **choose(backend),
    )
    trainer = kind(
        model=str(tiny),
        args=args,
        source=open_source(ledger),
        peft_config=None if way == "whole" else LoraConfig(r=4, target_modules="all-linear"),
    )
    trainer.back, trainer.early = ROLLBACKS.get(way), way == "during"
    trainer.train()
    main = trainer.accelerator.is_main_process
    weights = gather_weights(trainer.accelerator.unwrap_model(trainer.model), keep=main)
    if main:
        parameters = {name: weight.float().clone() for name, weight in weights.items()}
        save_file(parameters, run / "memory.safetensors", {"version": str(trainer.policy_version)})
    logps = score(trainer)
    if main:
        divided = [type(module).__name__ for module in trainer.model.modules() if isinstance(module, FSDPModule)]
        layers = sum(name.endswith("DecoderLayer") for name in divided)
        save_file({"logps": logps, "layers": torch.tensor(layers)}, run / "scores.safetensors")
    ledger.close()


@torch.no_grad()
def score(trainer: CombineTrainer) -> torch.Tensor:
    """Log-probabilities of the same few replies on every process."""
    rows = [CreditedSample(sample, np.ones(len(sample.completion_ids))) for sample in make_samples(4, 99)]
    return trainer.logps(trainer.model, trainer.input_builder.collate(rows))


def join(number: int) -> None:
    """Make the process group of a training; in the launcher's store each has names of its own."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    hosts = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, is_master=hosts)
    names = distributed.PrefixStore(f"training {number}", store)
    distributed.init_process_group("gloo", store=names, rank=rank, world_size=size)


def run_apart(number: int, function: Callable[[], None]) -> int:
    """Call a function in a process of its own, which has imported everything already; returns its exit code."""
    pid = os.fork()
    if pid:
        return abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def call() -> int:
        join(number)
        try:
            function()
        except UserError as error:
            if error.__cause__ is not None:
                print(f"cause: {error.__cause__}", file=sys.stderr)
            raise
        leave_process_group()
        return 0

    code = 1
    try:
        code = run_main(call)
    finally:
        # No way back into what the parent does next.
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)


def list_trainings(way: str) -> list[tuple[str, str, int, type]]:
    """Run folder, way, last step and trainer of the trainings that a way consists of."""
    if way in ("begin", "continue"):
        return [("continue", "resume", 2 if way == "begin" else -1, Rolling)]
    last = (way, way, -1, Dying if way == "dying" else Rolling)
    return [(way, way, 3, Rolling), last] if way in RESUMED else [last]


def main(backend: str, tiny: str, root: str, *ways: str) -> int:
    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    trainings = [training for way in ways for training in list_trainings(way)]
    for number, (run, way, max_steps, kind) in enumerate(trainings):

        def act(run: str = run, way: str = way, max_steps: int = max_steps, kind: type = kind) -> None:
            prepare(backend)
            train(backend, ranks, Path(tiny), Path(root) / run, way, max_steps, kind)

        if code := run_apart(number, act):
            print(f"{way} ended with {code}", file=sys.stderr)
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
