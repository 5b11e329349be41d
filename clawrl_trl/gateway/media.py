"""Addresses of images, sounds, videos and files in messages: which of them an engine may be asked to fetch.

An engine that fetches what a client names reaches whatever its machine can reach. So content comes with the request
(`data:` URLs), or from a domain that the run's settings name. This holds for every API and every engine.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from clawrl_trl.gateway.errors import ApiError, invalid

_CONVERSATIONS = ("messages", "input", "query", "queries", "documents", "data_1", "data_2", "text_1", "text_2")
"""Fields of a body that hold messages, items, or content parts."""

_NESTED = ("content", "output")
"""Fields of a message, an item or a tool's result that hold content parts."""

_ADDRESSES = frozenset(
    {
        "audio",
        "audio_embeds",
        "audio_url",
        "document",
        "file",
        "file_data",
        "file_url",
        "image",
        "image_embeds",
        "image_url",
        "input_image",
        "source",
        "video",
        "video_url",
    }
)
"""Fields of a content part that are an address, or an object with one."""

_WEB = re.compile(r"https?://(?P<host>[a-z0-9.-]+)(?::\d{1,5})?(?:[/?#][^\s\\]*)?", re.IGNORECASE)
_SCHEME = re.compile(r"[\s\x00-\x1f]*[a-z][a-z0-9+.-]*:|[\s\x00-\x1f]*//", re.IGNORECASE)


def check_media(body: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Refuse addresses that an engine may not fetch.

    Args:
        body (`Mapping`): A request, in any API's words.
        allowed (`Collection[str]`): Domains that may be fetched from, in lower case.

    Raises:
        ApiError: 400 that names the place and the remedy.
    """
    for field in _CONVERSATIONS:
        for where, address in _find_addresses(body.get(field), field):
            if not _may_fetch(address, allowed):
                raise _make_refusal(where, address)


def _find_addresses(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Every address in messages or parts, with its place."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _find_addresses(item, f"{where}.{index}")
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in _NESTED:
                yield from _find_addresses(item, f"{where}.{name}")
            elif name in _ADDRESSES:
                yield from _find_part_addresses(item, f"{where}.{name}")


def _find_part_addresses(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        # Other fields may hold the content itself (base64), which has no scheme.
        if where.endswith("url") or _SCHEME.match(value):
            yield where, value
    elif isinstance(value, dict):
        for name, item in value.items():
            if name == "url" or name in _ADDRESSES or name in _NESTED:
                yield from _find_part_addresses(item, f"{where}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _find_part_addresses(item, f"{where}.{index}")


def _may_fetch(address: str, allowed: Collection[str]) -> bool:
    if address[:5].lower() == "data:":
        return True
    # Stricter than a URL may be: no user, no backslash, no space, on which parsers disagree about the host.
    web = _WEB.fullmatch(address)
    return web is not None and web["host"].lower() in allowed


def _make_refusal(where: str, address: str) -> ApiError:
    if _WEB.match(address):
        remedy = "send it as a data: URL, or name its domain in --allowed_media_domains"
    else:
        remedy = "only data: URLs, and http(s) URLs of --allowed_media_domains, are taken"
    return invalid(f"{where}: {address[:100]!r} is not fetched: {remedy}.", param=where, code="unsupported_value")
