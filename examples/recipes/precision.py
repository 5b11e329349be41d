"""Type of the matrix products of a recipe on this processor."""

import torch


def has_bfloat16_products() -> bool:
    """Whether the processor multiplies bfloat16 by itself; one that must emulate it takes 10 to 50 times as long."""
    able = torch.cpu.get_capabilities()
    return any(able.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))
