"""Asking an engine as the gateway asks it, and reading the answer with the gateway's own eyes.

The gateway's `Capture` decides what becomes training data, so the doctor reads replies with it: what it finds
wanting here would be untrainable there, for the same reason and in the same words.
"""

import json
from collections.abc import Mapping
from typing import Any

import httpx

from clawrl_trl.engines.client import EngineClient, EngineError, encode, error_of, unavailable
from clawrl_trl.gateway import sse
from clawrl_trl.gateway.capture import Capture, Choice
from clawrl_trl.gateway.sampling import PLAIN

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}


async def call(engine: EngineClient, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """The JSON that a route answers with.

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


async def chat(engine: EngineClient, body: Mapping[str, Any], *, stream: bool = False) -> Choice:
    """The first choice of a chat completion, with everything that training needs asked for.

    Args:
        engine: The engine.
        body: The request; sampling it leaves open is plain.
        stream: Whether the reply is streamed.

    Raises:
        EngineError: If the engine refuses or breaks off.
    """
    wanted = {"logprobs": True, "top_logprobs": 0, "return_token_ids": True}
    return await _captured(engine, CHAT, {**PLAIN, **wanted, **body}, stream)


async def completion(engine: EngineClient, body: Mapping[str, Any]) -> Choice:
    """The first choice of a text completion, likewise; see `chat`."""
    return await _captured(engine, COMPLETIONS, {**PLAIN, "logprobs": 0, "return_token_ids": True, **body}, False)


async def _captured(engine: EngineClient, path: str, body: dict[str, Any], stream: bool) -> Choice:
    capture = Capture()
    if not stream:
        capture.take(await call(engine, "POST", path, {**body, "stream": False}))
    else:
        options = {"include_usage": True, "continuous_usage_stats": True}
        async for event in _events(engine, path, {**body, "stream": True, "stream_options": options}):
            capture.take(event)
    choices = capture.settle()
    if not choices:
        raise EngineError(502, "the reply has no choices")
    return choices[0]


async def _events(engine: EngineClient, path: str, body: Mapping[str, Any]) -> Any:
    response = await engine.send("POST", path, encode(body), _HEADERS)
    try:
        if not response.is_success:
            await response.aread()
            raise error_of(response)
        async for raw in sse.events(response.aiter_bytes()):
            if raw == b"[DONE]":
                return
            yield _event(raw)
    except httpx.TransportError as error:
        raise unavailable(error) from error
    finally:
        await response.aclose()


def _event(raw: bytes) -> dict[str, Any]:
    try:
        event = json.loads(raw)
    except ValueError:
        raise EngineError(502, "an event of the stream is not JSON") from None
    if not isinstance(event, dict) or event.get("error"):
        raise EngineError(502, f"the stream broke off: {str(event)[:200]}")
    return event
