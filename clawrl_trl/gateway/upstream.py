"""One request's dealings with the engine: under one policy version, and patient while that costs nobody.

As long as the client has seen nothing, an engine that is down (or was restarted and forgot its adapters) is waited
for, with back-off and for a bounded time, and asked again. Once the client has seen a part of the reply a failure is
final: a second attempt would sample another reply.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

import httpx

from clawrl_trl.engines.client import (
    VERSIONS_HEADER,
    EngineClient,
    EngineError,
    EngineUnavailable,
    error_of,
    unavailable,
)
from clawrl_trl.gateway.policies.router import PolicyRouter
from clawrl_trl.gateway.policies.version import Version
from clawrl_trl.http import sse
from clawrl_trl.messages import Json

T = TypeVar("T")
Event = Json

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 2.0

DONE = b"[DONE]"

_HEADERS = {
    "content-type": "application/json",
    "accept": "*/*",
    # Compressed, the events of a stream may arrive in bursts.
    "accept-encoding": "identity",
    VERSIONS_HEADER: "1",
}


@dataclass(frozen=True)
class Upstream:
    """The engine, as one request uses it.

    Args:
        engine (`EngineClient`): The engine.
        policies (`PolicyRouter`): Makes sure that the version is loaded.
        version (`Version`): The policy version the request runs under.
        path (`str`): The endpoint.
        patience_s (`float`): How long to wait for an engine that can't be reached, from its first failure on.
    """

    engine: EngineClient
    policies: PolicyRouter
    version: Version
    path: str
    patience_s: float

    async def try_patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Attempt something of which the client sees nothing before it has succeeded.

        Raises:
            EngineError: As the attempt does; `EngineUnavailable` when the patience is over.
        """
        deadline = None
        delay = FIRST_DELAY_S
        while True:
            try:
                return await attempt()
            except EngineError as error:
                # From the first failure on: a long prompt that was being worked on must not use up the patience.
                deadline = deadline or time.monotonic() + self.patience_s
                if time.monotonic() + delay > deadline or not await self._is_down(error):
                    raise
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY_S)

    async def fetch_reply(self, content: bytes) -> Event:
        """The engine's whole reply, at one attempt; what it notes on policy versions is in `policy_versions`.

        Args:
            content (`bytes`): The request, a JSON object that names no model.

        Raises:
            EngineError: If there is none.
        """
        response = await self._send(content)
        try:
            reply = _parse(await response.aread())
            notes = json.loads(response.headers.get(VERSIONS_HEADER, "[]"))
        except httpx.TransportError as error:
            raise unavailable(error) from error
        except ValueError as error:
            raise EngineError(502, "the engine's reply is not JSON") from error
        finally:
            await response.aclose()
        if not isinstance(reply, dict) or not isinstance(reply.get("choices"), list):
            raise EngineError(502, "the engine's reply has no choices")
        return _with_known_reasons(reply) | ({"policy_versions": notes} if notes else {})

    async def events(self, content: bytes, *, patient: bool) -> AsyncGenerator[Event]:
        """The events of the engine's stream, up to `[DONE]`; closing this cancels the generation.

        Args:
            content (`bytes`): The request, a JSON object that names no model.
            patient (`bool`): Wait for an engine that is down before the first event.

        Raises:
            EngineError: If there are none, or the engine fails in between.
        """
        opening = self.try_patiently(lambda: self._open(content)) if patient else self._open(content)
        response, source, first_events = await opening
        try:
            for event in first_events:
                yield event
            while (later := await _next(source)) is not None:
                yield later
        finally:
            await response.aclose()

    async def collect(self, content: bytes, take: Callable[[Event], None]) -> None:
        """Hand every event of one attempt's stream to `take`.

        Raises:
            EngineError: If the stream fails.
        """
        async with aclosing(self.events(content, patient=False)) as events:
            async for event in events:
                take(event)

    async def _open(self, content: bytes) -> tuple[httpx.Response, AsyncIterator[bytes], list[Event]]:
        """A stream, and its events up to the first that a client sees; notes on versions come before it."""
        response = await self._send(content)
        first_events: list[Event] = []
        try:
            source = sse.iterate_events(response.aiter_bytes())
            while not first_events or "policy_versions" in first_events[-1]:
                event = await _next(source)
                if event is None:
                    raise EngineUnavailable("the engine's stream ended before it began")
                first_events.append(event)
        except BaseException:
            await response.aclose()
            raise
        return response, source, first_events

    async def _send(self, content: bytes) -> httpx.Response:
        model = await self._load(self.policies.ensure)
        response = await self.engine.send("POST", self.path, _for_model(content, model), _HEADERS)
        # The engine was started again and forgot the version; the base is never forgotten.
        if response.status_code == 404 and self.version.number:
            await response.aclose()
            model = await self._load(self.policies.reload)
            response = await self.engine.send("POST", self.path, _for_model(content, model), _HEADERS)
        if not response.is_success:
            try:
                await response.aread()
            except httpx.TransportError as error:
                raise unavailable(error) from error
            finally:
                await response.aclose()
            raise error_of(response)
        return response

    async def _load(self, load: Callable[[Version], Awaitable[str]]) -> str:
        try:
            return await load(self.version)
        except EngineUnavailable:
            raise
        except EngineError as error:
            # Whatever the engine has against the folder, the client did nothing wrong.
            raise EngineError(503, f"policy version {self.version.number} can't be loaded: {error.message}") from error

    async def _is_down(self, error: EngineError) -> bool:
        """Return whether an error means that the engine is gone: a vLLM whose core died still answers, with 500."""
        if isinstance(error, EngineUnavailable):
            # An engine that took too long is at work; asked again, it would have the same work twice.
            return not error.timed_out
        return error.status >= 500 and not await self.engine.health()


async def _next(source: AsyncIterator[bytes]) -> Event | None:
    """The next event; `None` at `[DONE]` or when the stream is over.

    Raises:
        EngineError: If the stream breaks, or its next event is an error or nonsense.
    """
    try:
        raw = await anext(source, None)
        return None if raw is None or raw == DONE else _read_event(raw)
    except httpx.TransportError as error:
        raise unavailable(error) from error
    except ValueError as error:
        raise EngineError(502, f"the engine's stream is broken: {error}") from error


def _for_model(content: bytes, model: str) -> bytes:
    """A request that names no model, for a model."""
    # A long conversation is encoded once, though a second attempt may go to another name.
    return b'{"model":' + json.dumps(model).encode() + b"," + content.removeprefix(b"{")


def _parse(raw: bytes) -> object:
    """JSON as engines write it: a NaN or an infinity is read as null, a value that is not there."""
    return json.loads(raw, parse_constant=lambda name: None)


def _read_event(raw: bytes) -> Event:
    event = _parse(raw)
    if not isinstance(event, dict):
        raise ValueError("an event is not an object")
    if event.get("error"):
        error = event["error"] if isinstance(event["error"], dict) else {"message": str(event["error"])}
        code = error.get("code")
        # vLLM puts the HTTP status into `code`, OpenAI a word.
        status = code if isinstance(code, int) and 400 <= code <= 599 else 502
        raise EngineError(status, str(error.get("message") or "the engine failed"), error)
    return _with_known_reasons(event)


def _with_known_reasons(event: Event) -> Event:
    """Tell why a reply ended in OpenAI's words: vLLM's `repetition` is a cut, for which clients know `length`."""
    for choice in event.get("choices") or ():
        if isinstance(choice, dict) and choice.get("finish_reason") == "repetition":
            choice["finish_reason"] = "length"
    return event
