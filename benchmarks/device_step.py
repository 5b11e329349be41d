"""A training step on this machine's device: memory and speed at three lengths, and TRL's speed on the same samples.

    python benchmarks/device_step.py

On a GPU the model has Qwen3-4B's shape, random weights in bfloat16 and its real vocabulary; a GPU with less than 40
GiB takes half as many layers. Without a GPU it is the small model of `benchmarks/trainer.py`, in float32. All passes
have a LoRA adapter and compute a layer's inside again.

- memory: largest number of bytes beside weights in a pass of one sample with the exact divergence, held against the
  doctor's arithmetic (`clawrl_trl/doctor/memory.py`);
- speed: tokens of that sample a second, and the share of the card's peak that the products of the model would take at
  that speed (MFU, as in PaLM's appendix B, https://huggingface.co/papers/2204.02311; what is computed again does not
  count, and neither do gradients of weights that are frozen);
- beside TRL: the workloads "ragged" and "sessions" of `benchmarks/trainer.py`.

Prints one JSON object, figure by name, again after each figure. One that could not be measured is a text that says
why.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from footprint import measure_rise
from gpu_colocate import SHAPE, write_random_model
from reporting import Row
from trainer import COMMON, ByOurs, ByTRL, Method, Workload, save_model

from clawrl_trl.credit import TrainingSample
from clawrl_trl.doctor.memory import GIB, Plan, estimate
from clawrl_trl.doctor.shape import Shape

LENGTHS = {"cuda": (4096, 16_384, 32_768), "cpu": (512, 1024, 2048)}
REPLY = {"cuda": 512, "cpu": 64}
PEAKS = {
    "H100 PCIe": 756e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12,
    "A10G": 70e12, "RTX 4090": 165e12, "RTX 3090": 71e12,
}  # fmt: skip
"""Products and sums a second in dense bfloat16, by NVIDIA's data sheets; the first name that fits counts."""
SMALL_CARD = 40 * GIB
REPEATS = 3


