"""Requests to an engine as the gateway sends them, and replies as the gateway reads them.

The gateway's `Capture` decides what becomes training data, so the doctor reads replies with it: a reply that it
refuses here would be untrainable there, for the same reason and in the same words.
"""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from clawrl_trl.engines.client import EngineClient, EngineError, encode, error_of, unavailable
from clawrl_trl.gateway.capture import Capture, Choice
from clawrl_trl.gateway.sampling import PLAIN
from clawrl_trl.http import sse
from clawrl_trl.messages import Json

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}


async def request_json(engine: EngineClient, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
    """Request the JSON that a route answers with.

    Raises:
        EngineError: If it refuses, can't be reached, or sends no JSON.
    """
    response = await engine.send(method, path, None if body is None else encode(body), _HEADERS)
    try:
        content = await response.aread()
    except httpx.TransportError as error:
        raise unavailable(error) from error
    finally:
        await response.aclose()
    if not response.is_success:
        raise error_of(response)
    try:
        return json.loads(content)
    except ValueError:
        raise EngineError(502, f"{path} answered with something that is not JSON") from None


async def request_chat(engine: EngineClient, body: Mapping[str, object], *, stream: bool = False) -> Choice:
    """Request a chat completion and return its first choice, with everything that training needs asked for.

    Args:
        engine: The engine.
        body: The request; sampling it leaves open is plain.
        stream: Whether the reply is streamed.

    Raises:
        EngineError: If the engine refuses or breaks off.
    """
    extras = {"logprobs": True, "top_logprobs": 0, "return_token_ids": True}
    return await _request_choice(engine, CHAT, {**PLAIN, **extras, **body}, stream)


async def request_completion(engine: EngineClient, body: Mapping[str, object]) -> Choice:
    """Request a text completion and return its first choice; see `request_chat`."""
    return await _request_choice(
        engine, COMPLETIONS, {**PLAIN, "logprobs": 0, "return_token_ids": True, **body}, False
    )


async def _request_choice(engine: EngineClient, path: str, body: Json, stream: bool) -> Choice:
    capture = Capture()
    if not stream:
        capture.take(await request_json(engine, "POST", path, {**body, "stream": False}))
    else:
        options = {"include_usage": True, "continuous_usage_stats": True}
        async for event in _read_events(engine, path, {**body, "stream": True, "stream_options": options}):
            capture.take(event)
    choices = capture.settle()
    if not choices:
        raise EngineError(502, "the reply has no choices")
    return choices[0]


async def _read_events(engine: EngineClient, path: str, body: Mapping[str, object]) -> AsyncIterator[Json]:
    response = await engine.send("POST", path, encode(body), _HEADERS)
    try:
        if not response.is_success:
            await response.aread()
            raise error_of(response)
        async for raw in sse.iterate_events(response.aiter_bytes()):
            if raw == b"[DONE]":
                return
            yield _parse_event(raw)
    except httpx.TransportError as error:
        raise unavailable(error) from error
    finally:
        await response.aclose()


def _parse_event(raw: bytes) -> Json:
    try:
        event = json.loads(raw)
    except ValueError:
        raise EngineError(502, "an event of the stream is not JSON") from None
    if not isinstance(event, dict) or event.get("error"):
        raise EngineError(502, f"the stream broke off: {str(event)[:200]}")
    return event
