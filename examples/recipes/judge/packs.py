"""Batches for a language model: messages after the same reply are neighbours, and the reply is read once for all."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from recipes.judge.example import Example

MOST_MESSAGES, BATCH, BLOCK = 24, 64, 24
"""Messages after one reply in a batch, messages of a batch, and replies among which those of similar length are
drawn together."""
MOST_CHARACTERS = 8000
"""Of a batch whose chats are filled up to the longest: more take more than 16 GiB."""
CHARACTERS = (160, 320, 450)
"""Of request, reply and message that are read at most, roughly."""
MARKERS = 36
"""Characters that the chat's markers around a message are worth."""


def draw_packed_batches(epoch: Sequence[Example], random: np.random.Generator) -> Iterator[list[Example]]:
    """One epoch of batches of some `BATCH` examples, in which those with the same request and reply are neighbours."""
    packs = _make_packs(epoch)
    order = [packs[int(i)] for i in random.permutation(len(packs))]
    for start in range(0, len(order), BLOCK):
        batches = _fill_batches(sorted(order[start : start + BLOCK], key=_count_characters))
        yield from (batches[int(i)] for i in random.permutation(len(batches)))


def _fill_batches(order: Sequence[list[Example]]) -> list[list[Example]]:
    """Batches of packs that are in the order of their lengths."""
    batches: list[list[Example]] = []
    chats = 0
    for pack in order:
        chats += 1
        is_full = not batches or len(batches[-1]) + len(pack) > BATCH
        if is_full or chats * _count_characters(pack) > MOST_CHARACTERS:
            batches.append([])
            chats = 1
        batches[-1] += pack
    return batches


def _make_packs(epoch: Sequence[Example]) -> list[list[Example]]:
    by_context: dict[tuple[str, str], list[Example]] = defaultdict(list)
    for example in epoch:
        by_context[example.request, example.response].append(example)
    packs = []
    for examples in by_context.values():
        parts = -(-len(examples) // MOST_MESSAGES)
        packs += [examples[part::parts] for part in range(parts)]
    return packs


def _count_characters(pack: Sequence[Example]) -> int:
    asked, replied, said = CHARACTERS
    context = min(len(pack[0].request), asked) + min(len(pack[0].response), replied)
    return context + sum(min(len(example.message), said) + MARKERS for example in pack)
