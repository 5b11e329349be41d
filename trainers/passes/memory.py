"""Lack of memory: how it is recognised, and how a device gets back what a failed pass held."""

import gc

import torch

CPU_MESSAGE = "DefaultCPUAllocator: can't allocate memory"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory was not enough, on a device or on the host."""
    return isinstance(error, torch.OutOfMemoryError) or (isinstance(error, RuntimeError) and CPU_MESSAGE in str(error))


def release_memory() -> None:
    """Collect what nobody refers to any more, and give the allocator's free blocks back."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
