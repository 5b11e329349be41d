"""`POST /v1/chat/completions` and `POST /v1/completions`, and how every captured reply reaches its client.

A request of another API comes here as the chat completion it was translated to, with a `ReplyTranslation` that
translates what comes back. It goes through the same exchange: captured, committed before its last event, cancelled
when its client leaves.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from clawrl_trl.gateway import body, sse
from clawrl_trl.gateway.errors import too_many
from clawrl_trl.gateway.exchange import Exchange
from clawrl_trl.gateway.media import check_media
from clawrl_trl.gateway.record import IncomingRequest
from clawrl_trl.gateway.requests import check
from clawrl_trl.gateway.service import Gateway
from clawrl_trl.gateway.wire import CHAT, COMPLETIONS, Wire
from clawrl_trl.http.body import LARGE_BYTES, run_beside

router = APIRouter()

CLIENT_GONE = 499

Json = dict[str, Any]


class ReplyTranslation(Protocol):
    """A chat completion's reply in the words of another API."""

    def take(self, chunk: Mapping[str, Any]) -> list[Json]:
        """The events that follow from an event of the chat completion."""
        ...

    def end(self) -> list[Json]:
        """The events that end the stream, when the reply is complete."""
        ...

    def fail(self, error: Mapping[str, Any]) -> list[Json]:
        """The events that end the stream, when the reply broke off."""
        ...

    def whole(self, completion: Mapping[str, Any]) -> Json:
        """The whole reply, from a whole chat completion."""
        ...


@router.post(CHAT.path)
async def chat(request: Request) -> Response:
    """A chat completion, streamed or whole."""
    return await _answer(request, CHAT)


@router.post(COMPLETIONS.path)
async def completions(request: Request) -> Response:
    """A text completion, streamed or whole."""
    return await _answer(request, COMPLETIONS)


async def _answer(request: Request, wire: Wire) -> Response:
    gateway: Gateway = request.app.state.gateway
    headers = dict(request.headers)
    owner = gateway.keys.chat_owner(headers)
    raw = await body.read(request, await gateway.body_limit(request.headers.get("content-length")))
    content = await body.parsed(raw)
    check(wire.request, content)
    check_media(content, gateway.settings.media_domains)
    return await answer(
        request, IncomingRequest(wire, owner, headers, content, request.scope.get("path_session")), len(raw)
    )


async def answer(
    request: Request, asked: IncomingRequest, size: int, reply: ReplyTranslation | None = None
) -> Response:
    """Run the exchange of a checked request and answer with what comes of it.

    Args:
        request (`Request`): As it came over HTTP.
        asked (`IncomingRequest`): What it asks.
        size (`int`): Length of its body, bytes.
        reply (`ReplyTranslation`, *optional*): Translates the reply; without one the client gets it as the engine
            gave it.

    Raises:
        ApiError: If there is no reply; 429 if as many requests are under way as may run and wait.
    """
    gateway: Gateway = request.app.state.gateway
    if gateway.in_flight >= gateway.settings.max_running + gateway.settings.max_waiting:
        raise too_many(gateway.in_flight)
    if size >= LARGE_BYTES:
        await gateway.check_length(asked.body)
        await run_beside(size, asked.read)
    exchange = Exchange(gateway, asked)
    gateway.spawn(exchange.run(), exchange.end)
    if not await _ready(exchange, request):
        return Response(status_code=CLIENT_GONE)
    error = exchange.ready.result()
    if error is not None:
        raise error
    if asked.streamed:
        return _Stream(exchange, exchange.events() if reply is None else _translated(exchange.events(), reply))
    return JSONResponse(exchange.whole if reply is None else reply.whole(exchange.whole), headers=exchange.headers)


async def _translated(events: AsyncIterator[bytes], reply: ReplyTranslation) -> AsyncIterator[bytes]:
    """A chat completion's stream as the stream of another API, whose events have names."""
    async for raw in sse.events(events):
        if raw == b"[DONE]":
            told = reply.end()
        else:
            chunk = json.loads(raw)
            told = reply.fail(chunk["error"]) if "error" in chunk else reply.take(chunk)
        for event in told:
            yield b"event: " + event["type"].encode() + b"\n" + sse.encode(event)


class _Stream(StreamingResponse):
    """A stream that tells its exchange when the client has left, even before the first byte."""

    def __init__(self, exchange: Exchange, events: AsyncIterator[bytes]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **exchange.headers}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            self._exchange.end()  # the server stops; the client may still be there
            raise
        except BaseException:
            self._exchange.abandon()
            raise
        self._exchange.abandon()


async def _ready(exchange: Exchange, request: Request) -> bool:
    """Wait until the answer can begin; `False` if the client left before that."""
    leaving = asyncio.create_task(_disconnected(request))
    either: list[asyncio.Future[Any]] = [exchange.ready, leaving]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        exchange.end()
        raise
    finally:
        leaving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leaving
    if not exchange.ready.done():
        exchange.abandon()
    return exchange.ready.done()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
