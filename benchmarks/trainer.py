"""The pass of a loss: how much processor time and memory does it take beside TRL's?

    OMP_NUM_THREADS=1 python benchmarks/trainer.py --out benchmarks/results

Forward and backward of the same samples with the same loss (`grpo`, no KL divergence), LoRA, float32, one thread: by
TRL's GRPOTrainer in micro-batches of 8 and of 1 sample, which is its best, and by AsyncGRPOTrainer in passes of at
most 4,096 tokens. They take turns, and the least CPU time of each counts; the largest resident memory above that
before the pass is taken in a process of its own. The model has Qwen3's layers and random weights, in a shape in which
attention and the linear layers count as in real ones (the head has a sixth of the products of a token, as
Qwen3-1.7B's). Samples come shuffled:

- ragged: single turns without anything in common, of 40 to 1,500 tokens;
- sessions: ten turns each, every prompt the conversation so far;
- forks: sessions of four turns from which four go on for three turns each.

Writes `trainer.json` and `.md`.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from datasets import Dataset
from footprint import measure_rise
from peft import LoraConfig
from reporting import RESULTS, Row, describe_setting, make_table, write_results
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import pad

from clawrl_trl.credit import TrainingSample
from clawrl_trl.trainers import AsyncGRPOConfig, AsyncGRPOTrainer
from clawrl_trl.trainers.packing.trie import count_nodes

COLUMNS = (
    "workload", "samples", "tokens", "distinct", "trl_8_s", "trl_1_s", "ours_s", "times_trl_8", "times_trl_1",
    "memory_trl_8_mib", "memory_ours_mib", "memory_share", "gradient_gap",
)  # fmt: skip
GOALS = {"ragged": (3.0, 1.2), "sessions": (15.0, 6.0), "forks": (8.0, 4.0)}
"""Times TRL's speed with micro-batches of 8, and with its best."""
LARGEST_MEMORY_SHARE, LARGEST_GAP = 0.4, 5e-5
VOCABULARY = 2048
SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "tie_word_embeddings": True,
    "max_position_embeddings": 8192, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None,
    "initializer_range": 0.05,
}  # fmt: skip
METHODS = ("trl 8", "trl 1", "ours")


def save_model(folder: Path) -> None:
    """Save a seeded model of `SHAPE` and a tokenizer."""
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SHAPE)).save_pretrained(folder)
    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, VOCABULARY)}}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<eos>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)


class Workload:
    """Seeded samples.

    Args:
        scale: Factor on all lengths.
    """

    def __init__(self, scale: float) -> None:
        self._random = random.Random(0)
        self._scale = scale

    def make(self, name: str, sessions: int) -> list[TrainingSample]:
        """Make a workload's samples, shuffled; `sessions` of them where turns belong together, else eight times it."""
        samples = [sample for _ in range(sessions) for sample in getattr(self, f"_make_{name}")()]
        self._random.shuffle(samples)
        return samples

    def _make_ragged(self) -> list[TrainingSample]:
        return [self._reply(self._tokens(int(20 * 70 ** self._random.random())))[0] for _ in range(8)]

    def _make_sessions(self) -> list[TrainingSample]:
        return self._talk(self._tokens(600), 10)[0]

    def _make_forks(self) -> list[TrainingSample]:
        stem, context = self._talk(self._tokens(600), 4)
        return stem + [sample for _ in range(4) for sample in self._talk(context, 3)[0]]

    def _talk(self, context: list[int], turns: int) -> tuple[list[TrainingSample], list[int]]:
        samples = []
        for _ in range(turns):
            sample, context = self._reply([*context, *self._tokens(self._random.randint(40, 160))])
            samples.append(sample)
        return samples, context

    def _reply(self, prompt: list[int]) -> tuple[TrainingSample, list[int]]:
        reply = self._tokens(self._random.randint(20, 120))
        sample = TrainingSample(
            prompt_ids=prompt,
            completion_ids=reply,
            logprobs=[-1.0] * len(reply),
            score=self._random.choice([-1.0, 1.0]),
        )
        return sample, [*prompt, *reply]

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(2, VOCABULARY) for _ in range(max(1, round(count * self._scale)))]


