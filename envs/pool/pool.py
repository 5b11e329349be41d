"""A pool of environments that are lent out: one lease, one environment, one thread.

A lease that is not heard of for `idle_s` seconds is taken back and its world taken down, so a client that died costs
nothing for long. An action is carried out once: a step that is asked for again, because its answer was lost, gets the
answer that there was, or waits for it with the first call. Every environment keeps to one thread of its own, which
browsers insist on.
"""

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict

from clawrl_trl.envs.base.agent import AgentEnv
from clawrl_trl.envs.pool.wire import Json, describe, pack

logger = logging.getLogger(__name__)


class NoSuchLease(Exception):
    """The lease ran out, was given back, or never was."""


class PoolFull(Exception):
    """All environments are lent."""


class OutOfTurn(Exception):
    """A step that is neither the next nor the last one."""


class TooSlow(Exception):
    """An environment is still busy with another call, or took too long."""


Call = tuple[str, int | None]
"""What is done and for which step or task: the same call twice is one that is asked for again."""


@dataclass
class _Place:
    """An environment with its thread, and to whom it is lent."""

    thread: ThreadPoolExecutor
    env: AgentEnv[Any] | None = None
    lease: str | None = None
    seen_at: float = 0.0
    lent_at: float = 0.0
    steps: int = 0
    last: Json = field(default_factory=dict)
    busy: "Future[Any] | None" = None
    call: Call | None = None
    called_at: float = 0.0


