"""Lack of memory: how it is recognised, and how a device gets back what a failed pass held."""

import gc

import torch

MESSAGES = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",  # cuBLAS, of its workspace
    "CUDA error: out of memory",  # the driver, outside of torch's allocator
)
"""Texts of a lack of memory in errors that have no class of their own."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory was not enough, on a device or on the host."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in MESSAGES)


def release_memory() -> None:
    """Collect what nobody refers to any more, and give the allocator's free blocks back."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