class Method(Protocol):
    """A trainer whose passes are measured."""

    model: torch.nn.Module

    def run(self) -> None:
        """Forward and backward of all samples."""


class ByTRL:
    """TRL's loss, a micro-batch after the other.

    Args:
        model: Folder of the model.
        samples: The samples.
        size: Samples of a micro-batch.
        common: Arguments that both trainers take.
    """

    def __init__(
        self, model: Path, samples: list[TrainingSample], size: int, common: Mapping[str, Any] | None = None
    ) -> None:
        arguments = GRPOConfig(
            str(model / "trl"), per_device_train_batch_size=size, num_generations=size if size > 1 else 2,
            generation_batch_size=2 * size, beta=0.0, loss_type="grpo", **(common or COMMON),
        )  # fmt: skip
        self._trainer = GRPOTrainer(
            str(model), lambda completions, **kwargs: [0.0] * len(completions), arguments,
            train_dataset=Dataset.from_dict({"prompt": [""]}), peft_config=make_adapter(),
        )  # fmt: skip
        self.model: torch.nn.Module = self._trainer.model
        self._parts = [samples[start : start + size] for start in range(0, len(samples), size)]
        self._trainer.current_gradient_accumulation_steps = len(self._parts)
        start_checkpointing(self._trainer)

    def run(self) -> None:
        """Forward and backward of all samples."""
        self.model.train()
        for part in self._parts:
            prompts = [torch.as_tensor(sample.prompt_ids) for sample in part]
            replies = [torch.as_tensor(sample.completion_ids) for sample in part]
            inputs = {
                "prompt_ids": pad(prompts, 0, "left"),
                "prompt_mask": pad([torch.ones_like(ids) for ids in prompts], 0, "left"),
                "completion_ids": pad(replies, 0, "right"),
                "completion_mask": pad([torch.ones_like(ids) for ids in replies], 0, "right"),
                "advantages": torch.tensor([sample.score for sample in part]),
                "num_items_in_batch": torch.tensor(sum(map(len, replies))),
            }
            inputs = {name: tensor.to(self._trainer.accelerator.device) for name, tensor in inputs.items()}
            self._trainer.compute_loss(self.model, inputs).backward()


class ByOurs:
    """AsyncGRPOTrainer's passes.

    Args:
        model: Folder of the model.
        samples: The samples.
        **more: Arguments of the trainer in place of or beside the usual ones.
    """

    def __init__(self, model: Path, samples: list[TrainingSample], **more: Any) -> None:
        usual = {"beta": 0.0, "importance_sampling": "none", "max_pass_tokens": 4096, **COMMON}
        arguments = AsyncGRPOConfig(str(model / "ours"), per_device_train_batch_size=len(samples), **{**usual, **more})
        self._trainer = AsyncGRPOTrainer(str(model), arguments, samples, peft_config=make_adapter())
        self.model: torch.nn.Module = self._trainer.model
        (self._micro,) = self._trainer.get_train_dataloader()
        self._trainer.current_gradient_accumulation_steps = 1
        self._trainer.create_optimizer()
        start_checkpointing(self._trainer)

    def run(self) -> None:
        """Forward and backward of all samples.

        Raises:
            torch.OutOfMemoryError: If a sample was dropped for want of memory, as training does.
        """
        self._micro.passes.clear()
        self._trainer.training_step(self.model, self._micro)
        if sum(len(part.rows) for part in self._micro.passes) < len(self._micro.rows):
            raise torch.OutOfMemoryError("some samples were dropped")


COMMON = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none", "disable_tqdm": True}


def start_checkpointing(trainer: GRPOTrainer) -> None:
    """Let layers compute their inside again if the arguments say so, which trainers else do as training begins."""
    if trainer.args.gradient_checkpointing:
        trainer.model.gradient_checkpointing_enable(trainer.args.gradient_checkpointing_kwargs)


def make_adapter() -> LoraConfig:
    """An adapter that is not at its start, so that all of its gradients count."""
    torch.manual_seed(1)
    return LoraConfig(r=16, target_modules="all-linear", init_lora_weights=False)


def make_method(name: str, model: Path, samples: list[TrainingSample]) -> Method:
    """Make a trainer by the name of its method."""
    return ByOurs(model, samples) if name == "ours" else ByTRL(model, samples, int(name.split()[1]))


