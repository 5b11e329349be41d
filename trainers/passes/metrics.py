"""Metrics of several passes as those of one: means by trained tokens, extremes as extremes, parts as sums."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from accelerate import Accelerator

PassMetrics = tuple[Mapping[str, Sequence[float]], float]
"""Values by their names, and the weight of the pass they come from."""

PARTS = frozenset({"policy_loss"})
"""Names under which each pass logs its part of a sum."""

COLLECTIVES = ("reduce", "gather", "gather_for_metrics")


@contextmanager
def keep_local(accelerator: Accelerator) -> Iterator[None]:
    """Let metrics within the block be of this process alone: a pass that fails here must leave nobody waiting."""

    def keep(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        return tensor

    for name in COLLECTIVES:
        setattr(accelerator, name, keep)
    try:
        yield
    finally:
        for name in COLLECTIVES:
            delattr(accelerator, name)


def combine_metrics(passes: Iterable[PassMetrics], processes: int) -> dict[str, float]:
    """One value for each name, out of those that are finite in passes that train something.

    Args:
        passes: Those of all processes.
        processes: Their number, over which sums are averaged.
    """
    values = defaultdict[str, list[tuple[float, float]]](list)
    for metrics, weight in passes:
        for name, numbers in metrics.items():
            counts = weight > 0 or name in PARTS
            values[name] += [(number, weight) for number in numbers if counts and not math.isnan(number)]
    return {name: _combine(name, pairs, processes) for name, pairs in values.items() if pairs}


def _combine(name: str, pairs: Sequence[tuple[float, float]], processes: int) -> float:
    numbers = [number for number, _ in pairs]
    if name in PARTS:
        return sum(numbers) / processes
    if name.endswith(("_min", "/min")):
        return min(numbers)
    if name.endswith(("_max", "/max")):
        return max(numbers)
    return sum(number * weight for number, weight in pairs) / sum(weight for _, weight in pairs)
