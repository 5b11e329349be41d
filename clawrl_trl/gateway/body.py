"""Reading what a client sent: bounded, decoded, and clean enough for everything behind.

After `read_json` a body is a JSON object of bounded size and depth, with finite numbers, and without the two
kinds of characters that databases and tokenizers choke on (NUL and lone surrogates become U+FFFD).
"""

import re
from typing import Any

from fastapi import Request

from clawrl_trl.gateway.errors import ApiError, invalid
from clawrl_trl.http.body import LARGE_BYTES, BodyTooLarge, decode_json, read_body, run_beside
from clawrl_trl.http.limits import find_excess, find_excess_of_bytes
from clawrl_trl.messages import Json

MAX_DEPTH = 100

_UNSAFE = re.compile("[\x00\ud800-\udfff]")


async def read(request: Request, limit: int) -> bytes:
    """The raw body, refused with 413 as soon as it is known to be longer than `limit` bytes."""
    try:
        return await read_body(request, request.headers.get("content-length"), limit)
    except BodyTooLarge:
        raise _too_large(limit) from None
    except TimeoutError:
        raise ApiError(408, "The body took too long to arrive.") from None


async def read_json(request: Request, limit: int) -> Json:
    """The body as a JSON object.

    Raises:
        ApiError: 413 for too much, 400 for anything that is not a JSON object in UTF-8.
    """
    return await parse_beside(await read(request, limit))


async def parse_beside(raw: bytes) -> Json:
    """`parse`, without holding up the event loop when there is much to parse."""
    if len(raw) < LARGE_BYTES:
        return parse(raw)
    return await run_beside(len(raw), lambda: parse(raw))


def parse(raw: bytes) -> Json:
    """Parse bytes into a JSON object; see `read_json`."""
    # Before it is decoded: objects in memory take many times the bytes that they are written in.
    if reason := find_excess_of_bytes(raw):
        raise invalid(reason)
    try:
        value = decode_json(raw)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError as error:
        raise invalid(f"The body is not valid UTF-8 (byte {error.start}).") from None
    except ValueError as error:
        raise invalid(f"The body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise invalid("The body must be a JSON object.")
    # Before it is cleaned, which walks every item: a body with too many may cost no more than to count them.
    if surplus := find_excess(value):
        param, reason = surplus
        raise invalid(reason, param=param, code="too_many")
    cleaned: Json = _clean(value, MAX_DEPTH)
    return cleaned


def _clean(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value if _is_safe(value) else _UNSAFE.sub("\ufffd", value)
    if isinstance(value, dict | list) and depth == 0:
        raise _too_deep()
    if isinstance(value, dict):
        return {_clean(key, depth): _clean(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        if value and type(value[0]) is int:
            # A prompt of token ids: nothing to clean, and no reason to walk it one by one unless it is mixed.
            return value if all(type(item) is int for item in value) else [_clean(item, depth - 1) for item in value]
        return [_clean(item, depth - 1) for item in value]
    return value


def _is_safe(text: str) -> bool:
    """Return whether nothing of `_UNSAFE` is in a text; a search by pattern takes half a second on the largest."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _too_large(limit: int) -> Exception:
    return invalid(f"The body is larger than {limit // 2**20} MiB.", status=413, code="body_too_large")


def _too_deep() -> Exception:
    return invalid(f"The body is nested deeper than {MAX_DEPTH} levels.")