class Device:
    """What passes run on.

    Args:
        name: `cuda` or `cpu`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        card = name == "cuda"
        self.arguments: Row = {
            **COMMON,
            "use_cpu": not card,
            "bf16": card,
            "gradient_checkpointing": True,
            "model_init_kwargs": {"dtype": "bfloat16" if card else "float32"},
        }

    def measure_peak(self, run: Callable[[], None]) -> float:
        """Bytes by which a call raises the memory in use, at its peak."""
        gc.collect()
        if self.name == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run()
            return float(torch.cuda.max_memory_allocated() - before)
        return float(measure_rise(run))

    def measure_seconds(self, run: Callable[[], None], repeats: int = REPEATS) -> float:
        """Median seconds of a call, after one that does not count."""
        seconds = []
        for _ in range(repeats + 1):
            began = time.monotonic()
            run()
            if self.name == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.monotonic() - began)
        return statistics.median(seconds[1:])

    @property
    def peak(self) -> float | None:
        """Products and sums a second that the card can make; `None` where that is not known."""
        if self.name == "cpu":
            return None
        return next((peak for name, peak in PEAKS.items() if name in torch.cuda.get_device_name()), None)


def count_operations(shape: Shape, attention: int, tokens: int, reply: int) -> float:
    """Count the products and sums of a pass that no way around is known for.

    A product with a frozen matrix counts twice for the forward and twice for the gradient of what went in; the head's
    only for the reply; attention is causal.

    Args:
        shape: The model.
        attention: Width of all query heads of a layer.
        tokens: Tokens of the pass, one sample.
        reply: Those of the reply.
    """
    linear = 4.0 * (shape.linear * tokens + shape.vocab * shape.hidden * reply)
    # Scores and their sum, each forward once and backward twice, for half of all pairs.
    return linear + 6.0 * shape.layers * attention * tokens * tokens


def measure_lengths(model: Path, device: Device) -> Iterator[tuple[str, Any]]:
    """Measure memory and speed of passes of one sample, the shortest first."""
    config = json.loads((model / "config.json").read_text())
    shape, attention = Shape.of(model), config["num_attention_heads"] * config["head_dim"]
    kind = "bfloat16" if device.name == "cuda" else "float32"
    for tokens in LENGTHS[device.name]:
        reply = REPLY[device.name]
        name = f"{tokens:,} tokens"
        need = estimate(shape, Plan(trainer=kind, micro_tokens=tokens)).trainer
        yield f"memory of a pass, {name}: doctor's GiB", (need["activations"] + need["gradients"]) / GIB
        try:
            peak, seconds = _measure_length(model, device, tokens, reply)
        except torch.cuda.OutOfMemoryError:
            yield f"memory of a pass, {name}: GiB", "failed: out of memory"
            continue
        yield f"memory of a pass, {name}: GiB", peak / GIB
        yield f"trainer's tokens/s, {name}", tokens / seconds
        operations = count_operations(shape, attention, tokens, reply)
        yield f"trainer's MFU, {name}", operations / seconds / device.peak if device.peak else "not measured"


def _measure_length(model: Path, device: Device, tokens: int, reply: int) -> tuple[float, float]:
    ids = torch.randint(2, 2000, (tokens,), generator=torch.Generator().manual_seed(0)).tolist()
    sample = TrainingSample(
        prompt_ids=ids[:-reply], completion_ids=ids[-reply:], logprobs=[-1.0] * reply, score=1.0, sample_id="row"
    )
    more = {**device.arguments, "beta": 0.01, "kl_estimator": "exact", "max_pass_tokens": tokens}
    method = ByOurs(model, [sample], **more)

    def run() -> None:
        method.model.zero_grad()
        method.run()

    run()  # kernels are chosen, and workspaces made, in the first
    method.model.zero_grad()
    return device.measure_peak(method.run), device.measure_seconds(run)


def compare(model: Path, device: Device, scale: float) -> Iterator[tuple[str, Any]]:
    """Measure the trainer's and TRL's tokens a second on the same samples."""
    for workload in ("ragged", "sessions"):
        samples = Workload(scale).make(workload, 2)
        tokens = sum(len(sample.prompt_ids) + len(sample.completion_ids) for sample in samples)
        methods: dict[str, Callable[[], Method]] = {
            "trainer": lambda samples=samples: ByOurs(model, samples, **device.arguments),  # type: ignore[misc]
            "TRL, 8 a pass": lambda samples=samples: ByTRL(model, samples, 8, device.arguments),  # type: ignore[misc]
            "TRL, 1 a pass": lambda samples=samples: ByTRL(model, samples, 1, device.arguments),  # type: ignore[misc]
        }
        for name, make in methods.items():
            figure = f"{workload}: {name}, tokens/s"
            try:
                method = make()
                yield figure, tokens / device.measure_seconds(method.run, 2)
            except torch.cuda.OutOfMemoryError:
                yield figure, "failed: out of memory"
            # Each has a model of its own, and a card has room for one.
            method = None  # type: ignore[assignment]
            gc.collect()
            if device.name == "cuda":
                torch.cuda.empty_cache()


def write_model(folder: Path, device: Device) -> None:
    """Write the model of the device."""
    if device.name == "cpu":
        save_model(folder)
        return
    small = torch.cuda.get_device_properties(0).total_memory < SMALL_CARD
    write_random_model(folder, layers=SHAPE["num_hidden_layers"] // (2 if small else 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of a model that an earlier call wrote; written if empty")
    parser.add_argument("--only", choices=("lengths", "compare"), help="one of the two parts")
    parser.add_argument("--scale", type=float, help="factor on the lengths of the workloads beside TRL")
    options = parser.parse_args()
    device = Device("cuda" if torch.cuda.is_available() else "cpu")
    figures: Row = {}
    with tempfile.TemporaryDirectory() as place:
        model = options.model or Path(place)
        if not (model / "config.json").exists():
            write_model(model, device)
        scale = options.scale or (1.0 if device.name == "cuda" else 0.3)
        lengths = measure_lengths(model, device) if options.only != "compare" else ()
        for name, value in chain(lengths, compare(model, device, scale) if options.only != "lengths" else ()):
            figures[name] = value
            print(json.dumps(figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
