"""Peak memory of a training step at Qwen3's shapes, by three ways.

    PYTHONPATH=tests/trainers python benchmarks/memory.py --minutes 180

A pass of one row with LoRA and recomputation, real vocabulary and random weights; log-probabilities and exact
divergence of a reply of 512 tokens:

- *computed* in float32 on this machine with 2 and with 4 layers, each in a process of its own: the bytes of its
  tensors, and how far the resident memory of the process rose; extrapolated to all layers, each of which adds as much;
- *counted* with tensors that have no content, at full depth, in float32 and bfloat16;
- *by the doctor's arithmetic* (`clawrl_trl/doctor/memory.py`), of which the last tables and docs/engines.md are made.

Points are done in the order of their cost until `--minutes` are over, are kept in `memory.json`, and are not done
again: a second call goes on where the first ended. All take some five hours of two cores and up to 22 GiB.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import torch
from fake_step import ARCHITECTURES, count_pass, fill, make_config, make_model, measure_pass, prepare
from footprint import measure_rise
from reporting import RESULTS, describe_setting, write_results

from clawrl_trl.doctor.memory import GIB, QWEN3, USABLE, Plan, estimate
from clawrl_trl.doctor.shape import BYTES

LENGTHS = (4096, 16384, 32768)
DEPTHS = (2, 4)
ALLOWED = 0.1
"""Most that two of the three may differ by."""
ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Settings with which freed memory goes back to the system, so that what is resident is what is held."""
Points = dict[str, dict[str, float]]


def compute_point(name: str, tokens: int, layers: int) -> dict[str, float]:
    """Compute a pass in this process: bytes of its tensors and of the rise of what is resident, and seconds."""
    torch.manual_seed(0)
    config = make_config(name, layers)
    model = make_model(config, torch.float32)
    fill(model, config)
    prepare(model)
    start, counted = time.monotonic(), []
    resident = measure_rise(lambda: counted.append(count_pass(model, tokens)))
    return {"tensors": counted[0], "resident": resident, "seconds": time.monotonic() - start}


def list_points() -> list[tuple[str, int, int]]:
    """Points to compute, the cheapest first."""
    points = [(name, tokens, layers) for name in ARCHITECTURES for tokens in LENGTHS for layers in DEPTHS]
    return sorted(points, key=lambda point: _count_operations(*point))


def _count_operations(name: str, tokens: int, layers: int) -> float:
    shape = QWEN3[name]
    attention = ARCHITECTURES[name]["num_attention_heads"] * 128 * tokens
    return float(layers * tokens * (shape.linear / shape.layers + attention))


def has_room(name: str, tokens: int, layers: int) -> bool:
    """Whether the memory that is free now holds the point."""
    shape = QWEN3[name]
    unread = 0 if make_config(name).tie_word_embeddings else shape.vocab * shape.hidden  # see `fill`
    weights = 4.0 * (shape.other - unread + shape.linear * layers / shape.layers)
    plan = Plan(trainer="float32", micro_tokens=tokens)
    left_out = 4.0 * (shape.layers - layers) * shape.hidden * tokens  # what recomputation would keep of further layers
    need = weights + estimate(shape, plan).trainer["activations"] - left_out
    return need < 0.95 * psutil.virtual_memory().available


def compute_points(points: Points, minutes: float) -> Iterator[Points]:
    """Compute what is missing while there is time, each point in a process of its own; yields after each."""
    end = time.monotonic() + 60 * minutes
    for name, tokens, layers in list_points():
        key = f"{name} {tokens} {layers}"
        if key in points or time.monotonic() > end or not has_room(name, tokens, layers):
            continue
        command = [sys.executable, __file__, "--point", name, str(tokens), str(layers)]
        try:
            done = subprocess.run(
                command,
                env={**os.environ, **ALLOCATOR},
                stdout=subprocess.PIPE,
                check=True,
                timeout=max(60.0, end - time.monotonic()),
            )
        except subprocess.TimeoutExpired:
            return
        points[key] = json.loads(done.stdout)
        yield points


def count_fakes(counts: dict[str, int]) -> None:
    """Count what is missing of the passes without content, at full depth."""
    for name in ARCHITECTURES:
        for tokens in LENGTHS:
            for dtype in (torch.float32, torch.bfloat16):
                key = f"{name} {tokens} {str(dtype).removeprefix('torch.')}"
                if key not in counts:
                    counts[key] = measure_pass(name, tokens, dtype=dtype)


def extrapolate(points: Points, name: str, tokens: int, figure: str) -> float | None:
    """Bytes of a pass at full depth from those at two depths; `None` where one is missing."""
    shallow, deep = (points.get(f"{name} {tokens} {layers}") for layers in DEPTHS)
    if shallow is None or deep is None:
        return None
    slope = (deep[figure] - shallow[figure]) / (DEPTHS[1] - DEPTHS[0])
    return shallow[figure] + slope * (QWEN3[name].layers - DEPTHS[0])


