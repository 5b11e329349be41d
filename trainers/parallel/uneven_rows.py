"""Collecting a value for each row where processes have different numbers of rows."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate import Accelerator


@contextmanager
def gather_uneven_rows(accelerator: Accelerator) -> Iterator[None]:
    """Let `accelerator.gather` inside the block take [B] tensors whose B differs between processes.

    TRL collects the clipped share of each row, and its loss has no other place to say how. Missing rows are NaN, which
    its minimum and maximum leave out.

    Args:
        accelerator: The trainer's.
    """
    if accelerator.num_processes == 1:
        yield
        return
    gather = accelerator.gather

    def gather_padded(values: torch.Tensor) -> torch.Tensor:
        rows = values.ndim == 1
        padded = accelerator.pad_across_processes(values, dim=0, pad_index=math.nan) if rows else values
        gathered: torch.Tensor = gather(padded)
        return gathered

    accelerator.gather = gather_padded
    try:
        yield
    finally:
        # The method of the class shows again.
        del accelerator.gather
