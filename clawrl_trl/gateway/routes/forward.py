"""Everything else the engine offers, passed on as it is.

A request is forwarded as it is, but for the key (the engine's, never the client's) and a model name that means
something here only. JSON is read and written anew, so that the engine reads what was checked here: no template and no
address that the engine would fetch. What changes the engine for everybody (adapters, weights, sleeping) is for the
administrator. Nothing that passes here is captured.
"""

import json
from contextlib import ExitStack
from urllib.parse import quote

import httpx
from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from clawrl_trl.engines.client import EngineError, error_of
from clawrl_trl.gateway import body
from clawrl_trl.gateway.errors import invalid
from clawrl_trl.gateway.media import check_media
from clawrl_trl.gateway.policies.version import Version
from clawrl_trl.gateway.requests import ForwardedRequest, check_schema
from clawrl_trl.gateway.service import Gateway

router = APIRouter()

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]

OURS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/models",
    "/v1/feedback",
    "/v1/admin/status",
)
"""Paths that the gateway answers itself; with another method they are refused, not forwarded."""

OURS_BELOW = ("/v1/admin/", "/v1/chat/completions/", "/v1/completions/", "/v1/responses/", "/v1/messages/")
"""Nothing below these is forwarded: an engine's own answer would be neither captured nor about what is stored."""

ADMINISTRATIVE = frozenset(
    {
        "load_lora_adapter",
        "unload_lora_adapter",
        "policy",
        "pause",
        "resume",
        "is_paused",
        "sleep",
        "wake_up",
        "is_sleeping",
        "collective_rpc",
        "init_weight_transfer_engine",
        "start_weight_update",
        "update_weights",
        "finish_weight_update",
        "update_weight_version",
        "reload_weights",
        "reset_prefix_cache",
        "reset_mm_cache",
        "reset_encoder_cache",
        "scale_elastic_ep",
        "server_info",
        "abort_requests",
        "start_profile",
        "stop_profile",
    }
)
"""Segments of engine paths that need the admin scope."""

_NOT_FORWARDED = frozenset(
    {
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "expect",
        "host",
        "keep-alive",
        "origin",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-api-key",
    }
)
_NOT_RETURNED = frozenset({"connection", "keep-alive", "server", "date", "trailer", "transfer-encoding", "upgrade"})


@router.api_route("/v1/{path:path}", methods=METHODS)
@router.api_route("/tokenize", methods=METHODS)
@router.api_route("/detokenize", methods=METHODS)
async def forward(request: Request) -> Response:
    """Forward a request to the engine and stream its answer back."""
    gateway: Gateway = request.app.state.gateway
    headers = dict(request.headers)
    path = request.url.path
    if path in OURS:
        raise invalid(f"{request.method} is not allowed on {path}", status=405)
    # Clients resolve dot segments, so a path with them could reach one that is refused here.
    if path.startswith(OURS_BELOW) or any(part in ("", ".", "..") for part in path.split("/")[1:]):
        raise invalid(f"Unknown route {request.method} {path}", status=404, code="unknown_url")
    if ADMINISTRATIVE.intersection(path.split("/")):
        gateway.keys.check_admin(headers, request.client.host if request.client else None)
    else:
        gateway.keys.chat_owner(headers)
    content = await body.read(request, await gateway.body_limit(request.headers.get("content-length", "0")))
    version = None
    if _is_json(request.headers.get("content-type", "")):
        content, version = await _check_body(gateway, content)
    with ExitStack() as lease:
        if version is not None:
            lease.enter_context(gateway.policies.lease(version))
            await gateway.policies.ensure(version)
        query = f"?{request.url.query}" if request.url.query else ""
        # The browser's Origin and cookies are for the gateway; lengths and encodings belong to each connection.
        passed = {name: value for name, value in headers.items() if name not in _NOT_FORWARDED}
        response = await gateway.engine.send(request.method, quote(path) + query, content or None, passed)
        if response.is_error:
            raise await _read_refusal(response)
        return _ForwardedResponse(response, lease.pop_all())


class _ForwardedResponse(StreamingResponse):
    """The engine's answer on its way to the client; holds the lease until it is over, however it ends."""

    def __init__(self, response: httpx.Response, lease: ExitStack) -> None:
        returned = {name: value for name, value in response.headers.items() if name not in _NOT_RETURNED}
        # Raw: the engine's encoding is passed on with the header that names it.
        super().__init__(response.aiter_raw(), response.status_code, headers=returned)
        self._response, self._lease = response, lease

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._lease:
            try:
                await super().__call__(scope, receive, send)
            finally:
                await self._response.aclose()


def _is_json(content_type: str) -> bool:
    """Return whether a server would read a body of this type as JSON; some do so when none is named."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind in ("", "application/json") or kind.endswith("+json")


async def _check_body(gateway: Gateway, content: bytes) -> tuple[bytes, Version | None]:
    """Check a body, and put the engine's name for a policy version in the place of ours where it names a model."""
    if not content:
        return content, None
    parsed = await body.parse_beside(content)
    check_schema(ForwardedRequest, parsed)
    check_media(parsed, gateway.settings.media_domains)
    name = parsed.get("model")
    version = None
    if isinstance(name, str):
        version = gateway.policies.resolve(name)
        parsed["model"] = gateway.policies.engine_name(version)
    return json.dumps(parsed).encode(), version


async def _read_refusal(response: httpx.Response) -> EngineError:
    try:
        await response.aread()
    finally:
        await response.aclose()
    return error_of(response)
