"""Order in which prompts are read: those of chats first, those that are only scored in between.

A scoring call reads a whole conversation and samples next to nothing, and nobody watches it. So the two kinds wait in
lanes of their own, each with the prefill of its first request; one chunk of one of them runs per turn. Chats come
first, but of `CHUNKS_IN_TURN` chunks in a row at least one is a scoring call's, however many chats arrive.
"""

from collections import deque
from collections.abc import Iterator

from clawrl_trl.engines.embedded.batch import Prefill
from clawrl_trl.engines.embedded.generation import Generation

CHUNKS_IN_TURN = 8
"""Chunks in a row of which one is a scoring call's while both lanes have work: what a chat may lose to scoring."""

PREFILL_TOKENS = 512
"""Prompt tokens of one chunk: the longest a running row waits for a joiner."""

PREFILL_ROWS = 16


class Lane:
    """Requests of one kind: those that wait, and the prefill of those whose turn it is."""

    def __init__(self) -> None:
        self.waiting: deque[Generation] = deque()
        self.prefill: Prefill | None = None

    @property
    def is_busy(self) -> bool:
        """True if there is anything to do."""
        return self.prefill is not None or bool(self.waiting)

    @property
    def starting(self) -> int:
        """Choices of the requests whose prompts are being read."""
        prefill = self.prefill  # the decoding thread may end it meanwhile
        return sum(generation.choices for generation in prefill.generations) if prefill else 0

    def drop_cancelled(self) -> None:
        """Forget what nobody waits for any more; the caller holds the lock on what waits."""
        if self.prefill is not None and self.prefill.cancelled:
            self.prefill = None
        if any(generation.cancelled for generation in self.waiting):
            self.waiting = deque(generation for generation in self.waiting if not generation.cancelled)

    def take(self, places: int, busy_places: int) -> list[Generation]:
        """Take the next request, along with those right behind it that fit beside it; the caller holds the lock.

        Args:
            places (`int`): Choices that may run at once.
            busy_places (`int`): Those of them that are not free.
        """
        group: list[Generation] = []
        while self.waiting and len(group) < PREFILL_ROWS:
            rows = busy_places + sum(generation.choices for generation in group)
            # One with more choices than may run goes alone.
            if rows and rows + self.waiting[0].choices > places:
                break
            if group and not _is_similar(self.waiting[0], group):
                break
            group.append(self.waiting.popleft())
        return group


class Lanes:
    """Both lanes, and whose chunk is next."""

    def __init__(self) -> None:
        self.chats, self.scoring = Lane(), Lane()
        self._chat_chunks = 0

    def __iter__(self) -> Iterator[Lane]:
        return iter((self.chats, self.scoring))

    def of(self, generation: Generation) -> Lane:
        """The lane that a request belongs to."""
        return self.scoring if generation.only_scores else self.chats

    def choose(self) -> Lane:
        """Choose the lane of the next chunk."""
        if self.scoring.prefill is None or (self.chats.prefill and self._chat_chunks + 1 < CHUNKS_IN_TURN):
            self._chat_chunks += self.scoring.prefill is not None
            return self.chats
        self._chat_chunks = 0
        return self.scoring


def _is_similar(candidate: Generation, group: list[Generation]) -> bool:
    # Prompts are padded to the longest: beside a chunk's worth, a quarter of padding at most.
    lengths = [len(generation.prompt_ids) for generation in (*group, candidate)]
    return candidate.policy is group[0].policy and max(lengths) * len(lengths) <= max(
        PREFILL_TOKENS, 1.25 * sum(lengths)
    )
