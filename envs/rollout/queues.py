"""Queues between the threads that play episodes and the one that collects them."""

import itertools
import queue
import threading
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Future

from clawrl_trl.envs.rollout.episode import Episode, OpenGroup


class EpisodeQueue:
    """The episodes to play, each given by its group, handed out one by one to several threads."""

    def __init__(self, tasks: Iterable[int], size: int) -> None:
        self._groups = self._repeat_groups(tasks, size)
        self._lock = threading.Lock()  # a generator can't be advanced by two threads

    @staticmethod
    def _repeat_groups(tasks: Iterable[int], size: int) -> Iterator[OpenGroup]:
        for task in tasks:
            group = OpenGroup(f"group-{uuid.uuid4().hex}", task, size)
            yield from itertools.repeat(group, size)

    def next(self) -> OpenGroup | None:
        with self._lock:
            return next(self._groups, None)


class ResultQueue:
    """Results of the threads for one reader, who sets `closed` when it stops reading."""

    def __init__(self, bound: int) -> None:
        self._items: queue.SimpleQueue[tuple[OpenGroup, Episode] | Future[None]] = queue.SimpleQueue()
        self._free_places = threading.Semaphore(bound)
        self.closed = threading.Event()

    def put(self, group: OpenGroup, episode: Episode) -> None:
        """Add an episode that has ended, as soon as there is room for it; drop it once `closed` is set."""
        while not self.closed.is_set():
            if self._free_places.acquire(timeout=0.2):
                return self._items.put((group, episode))

    def put_ended_thread(self, thread: "Future[None]") -> None:
        """Add a thread that has ended; never waits, as the callback may run on the reader's own thread."""
        self._items.put(thread)

    def get(self) -> "tuple[OpenGroup, Episode] | Future[None]":
        """Wait for an episode or a thread that has ended."""
        item = self._items.get()
        if not isinstance(item, Future):
            self._free_places.release()
        return item
