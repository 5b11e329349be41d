"""A pool of environments that are lent out: one lease, one environment, one thread.

A lease without a call for `idle_s` seconds is taken back and its world taken down, so that a client that died holds
nothing for long. An action is carried out once: a step that is asked for again, because its answer was lost, gets the
same answer, or waits for it with the first call. Every environment keeps to one thread of its own, which browsers
insist on.
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
from clawrl_trl.envs.pool.wire import describe_spec, pack
from clawrl_trl.messages import Json

logger = logging.getLogger(__name__)


class NoSuchLease(Exception):
    """The lease ran out, was given back, or never was."""


class PoolFull(Exception):
    """All environments are lent."""


class StepOutOfOrder(Exception):
    """A step that is neither the next nor the last one."""


class EnvironmentBusy(Exception):
    """An environment is still busy with another call, or took too long."""


CallKey = tuple[str, int | None]
"""Name of a call and the step or task it is for: two calls with the same key are one call and its repetition."""


@dataclass
class _RunningCall:
    """The last call on an environment's thread; without a key it can't be repeated."""

    future: "Future[Json] | Future[None]"
    key: CallKey | None = None
    started_at: float = 0.0


@dataclass(eq=False)
class _Slot:
    """An environment with its thread, and the lease it is lent under.

    Attributes:
        env ([`AgentEnv`], *optional*): Made at the first reset, on the slot's thread; gone once it is taken back.
        last_call_at (`float`): When the lease was last heard of, `time.monotonic`.
        lent_at (`float`): When it was lent, `time.monotonic`.
        steps (`int`): Actions of the episode.
        last_state (`dict`): The packed observation after them; empty before the first reset.
    """

    thread: ThreadPoolExecutor
    env: AgentEnv[Any] | None = None
    lease: str | None = None
    last_call_at: float = 0.0
    lent_at: float = 0.0
    steps: int = 0
    last_state: Json = field(default_factory=dict)
    call: _RunningCall | None = None

    @property
    def is_busy(self) -> bool:
        return self.call is not None and not self.call.future.done()


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
        self._slots = [self._make_slot() for _ in range(size)]
        self._lock = threading.Lock()
        self._spec: Json | None = None

    @staticmethod
    def _make_slot() -> _Slot:
        return _Slot(ThreadPoolExecutor(1, thread_name_prefix="env"))

    def get_specs(self) -> Json:
        """Describe what the environments observe, see [`clawrl_trl.envs.pool.wire.describe_spec`]."""
        if self._spec is None:
            # One made for the question alone: those of the slots belong to their threads.
            with contextlib.closing(self.make_env()) as env:
                self._spec = describe_spec(env.observation_spec)
        return self._spec

    def allocate(self) -> str:
        """Lend an environment.

        Raises:
            PoolFull: If there is none left.
        """
        self.expire()
        with self._lock:
            for slot in self._slots:
                # One that was given back may still be taking its world down.
                if slot.lease is None and not slot.is_busy:
                    slot.lease = secrets.token_urlsafe(16)
                    slot.last_call_at = slot.lent_at = time.monotonic()
                    slot.steps, slot.last_state, slot.call = 0, {}, None
                    return slot.lease
        raise PoolFull(f"all {self.size} environments are lent: try again later")

    def heartbeat(self, lease: str) -> None:
        """Keep a lease alive."""
        self._find_slot(lease)

    def reset(self, lease: str, task: int | None = None) -> Json:
        """Begin an episode, of the task at that position or of the next one; returns the packed observation."""
        slot = self._find_slot(lease)

        def begin() -> Json:
            if slot.env is None:
                slot.env = self.make_env()
            position = None if task is None else TensorDict({"next_task": torch.tensor([task])}, batch_size=())
            # TorchRL hands the input of a reset on in its output, and `next_task` is in no spec.
            slot.steps, slot.last_state = 0, pack(slot.env.reset(position).exclude("next_task"))
            return slot.last_state

        return self._run(slot, ("reset", task), begin)

    def step(self, lease: str, number: int, action: str) -> Json:
        """Carry out the `number`-th action of the episode (from 1); a repetition returns the same observation.

        Raises:
            StepOutOfOrder: If it is neither the next nor the last one.
        """
        slot = self._find_slot(lease)

        def take_step() -> Json:
            # Sent again, since its answer was lost: an action is carried out once.
            if number == slot.steps and slot.steps:
                return slot.last_state
            if slot.env is None or not slot.last_state or number != slot.steps + 1:
                raise StepOutOfOrder(f"step {number} can't follow step {slot.steps}: reset first, then count from 1")
            state = slot.env.step(TensorDict({"action": action}, batch_size=()))["next"]
            slot.steps, slot.last_state = number, pack(state)
            return slot.last_state

        return self._run(slot, ("step", number), take_step)

    def evaluate(self, lease: str) -> Json:
        """End the episode where it is, and return its outcome's observation; a repetition returns the same."""
        slot = self._find_slot(lease)

        def conclude() -> Json:
            if slot.env is None or not slot.last_state:
                raise StepOutOfOrder("there is no episode to evaluate: reset first")
            slot.last_state = pack(slot.env.conclude())
            return slot.last_state

        return self._run(slot, ("evaluate", None), conclude)

    def close(self, lease: str) -> None:
        """Give an environment back; its world is taken down."""
        self._release(self._find_slot(lease))

    def expire(self) -> int:
        """Take back the environments whose leases ran out; returns how many."""
        now = time.monotonic()
        with self._lock:
            silent = [slot for slot in self._slots if slot.lease is not None and now - slot.last_call_at > self.idle_s]
        silent = [slot for slot in silent if not slot.is_busy]  # its client waits for the call
        for slot in silent:
            logger.warning("a lease ran out after %.0f s of silence", now - slot.last_call_at)
            self._release(slot)
        return len(silent)

    def get_status(self) -> Json:
        """Return the number of environments, and the age of each lease."""
        now = time.monotonic()
        with self._lock:
            leases = [
                {
                    "lent_s": round(now - slot.lent_at, 1),
                    "silent_s": round(now - slot.last_call_at, 1),
                    "steps": slot.steps,
                }
                for slot in self._slots
                if slot.lease is not None
            ]
        return {"size": self.size, "lent": len(leases), "leases": leases, "idle_s": self.idle_s}

    def shutdown(self) -> None:
        """Take everything down."""
        for slot in self._slots:
            closing = self._release(slot)
            # A world that hangs must not keep the others from being taken down.
            with contextlib.suppress(FutureTimeout):
                closing.result(self.call_s)
            slot.thread.shutdown(wait=True)

    def _find_slot(self, lease: str) -> _Slot:
        with self._lock:
            for slot in self._slots:
                # In constant time: a lease is what another client would have to guess.
                if slot.lease is not None and secrets.compare_digest(slot.lease, lease):
                    slot.last_call_at = time.monotonic()
                    return slot
        raise NoSuchLease("there is no such lease: it ran out or was given back; allocate anew")

    def _run(self, slot: _Slot, key: CallKey, work: Callable[[], Json]) -> Json:
        """Run a call on the slot's thread, or wait for the same call that is under way."""
        with self._lock:
            if not slot.is_busy:
                slot.call = _RunningCall(slot.thread.submit(work), key, time.monotonic())
            # The same call, sent again while it runs, waits for its result.
            elif slot.call is not None and slot.call.key != key:
                raise EnvironmentBusy("the environment is still busy with the call before")
            call = slot.call
        assert call is not None
        try:
            state: Json | None = call.future.result(max(0.0, call.started_at + self.call_s - time.monotonic()))
        except FutureTimeout:
            self._replace(slot)
            raise EnvironmentBusy(
                f"a call took longer than {self.call_s:.0f} s; the environment is given up"
            ) from None
        finally:
            slot.last_call_at = time.monotonic()
        assert state is not None, "calls with a key return an observation"
        return state

    def _release(self, slot: _Slot) -> "Future[None]":
        """End a lease and take its world down, on the slot's thread; returns at once."""

        def close_env() -> None:
            if slot.env is not None:
                slot.env.close(raise_if_closed=False)
                slot.env = None

        with self._lock:
            # The lease first: calls of its client are refused while the world is still being taken down.
            slot.lease, slot.last_state = None, {}
            closing = slot.thread.submit(close_env)
            slot.call = _RunningCall(closing)
        return closing

    def _replace(self, slot: _Slot) -> None:
        """Give a stuck environment up; its thread ends when the call does."""
        with self._lock:
            if slot not in self._slots:
                return  # another client that waited for the same call was first
            self._slots[self._slots.index(slot)] = self._make_slot()
        if slot.env is not None:
            slot.thread.submit(slot.env.close, raise_if_closed=False)
        slot.thread.shutdown(wait=False)