class EnvPool:
    """Environments to lend.

    Args:
        make_env (`Callable[[], AgentEnv]`): Makes one; called when it is first needed.
        size (`int`): Environments at most.
        idle_s (`float`, *optional*, defaults to `120.0`): Seconds a lease lasts after the last call.
        call_s (`float`, *optional*, defaults to `300.0`): Longest a call may take; the environment is replaced after
            that.
    """

    def __init__(
        self, make_env: Callable[[], AgentEnv[Any]], size: int, *, idle_s: float = 120.0, call_s: float = 300.0
    ) -> None:
        if size < 1:
            raise ValueError("a pool needs at least one environment")
        self.make_env, self.size, self.idle_s, self.call_s = make_env, size, idle_s, call_s
        self._places = [self._place() for _ in range(size)]
        self._lock = threading.Lock()
        self._spec: Json | None = None

    @staticmethod
    def _place() -> _Place:
        return _Place(ThreadPoolExecutor(1, thread_name_prefix="env"))

    def specs(self) -> Json:
        """Return what the environments observe, see [`clawrl_trl.envs.pool.wire.describe`]."""
        if self._spec is None:
            with contextlib.closing(self.make_env()) as env:
                self._spec = describe(env.observation_spec)
        return self._spec

    def allocate(self) -> str:
        """Lend an environment.

        Raises:
            PoolFull: If there is none left.
        """
        self.expire()
        with self._lock:
            for place in self._places:
                if place.lease is None and (place.busy is None or place.busy.done()):
                    place.lease = secrets.token_urlsafe(16)
                    place.seen_at = place.lent_at = time.monotonic()
                    place.steps, place.last, place.busy = 0, {}, None
                    return place.lease
        raise PoolFull(f"all {self.size} environments are lent: try again later")

    def heartbeat(self, lease: str) -> None:
        """Keep a lease alive."""
        self._held(lease)

    def reset(self, lease: str, task: int | None = None) -> Json:
        """Begin an episode, of the task at that position or of the next one."""
        place = self._held(lease)

        def work() -> Json:
            if place.env is None:
                place.env = self.make_env()
            wanted = None if task is None else TensorDict({"next_task": torch.tensor([task])}, batch_size=())
            place.steps, place.last = 0, pack(place.env.reset(wanted).exclude("next_task"))
            return place.last

        return self._run(place, ("reset", task), work)

    def step(self, lease: str, number: int, action: str) -> Json:
        """Carry out the `number`-th action of the episode (from 1), or tell again what it brought.

        Raises:
            OutOfTurn: If it is neither the next nor the last one.
        """
        place = self._held(lease)

        def work() -> Json:
            if number == place.steps and place.steps:
                return place.last
            if place.env is None or not place.last or number != place.steps + 1:
                raise OutOfTurn(f"step {number} can't follow step {place.steps}: reset first, then count from 1")
            moved = place.env.step(TensorDict({"action": action}, batch_size=()))["next"]
            place.steps, place.last = number, pack(moved)
            return place.last

        return self._run(place, ("step", number), work)

    def evaluate(self, lease: str) -> Json:
        """End the episode where it is, and say how it went; telling it again is free."""
        place = self._held(lease)

        def work() -> Json:
            if place.env is None or not place.last:
                raise OutOfTurn("there is no episode to evaluate: reset first")
            place.last = pack(place.env.conclude())
            return place.last

        return self._run(place, ("evaluate", None), work)

    def close(self, lease: str) -> None:
        """Give an environment back; its world is taken down."""
        place = self._held(lease)
        self._take_back(place)

    def expire(self) -> int:
        """Take back what is lent to those who have not been heard of; returns how many."""
        now = time.monotonic()
        with self._lock:
            silent = [one for one in self._places if one.lease is not None and now - one.seen_at > self.idle_s]
        silent = [one for one in silent if one.busy is None or one.busy.done()]
        for place in silent:
            logger.warning("a lease ran out after %.0f s of silence", now - place.seen_at)
            self._take_back(place)
        return len(silent)

    def status(self) -> Json:
        """Number of environments, and the age of each lease."""
        now = time.monotonic()
        with self._lock:
            lent = [
                {"lent_s": round(now - one.lent_at, 1), "silent_s": round(now - one.seen_at, 1), "steps": one.steps}
                for one in self._places
                if one.lease is not None
            ]
        return {"size": self.size, "lent": len(lent), "leases": lent, "idle_s": self.idle_s}

    def shutdown(self) -> None:
        """Take everything down."""
        for place in self._places:
            self._take_back(place, for_good=True)
            place.thread.shutdown(wait=True)

    def _held(self, lease: str) -> _Place:
        with self._lock:
            for place in self._places:
                if place.lease is not None and secrets.compare_digest(place.lease, lease):
                    place.seen_at = time.monotonic()
                    return place
        raise NoSuchLease("there is no such lease: it ran out or was given back; allocate anew")

    def _run(self, place: _Place, call: Call, work: Callable[[], Json]) -> Json:
        with self._lock:
            if place.busy is None or place.busy.done():
                place.busy, place.call, place.called_at = place.thread.submit(work), call, time.monotonic()
            elif place.call != call:
                raise TooSlow("the environment is still busy with the call before")
            future: Future[Json] = place.busy
        try:
            return future.result(max(0.0, place.called_at + self.call_s - time.monotonic()))
        except FutureTimeout:
            self._replace(place)
            raise TooSlow(f"a call took longer than {self.call_s:.0f} s; the environment is given up") from None
        finally:
            place.seen_at = time.monotonic()

    def _take_back(self, place: _Place, *, for_good: bool = False) -> None:
        def work() -> None:
            if place.env is not None:
                place.env.close(raise_if_closed=False)
                place.env = None

        with self._lock:
            place.lease, place.last, place.call = None, {}, None
            place.busy = place.thread.submit(work)
        if for_good:
            with contextlib.suppress(FutureTimeout):
                place.busy.result(self.call_s)

    def _replace(self, place: _Place) -> None:
        """Give a stuck environment up; its thread ends when the call does."""
        with self._lock:
            if place not in self._places:
                return  # another who waited for the same call was first
            self._places[self._places.index(place)] = self._place()
        if place.env is not None:
            place.thread.submit(place.env.close, raise_if_closed=False)
        place.thread.shutdown(wait=False)
