"""Grouping of rows into passes by what they cost, balanced and always the same."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clawrl_trl.credit import CreditedSample
from clawrl_trl.trainers.packing.trie import count_nodes, sort_samples

Rows = Sequence[CreditedSample]

LARGEST_PADDING = 0.1
"""Share of a pass of rows of like lengths."""


@dataclass(frozen=True)
class Layout:
    """How rows lie in a pass.

    Args:
        cost: Tokens that a pass over some rows holds; more with each row.
        order: Positions of rows, those side by side that cost little together.
    """

    cost: Callable[[Rows], int]
    order: Callable[[Rows], list[int]]


def count_padded(rows: Rows) -> int:
    """Tokens of rows that are padded to the longest prompt and the longest reply."""
    if not rows:
        return 0
    prompt = max(len(row.sample.prompt_ids) for row in rows)
    return len(rows) * (prompt + max(len(row.sample.completion_ids) for row in rows))


def count_alike(rows: Rows) -> int:
    """The same, and more than any pass may hold if more than a part of it is padding."""
    padded = count_padded(rows)
    return padded if padded - sum(row.tokens for row in rows) <= padded * LARGEST_PADDING else sys.maxsize


def order_by_length(rows: Rows) -> list[int]:
    """Positions of rows, the longest first."""
    return sorted(range(len(rows)), key=lambda index: (-rows[index].tokens, index))


def count_shared(rows: Rows) -> int:
    """Tokens of rows that share prefixes, each prefix once."""
    return count_nodes([row.sample for row in rows])


def order_by_prefix(rows: Rows) -> list[int]:
    """Positions of rows, those that share a prefix side by side."""
    return sort_samples([row.sample for row in rows])


PADDED = Layout(count_padded, order_by_length)
ALIKE = Layout(count_alike, order_by_length)
SHARED = Layout(count_shared, order_by_prefix)


def group_rows(rows: Rows, budget: int, layout: Layout = PADDED) -> list[list[CreditedSample]]:
    """Divide rows into as few passes as neighbours in the layout's order allow, of costs as equal as can be.

    Args:
        rows: The rows of a micro-batch.
        budget: Largest cost of a pass; a row that costs more has a pass of its own. 0: no limit.
        layout: How rows lie in a pass.

    Returns:
        The passes, in the layout's order; within a pass the rows are in the order in which they came.
    """
    if not budget or layout.cost(rows) <= budget:
        return [list(rows)]
    order = layout.order(rows)
    groups = _fill(rows, order, budget, layout)
    low, high = 0, budget
    while high - low > 1:
        middle = (low + high) // 2
        closer = _fill(rows, order, middle, layout)
        if len(closer) <= len(groups):
            groups, high = closer, middle
        else:
            low = middle
    return [[rows[index] for index in sorted(group)] for group in groups]


def _fill(rows: Rows, order: Sequence[int], budget: int, layout: Layout) -> list[list[int]]:
    groups: list[list[int]] = []
    for index in order:
        if groups and layout.cost([rows[member] for member in (*groups[-1], index)]) <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
