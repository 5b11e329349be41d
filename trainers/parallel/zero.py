"""DeepSpeed's ZeRO: parameters that lie on several processes, and the copies of weights that its optimizer keeps.

ZeRO steps from float32 copies of its own ("masters") and writes the model's weights anew from them. Weights that were
restored in the model alone are therefore overwritten by the next step, as if nothing had been restored.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


def is_partitioned(tensor: torch.Tensor) -> bool:
    """Return whether ZeRO-3 has divided a parameter among the processes."""
    return hasattr(tensor, "ds_id")


def gather_partitioned(tensor: torch.Tensor, *, changed: bool = False) -> AbstractContextManager[Any]:
    """Make a parameter whole inside a block; a no-op for one that ZeRO-3 has not divided.

    Args:
        tensor: The parameter.
        changed: Whether the main process changes it, and all are to have its values afterwards.
    """
    if not is_partitioned(tensor):
        return nullcontext()
    import deepspeed

    context: AbstractContextManager[Any] = deepspeed.zero.GatheredParameters(
        [tensor], modifier_rank=0 if changed else None
    )
    return context


def hold_weights(optimizer: Any) -> None:
    """Take over the model's weights into ZeRO's optimizer, and forget what it knew of the ones before.

    Args:
        optimizer: DeepSpeed's optimizer around the one that steps.
    """
    if hasattr(optimizer, "refresh_fp32_params"):
        optimizer.refresh_fp32_params()
    # Momenta of a thrown-away line would carry the next step along it.
    getattr(optimizer, "optimizer", optimizer).state = defaultdict(dict)


@contextmanager
def load_undivided(config: object | None) -> Iterator[None]:
    """Let `from_pretrained` inside the block load a model that is not divided, on one process alone.

    Args:
        config: The `HfDeepSpeedConfig` of the training; `None` without DeepSpeed.
    """
    if config is None:
        yield
        return
    from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        set_hf_deepspeed_config(config)
