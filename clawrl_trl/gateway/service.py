"""The parts of one running gateway, and the work it does besides answering requests.

A `Gateway` is made once per process and handed to every route. It owns the tasks that outlive their request (an
exchange is recorded even when its client has left) and the two that run all the time: following the policies
and expiring silent sessions.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy.orm import Session as Transaction

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.client import EngineClient, EngineError
from clawrl_trl.gateway.auth import Keys
from clawrl_trl.gateway.errors import invalid
from clawrl_trl.gateway.policies.router import PolicyRouter
from clawrl_trl.gateway.sessions.sessions import Sessions
from clawrl_trl.http.body import LARGE_BYTES
from clawrl_trl.ledger import Ledger, LedgerWriter, turns
from clawrl_trl.ledger.errors import LedgerWriteError
from clawrl_trl.messages import text_of
from clawrl_trl.run import RunFolder

logger = logging.getLogger(__name__)

T = TypeVar("T")

LAST_WRITES_S = 5.0
FAULT_MEMORY_S = 5.0
EXPIRY_PERIOD_S = 60.0

ALWAYS_READ_BYTES = 2**23
"""A body up to this length is read, so that its client hears what is wrong with it."""

LONGEST_ESCAPE = 12
"""Bytes of the longest way to write a character in JSON, two escaped surrogates."""


class Gateway:
    """Everything a route needs.

    Args:
        run (`RunFolder`): The run served.
        settings (`ServeSettings`): Its settings.
        keys (`Keys`): Who may do what.
        ledger (`Ledger`): Open; closed by `stop`.
        engine (`EngineClient`): Closed by `stop`.
        patience_s (`float`, *optional*): How long a request waits for an engine that is down; by default as the
            settings say, and never longer than the engine's own time-out.
    """

    def __init__(
        self,
        run: RunFolder,
        settings: ServeSettings,
        keys: Keys,
        ledger: Ledger,
        engine: EngineClient,
        patience_s: float | None = None,
    ) -> None:
        self.run, self.settings, self.keys = run, settings, keys
        self.ledger, self.engine = ledger, engine
        patience_s = settings.patience if patience_s is None else patience_s
        self.patience_s = min(patience_s, settings.engine_timeout)
        self.writer = LedgerWriter(ledger)
        self.sessions = Sessions(owner_names=(settings.owner_names or "").split(","))
        self.policies = PolicyRouter(
            ledger,
            self.writer,
            engine,
            aliases=settings.model_names,
            any_name=settings.any_model_name,
            keep=settings.keep_policies,
            folder=run.path,
        )
        self.started_at = time.time()
        self._context = settings.max_model_len
        self._ledger_fault: tuple[float, str] | None = None
        self._exchanges: dict[asyncio.Task[None], Callable[[], None]] = {}
        self._forever: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Read the open conversations and the serving policy from the ledger, and start the steady work."""
        await asyncio.to_thread(self._load)
        self._forever = [asyncio.create_task(self.policies.follow()), asyncio.create_task(self._expire())]

    async def stop(self) -> None:
        """End the steady work and what is in flight, and write down what there is to write."""
        for task in self._forever:
            task.cancel()
        await asyncio.gather(*self._forever, return_exceptions=True)
        # The follower and the expiry first: they would go on writing to a ledger that is about to close.
        for end in self._exchanges.values():
            end()
        if self._exchanges:
            await asyncio.wait(self._exchanges, timeout=LAST_WRITES_S)
        # After the exchanges: each writes what was sampled when it ends.
        await asyncio.to_thread(self.writer.close)
        await self.engine.aclose()
        await asyncio.to_thread(self.ledger.close)

    async def context(self) -> int | None:
        """Longest prompt plus completion in tokens, as the engine says; while it is away, as it last said."""
        with suppress(EngineError):
            # Asked each time: another engine may have taken the place of the one that answered before.
            self._context = await self.engine.limit("max_model_len") or self._context
        return self._context

    async def body_limit(self, declared: str | None) -> int:
        """Most bytes to read of a request that carries a prompt.

        Args:
            declared (`str`, *optional*): Its Content-Length header.
        """
        limit = self.settings.max_body_mb * 2**20
        if declared and declared.isdecimal() and int(declared) <= ALWAYS_READ_BYTES:
            return limit
        most = await self._max_prompt_chars()
        return limit if most is None else min(limit, max(ALWAYS_READ_BYTES, most * LONGEST_ESCAPE))

    async def check_length(self, body: Mapping[str, Any]) -> None:
        """Refuse a text that fits no context of this engine, before more is done with it than to parse it.

        Raises:
            ApiError: 400.
        """
        characters = sum(len(text) for text in _prompt_texts(body))
        most = await self._max_prompt_chars() if characters >= LARGE_BYTES else None
        if most is not None and characters > most:
            raise invalid(
                f"This model's maximum context length is {await self.context()} tokens. However, your request has "
                f"{characters} characters, more than {most}, which no context of that length can hold. Please reduce "
                "the length of the input messages.",
                param="input_tokens",
            )

    async def _max_prompt_chars(self) -> int | None:
        """Ask the engine for its limit; the embedded one, which reads text alone, states one, others `None`."""
        with suppress(EngineError):
            return await self.engine.limit("max_prompt_chars")
        return None

    @property
    def in_flight(self) -> int:
        """Number of exchanges under way."""
        return len(self._exchanges)

    def spawn(self, life: Coroutine[Any, Any, None], end: Callable[[], None]) -> None:
        """Run an exchange to its end as a task of its own; `end` makes that come soon."""
        task = asyncio.create_task(life)
        # Held here as well: asyncio keeps only a weak reference to a task, which could vanish in mid-reply.
        self._exchanges[task] = end
        task.add_done_callback(lambda done: self._exchanges.pop(done, None))

    async def write(self, function: Callable[[Transaction], T]) -> T:
        """Write to the ledger; returns after the commit and remembers a failure.

        Raises:
            LedgerWriteError: If nothing was committed.
        """
        try:
            result = await self.writer.run(function)
        except LedgerWriteError as error:
            self._ledger_fault = (time.monotonic(), str(error))
            raise
        self._ledger_fault = None
        return result

    def recent_ledger_fault(self) -> list[str]:
        """Why a write failed a moment ago, if none succeeded since; else an empty list."""
        if self._ledger_fault is None or time.monotonic() - self._ledger_fault[0] > FAULT_MEMORY_S:
            return []
        return [self._ledger_fault[1]]

    def _load(self) -> None:
        with self.ledger.reader() as tx:
            self.sessions.load(tx)
        self.policies.start()

    def _expire_silent(self, tx: Transaction) -> int:
        return turns.expire(tx, time.time() - self.settings.session_timeout)

    async def _expire(self) -> None:
        # A quarter: with a short time-out a session ends at most that much late.
        period = min(EXPIRY_PERIOD_S, self.settings.session_timeout / 4)
        while True:
            await asyncio.sleep(period)
            try:
                expired = await self.write(self._expire_silent)
            except LedgerWriteError as error:
                logger.warning("silent sessions could not be expired: %s", error)
            except Exception:  # a next attempt may succeed; without one, nothing would ever expire
                logger.exception("expiring silent sessions failed")
            else:
                if expired:
                    logger.info("%d turns expired without a next state", expired)


def _prompt_texts(body: Mapping[str, Any]) -> Iterator[str]:
    """The texts that any template shows: it may leave out what the assistant said, but nothing that it was told."""
    yield from (text_of(message) for message in body.get("messages") or () if message.get("role") != "assistant")
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        yield prompt
