"""Adapters in one batch on a CPU, done right.

vLLM's CPU kernels look an adapter up by its slot and take slot -1, "no adapter", for the last slot. Once every slot
has been used, a base-model request that shares a batch with an adapter is answered under somebody's adapter: the judge
and the teacher would no longer be the base model. The same kernels stop the whole engine when prompt log-probs are
asked for several requests at once. These replacements compute the same products, adapter by adapter instead of token
by token, and leave rows without one alone. GPUs use other kernels, which are right.

Seen in vLLM 0.31. A limit remains, on GPUs too: an adapter on the output head is not counted in prompt log-probs.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from clawrl_trl.engines.vllm.compat import replace_kernels


def slot_groups(indices: Tensor, rows: int) -> Iterator[tuple[int, Tensor | slice]]:
    """Pair each adapter's slot with the rows that it applies to.

    Args:
        indices (`Tensor` of shape `[requests or tokens]`): Slot of each row, -1 for none.
        rows (`int`): How many rows there are. They differ from `indices` only at the output head, when it computes
            prompt log-probs of one request with the slots of all.
    """
    if len(indices) == 1:
        indices = indices.expand(rows)
    if len(indices) != rows:
        return
    for slot in sorted(set(indices.tolist())):
        if slot >= 0:
            rows_of_slot = indices == slot
            # A slice is a view where a mask copies: the common case is one adapter for all rows.
            yield slot, slice(None) if bool(rows_of_slot.all()) else rows_of_slot


def shrink(inputs: Tensor, weights: Tensor, output: Tensor, indices: Tensor, scaling: float = 1.0) -> None:
    """Compute `output = scaling * inputs @ A^T` with each row's own A; 0 for a row without one."""
    output.zero_()
    inputs = inputs.to(output.dtype)
    for slot, rows in slot_groups(indices, len(inputs)):
        matrix = _matrix(weights, slot, output.dtype)
        output[rows, : len(matrix)] = scaling * (inputs[rows] @ matrix.T)


def expand(inputs: Tensor, weights: Tensor, output: Tensor, indices: Tensor, add_inputs: bool = True) -> None:
    """Compute `output (+)= inputs @ B^T` with each row's own B."""
    expand_slice(inputs, weights, output, indices, 0, output.shape[1], add_inputs)


def expand_slice(
    inputs: Tensor,
    weights: Tensor,
    output: Tensor,
    indices: Tensor,
    slice_offset: int,
    slice_size: int,
    add_inputs: bool = True,
) -> None:
    """Do what `expand` does, for some of the columns."""
    columns = output[:, slice_offset : slice_offset + slice_size]
    if not add_inputs:
        columns.zero_()
    inputs = inputs.to(output.dtype)
    for slot, rows in slot_groups(indices, len(inputs)):
        matrix = _matrix(weights, slot, output.dtype)[: columns.shape[1]]
        columns[rows, : len(matrix)] += inputs[rows] @ matrix.T


def _matrix(weights: Tensor, slot: int, dtype: torch.dtype) -> Tensor:
    matrix = weights[slot]
    # vLLM's stacked weights have a dimension of size 1 between slot and matrix.
    return (matrix[0] if matrix.ndim == 3 else matrix).to(dtype)


def install() -> None:
    """Put these in the place of vLLM's own, in this process.

    Raises:
        VLLMVersionError: If vLLM has no such kernel any more.
    """
    replace_kernels({"bgmv_shrink": shrink, "bgmv_expand": expand, "bgmv_expand_slice": expand_slice})
