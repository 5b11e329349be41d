"""One request's dealings with the engine: under one policy version, and patient while that costs nobody.

Until the engine has sent something, an engine that is down (or was restarted and forgot its adapters) is waited
for, with back-off and for a bounded time. From the first event on a failure is final: a second attempt would
sample another reply.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from clawrl_trl.engines.client import EngineClient, EngineError, EngineUnavailable, error_of, unavailable
from clawrl_trl.gateway import stream
from clawrl_trl.gateway.policies import Policies, Version

T = TypeVar("T")

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 2.0

_HEADERS = {"content-type": "application/json", "accept": "*/*", "accept-encoding": "identity"}


@dataclass(frozen=True)
class Upstream:
    """The engine, as one request uses it.

    Args:
        engine (`EngineClient`): The engine.
        policies (`Policies`): Makes sure that the version is loaded.
        version (`Version`): The policy version the request runs under.
        path (`str`): The endpoint.
        patience_s (`float`): How long to wait for an engine that can't be reached.
    """

    engine: EngineClient
    policies: Policies
    version: Version
    path: str
    patience_s: float

    async def whole(self, content: bytes) -> dict[str, Any]:
        """The engine's whole reply.

        Raises:
            EngineError: If there is none; `EngineUnavailable` when the patience is over.
        """
        return await self._patiently(lambda: self._ask(content))

    async def events(self, content: bytes) -> AsyncGenerator[dict[str, Any]]:
        """The events of the engine's stream, up to `[DONE]`; closing this cancels the generation.

        Raises:
            EngineError: If there are none, or the engine fails in between.
        """
        response, source, raw = await self._patiently(lambda: self._open(content))
        try:
            while raw is not None and raw != b"[DONE]":
                yield _event(raw)
                raw = await anext(source, None)
        except httpx.TransportError as error:
            raise unavailable(error) from error
        except ValueError as error:
            raise EngineError(502, f"the engine's stream is broken: {error}") from error
        finally:
            await response.aclose()

    async def _ask(self, content: bytes) -> dict[str, Any]:
        response = await self._send(content)
        try:
            reply = _parsed(await response.aread())
        except httpx.TransportError as error:
            raise unavailable(error) from error
        except ValueError as error:
            raise EngineError(502, "the engine's reply is not JSON") from error
        finally:
            await response.aclose()
        if not isinstance(reply, dict) or not isinstance(reply.get("choices"), list):
            raise EngineError(502, "the engine's reply has no choices")
        return reply

    async def _open(self, content: bytes) -> tuple[httpx.Response, AsyncIterator[bytes], bytes | None]:
        response = await self._send(content)
        try:
            source = stream.events(response.aiter_bytes())
            first = await anext(source, None)
            if first is None:
                raise EngineUnavailable("the engine's stream ended before it began")
        except httpx.TransportError as error:
            await response.aclose()
            raise unavailable(error) from error
        except BaseException:
            await response.aclose()
            raise
        return response, source, first

    async def _send(self, content: bytes) -> httpx.Response:
        await self._load(self.policies.ensure)
        response = await self.engine.send("POST", self.path, content, _HEADERS)
        if response.status_code == 404 and self.version.number:
            await response.aclose()
            await self._load(self.policies.reload)
            response = await self.engine.send("POST", self.path, content, _HEADERS)
        if not response.is_success:
            try:
                await response.aread()
            except httpx.TransportError as error:
                raise unavailable(error) from error
            finally:
                await response.aclose()
            raise error_of(response)
        return response

    async def _load(self, load: Callable[[Version], Awaitable[None]]) -> None:
        try:
            await load(self.version)
        except EngineUnavailable:
            raise
        except EngineError as error:
            # Whatever the engine has against the folder, the client did nothing wrong.
            raise EngineError(503, f"policy version {self.version.number} can't be loaded: {error.message}") from error

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        deadline = time.monotonic() + self.patience_s
        delay = FIRST_DELAY_S
        while True:
            try:
                return await attempt()
            except EngineUnavailable as error:
                if error.timed_out or time.monotonic() + delay > deadline:
                    raise
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY_S)


def _parsed(raw: bytes) -> Any:
    """JSON as engines write it: a NaN or an infinity is read as null, a value that is not there."""
    return json.loads(raw, parse_constant=lambda name: None)


def _event(raw: bytes) -> dict[str, Any]:
    event = _parsed(raw)
    if not isinstance(event, dict):
        raise ValueError("an event is not an object")
    if event.get("error"):
        error = event["error"] if isinstance(event["error"], dict) else {"message": str(event["error"])}
        code = error.get("code")
        status = code if isinstance(code, int) and 400 <= code <= 599 else 502
        raise EngineError(status, str(error.get("message") or "the engine failed"), error)
    return event
