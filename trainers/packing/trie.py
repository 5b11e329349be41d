"""A prefix trie of token sequences, in which every shared prefix is kept once.

Sequences are sorted, so that each shares its longest known prefix with its neighbour; what it adds is one contiguous
run of new nodes. Turns of one session that extend one another thus become one run, and forks one run each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clawrl_trl.credit.sample import IntArray, TrainingSample


@dataclass(frozen=True, eq=False)
class Run:
    """Nodes that one sequence adds to a trie, each the parent of the next.

    Args:
        prefix: `[A]` the first node's ancestors, root first; empty for a root.
        start: The first node.
        stop: The node behind the last one.
    """

    prefix: IntArray
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Trie:
    """Tokens of several sequences, each shared prefix once, parents before children.

    Args:
        tokens: `[N]` the nodes' token ids.
        positions: `[N]` the nodes' depths, which are their positions in every sequence that has them.
        runs: The nodes divided into runs, in order.
        paths: For each sequence its nodes, first token first.
    """

    tokens: IntArray
    positions: IntArray
    runs: tuple[Run, ...]
    paths: tuple[IntArray, ...]


def build_trie(sequences: Sequence[IntArray]) -> Trie:
    """Build the trie of sequences of token ids, of which none is empty."""
    paths: dict[int, IntArray] = {}
    runs: list[Run] = []
    tokens: list[IntArray] = []
    size = 0
    path = last = np.zeros(0, dtype=np.int64)
    for index in _sort(sequences):
        sequence = sequences[index]
        shared = _count_shared(last, sequence)
        stop = size + len(sequence) - shared
        prefix = path[:shared]
        if stop > size:
            runs.append(Run(prefix, size, stop))
            tokens.append(sequence[shared:])
        path, last = np.concatenate([prefix, np.arange(size, stop)]), sequence
        paths[index] = path
        size = stop
    positions = [np.arange(run.stop - run.start) + len(run.prefix) for run in runs]
    return Trie(
        np.concatenate(tokens), np.concatenate(positions), tuple(runs), tuple(paths[i] for i in range(len(sequences)))
    )


def count_nodes(samples: Sequence[TrainingSample]) -> int:
    """Number of distinct tokens in context among samples: the length of the pass that trains them together."""
    sequences = _read_tokens(samples)
    total, last = 0, np.zeros(0, dtype=np.int64)
    for index in _sort(sequences):
        total += len(sequences[index]) - _count_shared(last, sequences[index])
        last = sequences[index]
    return total


def sort_samples(samples: Sequence[TrainingSample]) -> list[int]:
    """Positions of samples, those that share a prefix side by side."""
    return _sort(_read_tokens(samples))


def _read_tokens(samples: Sequence[TrainingSample]) -> list[IntArray]:
    return [np.concatenate([sample.prompt_ids, sample.completion_ids]) for sample in samples]


def _sort(sequences: Sequence[IntArray]) -> list[int]:
    # Big-endian bytes of ids, which are not negative, compare as the ids do.
    return sorted(range(len(sequences)), key=lambda index: sequences[index].astype(">i8").tobytes())


def _count_shared(first: IntArray, second: IntArray) -> int:
    length = min(len(first), len(second))
    differing: NDArray[np.intp] = np.flatnonzero(first[:length] != second[:length])
    return int(differing[0]) if len(differing) else length
