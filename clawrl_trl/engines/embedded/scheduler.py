"""The decoding thread: who waits, who runs, and in which order the model is called.

Between two steps requests join, leave, or are cancelled; nothing else ever touches a running batch. One turn of the
loop decodes one token for every running row of every policy, and runs at most one chunk of one prefill, chats before
scoring calls (`lanes`). Updates go to the event loop in one hop per turn, so the loop is never blocked by the model,
and the model rarely by the loop.

Whatever fails ends the rows it was about, each with a last update, and never the thread: nobody would start another.
"""

import asyncio
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

import torch

from clawrl_trl.engines.embedded.adapters import LoadedPolicy
from clawrl_trl.engines.embedded.batch import DecodeBatch, Prefill
from clawrl_trl.engines.embedded.generation import Generation, Row, Update
from clawrl_trl.engines.embedded.lanes import PREFILL_TOKENS, Lane, Lanes

logger = logging.getLogger(__name__)


class QueueFull(Exception):
    """As many requests of a kind wait as the engine lets wait."""


class Scheduler:
    """Owns the decoding thread.

    Args:
        max_running (`int`): Rows decoded at once, over all policies.
        max_waiting (`int`): Chats that may wait beside those that find a place; one more is refused. As many scoring
            calls may wait, and one at least.
    """

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._lanes = Lanes()
        self._batches: dict[LoadedPolicy, DecodeBatch] = {}
        self._wake = threading.Condition()
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start decoding; updates are delivered in this event loop."""
        self._loop = loop
        self._thread.start()

    def close(self) -> None:
        """Stop after the current step and wait for the thread to end; running requests get no more updates."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def submit(self, generations: Sequence[Generation]) -> None:
        """Queue generations in order.

        Raises:
            QueueFull: If too many of their kind wait already; none of these was queued.
        """
        with self._wake:
            for lane in {self._lanes.of(generation) for generation in generations}:
                if len(lane.waiting) >= self._room(lane):
                    raise QueueFull("As many requests wait as the engine lets wait, try again later.")
            for generation in generations:
                self._lanes.of(generation).waiting.append(generation)
            self._wake.notify()

    def _room(self, lane: Lane) -> int:
        """How many requests of a lane may be queued; those that find a free place do not wait for long."""
        if lane is self._lanes.scoring:
            return max(1, self._max_waiting)  # without a queue no call would ever be taken
        return self._max_waiting + max(0, self._max_running - self._places)

    @property
    def alive(self) -> bool:
        """True if the thread still decodes."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        return sum(len(lane.waiting) for lane in self._lanes)

    @property
    def running(self) -> int:
        """Rows that decode, or are about to after their prefill, and prompts that are being scored."""
        return self._places + self._lanes.scoring.starting

    @property
    def _places(self) -> int:
        return self._lanes.chats.starting + sum(len(batch.rows) for batch in list(self._batches.values()))

    def _run(self) -> None:
        with torch.inference_mode():
            while self._wait_for_work():
                self._deliver(self._turn())

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not (self._closing or self._batches or any(lane.is_busy for lane in self._lanes)):
                self._wake.wait()
            return not self._closing

    def _turn(self) -> list[Update]:
        updates: list[Update] = []
        try:
            updates += self._drop_cancelled()
            for lane in self._lanes:
                updates += self._admit(lane)
            for policy in list(self._batches):
                updates += self._decode(policy)
            updates += self._advance_prefill()
        except Exception as error:
            logger.exception("a turn of the decoding thread failed")
            updates += self._fail_all(error)
        return updates

    def _drop_cancelled(self) -> list[Update]:
        updates: list[Update] = []
        for policy, batch in list(self._batches.items()):
            if any(row.cancelled for row in batch.rows):
                updates += self._keep(policy, [index for index, row in enumerate(batch.rows) if not row.cancelled])
        with self._wake:
            for lane in self._lanes:
                lane.drop_cancelled()
        return updates

    def _keep(self, policy: LoadedPolicy, going: list[int]) -> list[Update]:
        batch = self._batches[policy]
        rows = [batch.rows[index] for index in going]
        if not rows:
            del self._batches[policy]
            return []
        try:
            batch.keep(going)
        except Exception as error:
            logger.exception("rows of policy %s could not leave", policy.name)
            return self._fail(policy, rows, error)
        return []

    def _admit(self, lane: Lane) -> list[Update]:
        """Start prefilling a lane's next requests."""
        if lane.prefill is not None or not lane.waiting:
            return []
        with self._wake:
            # What is only scored never joins the rows that decode, and takes no place of theirs.
            admitted = lane.take(self._max_running, self._places if lane is self._lanes.chats else 0)
        if not admitted:
            return []
        try:
            lane.prefill = Prefill(admitted, PREFILL_TOKENS)
        except Exception as error:
            logger.exception("a prefill could not begin")
            return _fail_generations(admitted, error)
        return []

    def _decode(self, policy: LoadedPolicy) -> list[Update]:
        batch = self._batches[policy]
        try:
            updates = batch.step()
        except Exception as error:
            logger.exception("decoding with policy %s failed", policy.name)
            return self._fail(policy, batch.rows, error)
        going = [index for index, update in enumerate(updates) if update.finish_reason is None]
        if len(going) < len(updates):
            updates += self._keep(policy, going)
        return updates

    def _advance_prefill(self) -> list[Update]:
        lane = self._lanes.choose()
        prefill = lane.prefill
        if prefill is None:
            return []
        try:
            result = prefill.step()
        except Exception as error:
            logger.exception("prefill failed")
            lane.prefill = None
            return _fail_generations(prefill.generations, error)
        if result is None:
            return []
        lane.prefill = None
        return result.updates + (self._join(result.batch) if result.batch is not None else [])

    def _join(self, batch: DecodeBatch) -> list[Update]:
        present = self._batches.setdefault(batch.policy, batch)
        if present is batch:
            return []
        rows = present.rows + batch.rows
        try:
            present.join(batch)
        except Exception as error:
            logger.exception("rows of policy %s could not join", batch.policy.name)
            return self._fail(batch.policy, rows, error)
        return []

    def _fail(self, policy: LoadedPolicy, rows: Sequence[Row], error: Exception) -> list[Update]:
        """End a batch that can't go on."""
        del self._batches[policy]
        return [row.fail(_describe(error)) for row in rows]

    def _fail_all(self, error: Exception) -> list[Update]:
        """End everything that is under way."""
        updates = [row.fail(_describe(error)) for batch in self._batches.values() for row in batch.rows]
        for lane in self._lanes:
            for generation in lane.prefill.generations if lane.prefill is not None else ():
                updates += generation.fail(_describe(error))
            lane.prefill = None
        self._batches = {}
        return updates

    def _deliver(self, updates: list[Update]) -> None:
        if updates and self._loop is not None:
            with suppress(RuntimeError):  # the event loop has been closed: nobody is left to tell
                self._loop.call_soon_threadsafe(_deliver_in_loop, updates)


def _fail_generations(generations: Sequence[Generation], error: Exception) -> list[Update]:
    """The last updates of generations whose prefill failed."""
    return [update for generation in generations for update in generation.fail(_describe(error))]


def _deliver_in_loop(updates: list[Update]) -> None:
    for update in updates:
        update.generation.deliver(update)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
