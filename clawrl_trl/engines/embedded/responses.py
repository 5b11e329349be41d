"""Replies of the engine on their way to clients, streamed or whole.

A request whose client has gone is cancelled within a step, streamed or not.
"""

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from clawrl_trl.engines.embedded.engine import UpdateQueue
from clawrl_trl.engines.embedded.errors import RequestError, error_object
from clawrl_trl.engines.embedded.generation import Generation, Update
from clawrl_trl.engines.embedded.replies import ChatWriter, CompletionWriter, ReplyFailed, ReplyPart
from clawrl_trl.engines.embedded.scheduler import Scheduler
from clawrl_trl.http.disconnect import run_unless_gone
from clawrl_trl.messages import Json


async def respond(
    request: Request, scheduler: Scheduler, writer: ChatWriter | CompletionWriter, queue: UpdateQueue
) -> Response:
    """Run a request's generations, and return its reply: a stream of events, or the whole.

    Args:
        request (`Request`): Watched until its client hangs up.
        scheduler (`Scheduler`): Runs the generations.
        writer (`ChatWriter | CompletionWriter`): Has the generations and writes their reply.
        queue (`UpdateQueue`): Where the generations deliver.

    Raises:
        RequestError: 503 if the engine has stopped decoding.
    """
    if not scheduler.alive:
        raise RequestError("The engine has stopped decoding.", status=503)
    scheduler.submit(writer.generations)
    if writer.body.stream:
        return EventStream(writer, queue)
    try:
        return await run_unless_gone(request, _collect_reply(writer, queue))
    finally:
        # Rows whose client has gone would keep their places in the batch.
        _release(writer.generations)


class EventStream(StreamingResponse):
    """Streams a request's chunks as server-sent events; however it ends, its generations are released."""

    def __init__(self, writer: ChatWriter | CompletionWriter, queue: UpdateQueue) -> None:
        super().__init__(_stream_events(writer, queue), media_type="text/event-stream")
        self._generations = writer.generations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            _release(self._generations)


async def _read_parts(
    writer: ChatWriter | CompletionWriter, queue: UpdateQueue
) -> AsyncIterator[dict[int, ReplyPart]]:
    remaining = len(writer.generations) * writer.body.n
    while remaining:
        parts = writer.read(await queue.take())
        remaining -= sum(part.finish_reason is not None for part in parts.values())
        yield parts


async def _collect_reply(writer: ChatWriter | CompletionWriter, queue: UpdateQueue) -> Response:
    updates: list[Update] = []
    remaining = len(writer.generations) * writer.body.n
    while remaining:
        new = await queue.take()
        updates += new
        remaining -= sum(update.finish_reason is not None for update in new)
    # In a thread: writing a long reply with log-probs would hold up the tokens of all others.
    return await asyncio.to_thread(_write_reply, writer, updates)


def _write_reply(writer: ChatWriter | CompletionWriter, updates: list[Update]) -> Response:
    parts = writer.read(updates)
    return Response(
        encode_json(writer.write_reply([parts[index] for index in sorted(parts)])), media_type="application/json"
    )


async def _stream_events(writer: ChatWriter | CompletionWriter, queue: UpdateQueue) -> AsyncIterator[bytes]:
    has_begun = False
    try:
        async for parts in _read_parts(writer, queue):
            chunks = [writer.write_chunk(index, part) for index, part in parts.items()]
            if isinstance(writer, ChatWriter) and not has_begun:
                chunks.insert(0, writer.write_first_chunk())
            has_begun = True
            yield b"".join(_encode_event(chunk) for chunk in chunks if chunk is not None)
        options = writer.body.stream_options
        if options is not None and options.include_usage:
            yield _encode_event(writer.write_usage_chunk())
    except ReplyFailed as failure:
        yield _encode_event(error_object(str(failure), 500))
    yield b"data: [DONE]\n\n"


def _release(generations: list[Generation]) -> None:
    for generation in generations:
        generation.cancelled = True


def encode_json(content: Json) -> bytes:
    """Encode a JSON body."""
    # "replace": what a client sent comes back in it, and may hold half a surrogate pair.
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _encode_event(content: Json) -> bytes:
    return b"data: " + encode_json(content) + b"\n\n"
