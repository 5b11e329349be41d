"""Attention in which each node of a trie sees itself and its ancestors, registered with transformers.

A run of nodes attends to the keys of its ancestors and to its own, a block of queries at a time, so that the largest
mask has a block's rows. A pass without a trie is transformers' own scaled-dot-product attention.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from clawrl_trl.trainers.packing.trie import Trie

NAME = "clawrl_trie_sdpa"
"""The implementation's name in transformers."""

BLOCK = 256
"""Queries whose mask exists at one time."""


@dataclass(frozen=True, eq=False)
class KeyRange:
    """A run's keys.

    Args:
        start: Its first node.
        stop: The node behind its last.
        ancestors: `[A]` the nodes before it, `None` if they and the run are one contiguous range.
        depth: Number of ancestors.
    """

    start: int
    stop: int
    ancestors: torch.Tensor | None
    depth: int

    def take(self, states: torch.Tensor) -> torch.Tensor:
        """[B, H, A + S, D] keys or values of the ancestors and of the run itself, out of those of all nodes."""
        if self.ancestors is None:
            return states[:, :, self.start - self.depth : self.stop]
        return torch.cat([states.index_select(2, self.ancestors), states[:, :, self.start : self.stop]], dim=2)


def plan_attention(trie: Trie, device: torch.device) -> list[KeyRange]:
    """List the runs of a trie with their keys, for the argument `trie` of a model's pass."""
    plan = []
    for run in trie.runs:
        depth = len(run.prefix)
        contiguous = depth == 0 or (run.prefix[-1] == run.start - 1 and run.prefix[0] == run.start - depth)
        ancestors = None if contiguous else torch.as_tensor(run.prefix, device=device)
        plan.append(KeyRange(run.start, run.stop, ancestors, depth))
    return plan


def attend_to_ancestors(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: list[KeyRange], scale: float | None
) -> torch.Tensor:
    """Compute attention over the ancestors of each node.

    Args:
        query: [1, H, N, D].
        key: [1, G, N, D], where G divides H.
        value: [1, G, N, D].
        plan: The runs, which cover the N nodes in order.
        scale: Factor on the products; `None` for `D ** -0.5`.

    Returns:
        [1, N, H, D].
    """
    pieces = []
    for run in plan:
        keys, values = run.take(key), run.take(value)
        if not run.depth:
            # Without a mask the kernel leaves out what lies behind each query.
            own = query[:, :, run.start : run.stop]
            output = scaled_dot_product_attention(own, keys, values, is_causal=True, scale=scale, enable_gqa=True)
            pieces.append(output.transpose(1, 2))
            continue
        for start in range(run.start, run.stop, BLOCK):
            stop = min(start + BLOCK, run.stop)
            seen = run.depth + stop - run.start
            block = query[:, :, start:stop]
            pieces.append(_attend(block, keys[:, :, :seen], values[:, :, :seen], scale))
    return torch.cat(pieces, dim=1)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
    """[1, S, H, D] attention of S queries to keys of which the last S are their own."""
    (_, heads, width, size), groups = query.shape, key.size(1)
    # The heads that share a key stand as further queries of it, so that no key is repeated.
    share = heads // groups
    folded = query.reshape(1, groups, share * width, size)
    mask = torch.ones(width, key.size(2), dtype=torch.bool, device=query.device)
    mask = mask.tril(key.size(2) - width).repeat(share, 1)
    output = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scale)
    return output.reshape(1, heads, width, -1).transpose(1, 2)


def forward_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    trie: list[KeyRange] | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' attention function: over ancestors if the pass has a trie, else as `sdpa`."""
    if trie is None:
        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return output
    return attend_to_ancestors(query, key, value, trie, scaling), None


def register_attention() -> None:
    """Make the implementation known to transformers."""
    AttentionInterface.register(NAME, forward_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
