"""`POST /v1/chat/completions` and `POST /v1/completions`: the routes whose replies are captured."""

import asyncio
import contextlib
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from clawrl_trl.gateway import body
from clawrl_trl.gateway.exchange import Exchange
from clawrl_trl.gateway.record import Asked
from clawrl_trl.gateway.requests import check
from clawrl_trl.gateway.service import Gateway
from clawrl_trl.gateway.wire import CHAT, COMPLETIONS, Wire

router = APIRouter()

CLIENT_GONE = 499


@router.post(CHAT.path)
async def chat(request: Request) -> Response:
    """A chat completion, streamed or whole."""
    return await _answer(request, CHAT)


@router.post(COMPLETIONS.path)
async def completions(request: Request) -> Response:
    """A text completion, streamed or whole."""
    return await _answer(request, COMPLETIONS)


class _Stream(StreamingResponse):
    """A stream that tells its exchange when the client has left, even before the first byte."""

    def __init__(self, exchange: Exchange) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **exchange.headers}
        super().__init__(exchange.events(), media_type="text/event-stream", headers=headers)
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._exchange.abandon()


async def _answer(request: Request, wire: Wire) -> Response:
    gateway: Gateway = request.app.state.gateway
    headers = dict(request.headers)
    owner = gateway.keys.chat_owner(headers)
    raw = await body.read(request, gateway.settings.max_body_mb * 2**20)
    content = await body.parsed(raw)
    check(wire.request, content)
    asked = Asked(wire, owner, headers, content, request.scope.get("path_session"))
    exchange = Exchange(gateway, asked, len(raw))
    gateway.spawn(exchange.run(), exchange.abandon)
    if not await _ready(exchange, request):
        return Response(status_code=CLIENT_GONE)
    error = exchange.ready.result()
    if error is not None:
        return error.response()
    if asked.streamed:
        return _Stream(exchange)
    return JSONResponse(exchange.whole, headers=exchange.headers)


async def _ready(exchange: Exchange, request: Request) -> bool:
    """Wait until the answer can begin; `False` if the client left before that."""
    leaving = asyncio.create_task(_disconnected(request))
    either: list[asyncio.Future[Any]] = [exchange.ready, leaving]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        exchange.abandon()
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