def compare_gradients(methods: dict[str, Method]) -> float:
    """Relative distance of our gradients from TRL's with one sample a micro-batch, which has no padding."""
    vectors = []
    for name in ("trl 1", "ours"):
        gradients = [value.grad for value in methods[name].model.parameters() if value.grad is not None]
        vectors.append(torch.cat([gradient.ravel().double() for gradient in gradients]))
    expected, actual = vectors
    return float((actual - expected).norm() / expected.norm())


def measure_times(methods: dict[str, Method], repeats: int) -> dict[str, float]:
    """Least CPU seconds of each method's passes; each leaves the gradients of its last."""
    times = {name: float("inf") for name in methods}
    for _ in range(repeats):
        for name, method in methods.items():
            method.model.zero_grad()
            began = time.process_time()
            method.run()
            times[name] = min(times[name], time.process_time() - began)
    return times


def measure_memory(name: str, model: Path, samples: list[TrainingSample]) -> float:
    """MiB by which the passes of a method grow this process."""
    method = make_method(name, model, samples)
    return measure_rise(method.run) / 2**20


def measure_memory_apart(options: argparse.Namespace, workload: str, name: str, model: Path) -> float:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--only", workload, name, str(model)]
    command += ["--sessions", str(options.sessions), "--scale", str(options.scale)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return float(json.loads(lines[-1]))


def measure(options: argparse.Namespace, workload: str, model: Path) -> Row:
    """Measure all methods on a workload."""
    samples = Workload(options.scale).make(workload, options.sessions)
    methods = {name: make_method(name, model, samples) for name in METHODS}
    times = measure_times(methods, options.repeats)
    gap = compare_gradients(methods)
    print(workload, times, gap, file=sys.stderr)
    del methods
    padded, ours = (measure_memory_apart(options, workload, name, model) for name in ("trl 8", "ours"))
    return {
        "workload": workload,
        "samples": len(samples),
        "tokens": sum(len(sample.prompt_ids) + len(sample.completion_ids) for sample in samples),
        "distinct": count_nodes(samples),
        **{f"{name.replace(' ', '_')}_s": value for name, value in times.items()},
        "times_trl_8": times["trl 8"] / times["ours"],
        "times_trl_1": times["trl 1"] / times["ours"],
        "memory_trl_8_mib": padded,
        "memory_ours_mib": ours,
        "memory_share": ours / padded,
        "gradient_gap": f"{gap:.0e}",
    }


def judge(row: Row) -> str:
    """Rate a row."""
    padded, best = GOALS[row["workload"]]
    checks = {
        "batch 8": row["times_trl_8"] >= padded,
        "batch 1": row["times_trl_1"] >= best,
        "memory": row["memory_share"] <= LARGEST_MEMORY_SHARE,
        "gradients": float(row["gradient_gap"]) <= LARGEST_GAP,
    }
    return ", ".join(name for name, met in checks.items() if not met) or "ok"


def write(out: Path, rows: list[Row]) -> None:
    """Write the rows, and a page about them, to a folder."""
    what = (__doc__ or "").split("\n\n", 2)[2].rpartition("\n\n")[0]
    goals = "; ".join(f"{name} {padded:g} and {best:g} times" for name, (padded, best) in GOALS.items())
    page = (
        f"# A pass of the loss beside TRL's\n\n{describe_setting()}.\n\n{what}\n\nGoals: {goals} TRL's speed with 8 "
        f"and with 1 sample a micro-batch, {LARGEST_MEMORY_SHARE} of its memory with 8, gradients within "
        f"{LARGEST_GAP:g}; a verdict names what is not met.\n\n{make_table(COLUMNS, rows, judge)}\n"
    )
    write_results(out, "trainer", rows, page)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--workloads", nargs="*", choices=GOALS, default=list(GOALS))
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all lengths")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs=3, metavar=("WORKLOAD", "METHOD", "MODEL"), help="print a peak of memory")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only:
        workload, name, model = options.only
        samples = Workload(options.scale).make(workload, options.sessions)
        print(json.dumps(measure_memory(name, Path(model), samples)))
        return
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        write(options.out, [measure(options, workload, Path(folder)) for workload in options.workloads])


if __name__ == "__main__":
    main()
