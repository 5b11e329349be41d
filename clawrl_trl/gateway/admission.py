"""Admission of a request: its key, its body within bounds, and a check of what the gateway relies on.

Everything that is cheap to refuse is refused here, before a long request costs anybody anything.
"""

from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel

from clawrl_trl.gateway import body
from clawrl_trl.gateway.media import check_media
from clawrl_trl.gateway.requests import check_schema
from clawrl_trl.gateway.service import Gateway
from clawrl_trl.gateway.sessions.incoming import IncomingRequest
from clawrl_trl.gateway.wire import Wire

S = TypeVar("S", bound=BaseModel)


async def admit_request(http: Request, schema: type[BaseModel], wire: Wire) -> IncomingRequest:
    """Read and check a request to the model.

    Args:
        http (`Request`): As it came over HTTP.
        schema (`type[BaseModel]`): What its body must look like.
        wire (`Wire`): The endpoint whose reply it gets.

    Raises:
        ApiError: 401 without a valid key, 413 for a body that is too long, 408 for one that comes too slowly, 400 for
            one that is wrong or names an address that the engine may not fetch.
    """
    gateway: Gateway = http.app.state.gateway
    headers = dict(http.headers)
    # The key first: nobody without one may have a body read, let alone parsed.
    owner = gateway.keys.chat_owner(headers)
    raw = await body.read(http, await gateway.body_limit(http.headers.get("content-length")))
    content = await body.parse_beside(raw)
    check_schema(schema, content)
    check_media(content, gateway.settings.media_domains)
    return IncomingRequest(wire, owner, headers, content, http.scope.get("path_session"), len(raw))


async def admit_report(http: Request, schema: type[S]) -> tuple[S, str | None]:
    """Read and check what is reported on turns: feedback, or the outcomes of episodes.

    Args:
        http (`Request`): As it came over HTTP.
        schema (`type[S]`): What its body must look like.

    Returns:
        The report, and the owner whose turns it may be about; `None` for everybody's.

    Raises:
        ApiError: As `admit_request`.
    """
    gateway: Gateway = http.app.state.gateway
    owner = gateway.keys.feedback_owner(dict(http.headers))
    # No prompt: the bound is that of the settings, whatever the engine can read.
    content = await body.read_json(http, gateway.settings.max_body_mb * 2**20)
    return check_schema(schema, content), owner