def estimate_pass(name: str, tokens: int, kind: str) -> float:
    """Bytes of a pass by the doctor's arithmetic: activations and the gradients of the adapter."""
    parts = estimate(QWEN3[name], Plan(trainer=kind, micro_tokens=tokens)).trainer
    return parts["activations"] + parts["gradients"]


def make_passes_table(points: Points, counts: dict[str, int]) -> str:
    """Make the table of the three ways, in GiB."""
    head = "| model | tokens | 2 layers | 4 layers | all, extrapolated | resident | counted | arithmetic | apart | "
    lines = [head + "bfloat16: counted | arithmetic | apart |", "|" + "---|" * 12]
    for name in ARCHITECTURES:
        for tokens in LENGTHS:
            depths = [points.get(f"{name} {tokens} {layers}", {}).get("tensors") for layers in DEPTHS]
            computed = extrapolate(points, name, tokens, "tensors")
            resident = extrapolate(points, name, tokens, "resident")
            wide, narrow = (float(counts[f"{name} {tokens} {kind}"]) for kind in ("float32", "bfloat16"))
            wide_need, narrow_need = (estimate_pass(name, tokens, kind) for kind in ("float32", "bfloat16"))
            figures = [*depths, computed, resident, wide, wide_need]
            apart = _compare([value for value in (computed, resident, wide, wide_need) if value is not None])
            cells = [*(_format(value) for value in figures), apart, _format(narrow), _format(narrow_need)]
            lines.append(f"| {name} | {tokens:,} | {' | '.join(cells)} | {_compare([narrow, narrow_need])} |")
    return "\n".join(lines)


def _format(value: float | None) -> str:
    return "not measured" if value is None else f"{value / GIB:.2f}"


def _compare(values: list[float]) -> str:
    apart = max(values) / min(values) - 1
    return f"{apart:.1%}{'' if apart <= ALLOWED else ' (too far)'}"


def make_steps_table(card: int) -> str:
    """Make the table of whole steps beside an engine on a card, in GiB, by the arithmetic.

    Args:
        card: GB of the card.
    """
    lines = ["| model | weights | tokens | trainer | engine without cache | left for the cache | of it in tokens |"]
    lines.append("|" + "---|" * 7)
    for name in ARCHITECTURES:
        for kind in ("bfloat16", "4bit"):
            for tokens in LENGTHS:
                need = estimate(QWEN3[name], Plan(engine=kind, trainer=kind, micro_tokens=tokens))
                trainer, engine = sum(need.trainer.values()), sum(need.engine.values())
                left = card * GIB * USABLE - need.total
                cache = f"{left / GIB:.1f} | {left / need.cached_token:,.0f}" if left > 0 else "does not fit | -"
                bits = f"{BYTES[kind] * 8:g} bits"
                lines.append(f"| {name} | {bits} | {tokens:,} | {trainer / GIB:.1f} | {engine / GIB:.1f} | {cache} |")
    return "\n".join(lines)


def make_page(setting: str, points: Points, counts: dict[str, int]) -> str:
    """Make the page of the results."""
    seconds = sum(point["seconds"] for point in points.values())
    return f"""# Memory of a training step

{setting}. GiB of one pass beside weights and optimizer: activations, gradients of the adapter, head. How it was
measured is told by [the benchmark](../memory.py). The passes that were computed took {seconds / 60:.0f} minutes.
"apart" is how far the largest of extrapolated, resident, counted and arithmetic lies above the smallest; {ALLOWED:.0%}
is allowed.

{make_passes_table(points, counts)}

## A step beside its engine on 24 GB

By the arithmetic, GiB; {USABLE:.0%} of the card can be used.

{make_steps_table(24)}

## On 80 GB

{make_steps_table(80)}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=180.0, help="begin no further pass after so many minutes")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--again", action="store_true", help="measure anew what an earlier call has measured")
    parser.add_argument("--point", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.point:
        name, tokens, layers = args.point
        print(json.dumps(compute_point(name, int(tokens), int(layers))))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends the pass under way, too
    file = args.out / "memory.json"
    earlier: dict[str, Any] = json.loads(file.read_text()) if file.exists() and not args.again else {}
    content = {"setting": describe_setting(), "points": earlier.get("points", {}), "counts": earlier.get("counts", {})}
    count_fakes(content["counts"])
    for _ in chain([None], compute_points(content["points"], args.minutes)):  # what is there is written at once
        write_results(args.out, "memory", content, make_page(content["setting"], content["points"], content["counts"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
