"""Types that this machine computes in, and the one that `--dtype auto` stands for."""


def resolve_dtype(name: str, *, four_bit: bool = False) -> str:
    """Return the computing type of the name that a user gives.

    `auto` is bfloat16 on a GPU that computes in it, and with 4-bit weights, which are computed with in nothing else.
    Elsewhere it is float32: processors compute in bfloat16 more slowly, and older GPUs not at all.

    Args:
        name (`str`): The value of `--dtype`.
        four_bit (`bool`, *optional*, defaults to `False`): The weights are kept in 4 bits.
    """
    if name != "auto":
        return name
    return "bfloat16" if four_bit or has_bfloat16_gpu() else "float32"


def has_bfloat16_gpu() -> bool:
    """Return whether this machine has a GPU that computes in bfloat16."""
    import torch  # not at the top: `clawrl serve` starts processes that need none

    return bool(torch.cuda.is_available() and torch.cuda.is_bf16_supported())


def has_bfloat16_products() -> bool:
    """Return whether the processor multiplies bfloat16 itself; one that emulates it takes 10 to 50 times as long."""
    import torch

    able = torch.cpu.get_capabilities()
    return any(able.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))
