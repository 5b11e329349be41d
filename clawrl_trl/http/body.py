"""Reading the body of an HTTP request within bounds of size and time, and working on it beside the event loop."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec

T = TypeVar("T")

READ_TIMEOUT_S = 120.0
SILENCE_TIMEOUT_S = 20.0
"""Longest wait for the next bytes of a body."""

LARGE_BYTES = 2**16
"""Work on less is done on the event loop's own threads at once; on more, in one line after the other."""


class BodyTooLarge(Exception):
    """The body is longer than allowed."""


class Streamed(Protocol):
    """A request whose body arrives in parts (starlette's)."""

    def stream(self) -> AsyncIterator[bytes]: ...


async def read_body(request: Streamed, declared: str | None, limit: int) -> bytes:
    """Return the raw body.

    Args:
        request (`Streamed`): The request.
        declared (`str`, *optional*): Its Content-Length header.
        limit (`int`): Most bytes to take.

    Raises:
        BodyTooLarge: As soon as the body is known to be longer than `limit`.
        TimeoutError: If it takes longer than `READ_TIMEOUT_S`, or pauses for `SILENCE_TIMEOUT_S`.
    """
    # Refused before a byte of it is kept in memory.
    if declared and declared.isdecimal() and int(declared) > limit:
        raise BodyTooLarge
    parts: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    end = loop.time() + READ_TIMEOUT_S
    async with asyncio.timeout(SILENCE_TIMEOUT_S) as patience:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise BodyTooLarge
            parts.append(part)
            # Bytes that trickle in renew the limit of a pause, never that of the whole body.
            patience.reschedule(min(loop.time() + SILENCE_TIMEOUT_S, end))
    return b"".join(parts)


_large_work = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-request")


async def run_beside(size: int, function: Callable[[], T]) -> T:
    """Run work on a request of `size` bytes or characters on a thread and return its result.

    Large requests share one thread, so that however many there are, small ones find a free one.
    """
    if size < LARGE_BYTES:
        return await asyncio.to_thread(function)
    return await asyncio.get_running_loop().run_in_executor(_large_work, function)


def decode_json(raw: bytes) -> Any:
    """Decode JSON in UTF-8, quickly: a decoder lets no other thread run, and json takes 70 ms for 31 MB of text.

    Lone surrogates, which msgspec does not read, are decoded by json.

    Raises:
        ValueError: If it is no JSON; so is a number that is not finite. `UnicodeDecodeError` if it is not UTF-8.
        RecursionError: If it is nested too deep for this process.
    """
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, ValueError):
        return json.loads(raw.decode(), parse_constant=_refuse_constant, parse_float=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is out of range")
    return number


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")
