"""`POST /v1/chat/completions` and `POST /v1/completions`, and how every captured reply reaches its client.

A request of another API comes here as the chat completion it was translated to, with a `ReplyTranslation` that
translates what comes back. It goes through the same exchange: captured, committed before its last event, cancelled
when its client leaves.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Protocol

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from clawrl_trl.gateway.admission import admit_request
from clawrl_trl.gateway.errors import ApiError, too_many
from clawrl_trl.gateway.exchange import Exchange
from clawrl_trl.gateway.requests import ChatRequest, CompletionRequest
from clawrl_trl.gateway.service import Gateway
from clawrl_trl.gateway.sessions.incoming import IncomingRequest
from clawrl_trl.gateway.wire import CHAT, COMPLETIONS
from clawrl_trl.http import sse
from clawrl_trl.http.body import LARGE_BYTES, run_beside
from clawrl_trl.messages import Json

router = APIRouter()

CLIENT_GONE = 499


class ReplyTranslation(Protocol):
    """Translation of a chat completion's reply to another API."""

    def take(self, chunk: Json) -> list[Json]:
        """The events that follow from an event of the chat completion."""
        ...

    def end(self) -> list[Json]:
        """The events that end the stream, when the reply is complete."""
        ...

    def fail(self, error: Json) -> list[Json]:
        """The events that end the stream, when the reply broke off."""
        ...

    def convert(self, completion: Json) -> Json:
        """The whole reply, from a whole chat completion."""
        ...


@router.post(CHAT.path)
async def chat(http: Request) -> Response:
    """A chat completion, streamed or whole."""
    return await answer(http, await admit_request(http, ChatRequest, CHAT))


@router.post(COMPLETIONS.path)
async def completions(http: Request) -> Response:
    """A text completion, streamed or whole."""
    return await answer(http, await admit_request(http, CompletionRequest, COMPLETIONS))


async def answer(http: Request, request: IncomingRequest, reply: ReplyTranslation | None = None) -> Response:
    """Run the exchange of an admitted request and answer with what comes of it.

    Args:
        http (`Request`): As it came over HTTP; tells when the client leaves.
        request (`IncomingRequest`): The request.
        reply (`ReplyTranslation`, *optional*): Translates the reply; without one the client gets it as the engine
            gave it.

    Raises:
        ApiError: If there is no reply; 429 if as many requests are under way as may run and wait.
    """
    gateway: Gateway = http.app.state.gateway
    # Before it is placed: a refused request must leave no trace in its session.
    if gateway.in_flight >= gateway.settings.max_running + gateway.settings.max_waiting:
        raise too_many(gateway.in_flight)
    if request.size >= LARGE_BYTES:
        # The length first: a text that fits no context is refused before its messages are read and digested.
        await gateway.check_length(request.body)
        await run_beside(request.size, request.read)
    exchange = Exchange(gateway, request)
    # A task of the gateway and not of this request, which ends when its client leaves.
    gateway.spawn(exchange.run(), exchange.end)
    if not await _wait_until_ready(exchange, http):
        return Response(status_code=CLIENT_GONE)
    error = exchange.ready.result()
    if error is not None:
        raise error
    if request.is_streamed:
        return _Stream(exchange, exchange.events() if reply is None else _translate(exchange.events(), reply))
    return ReplyResponse(exchange.reply if reply is None else reply.convert(exchange.reply), headers=exchange.headers)


class ReplyResponse(JSONResponse):
    """A whole reply, whose text may hold half a surrogate pair: by now it is kept, and must not fail."""

    def render(self, content: Any) -> bytes:
        """The body, with a question mark in its place as in streams."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")


async def _translate(events: AsyncIterator[bytes], reply: ReplyTranslation) -> AsyncIterator[bytes]:
    """A chat completion's stream as the stream of another API, whose events have names."""
    async for raw in sse.iterate_events(events):
        if raw == b"[DONE]":
            translated = reply.end()
        else:
            chunk = json.loads(raw)
            translated = reply.fail(chunk["error"]) if "error" in chunk else reply.take(chunk)
        for event in translated:
            yield b"event: " + event["type"].encode() + b"\n" + sse.encode(event)


class _Stream(StreamingResponse):
    """A stream that tells its exchange when the client has left, even before the first byte."""

    def __init__(self, exchange: Exchange, events: AsyncIterator[bytes]) -> None:
        # Proxies such as nginx would hold events back to fill a buffer.
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
        # Also after a whole stream, where it does nothing: Starlette returns alike when the client hung up.
        self._exchange.abandon()


async def _wait_until_ready(exchange: Exchange, http: Request) -> bool:
    """Wait until the answer can begin; `False` if the client left before that."""
    leaving = asyncio.create_task(_wait_for_disconnect(http))
    either: list[asyncio.Future[ApiError | None] | asyncio.Task[None]] = [exchange.ready, leaving]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        exchange.end()
        raise
    finally:
        leaving.cancel()
        # Awaited, so that nothing else is receiving when the stream begins to listen for a disconnect.
        with contextlib.suppress(asyncio.CancelledError):
            await leaving
    if not exchange.ready.done():
        exchange.abandon()
    return exchange.ready.done()


async def _wait_for_disconnect(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
