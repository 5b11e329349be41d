"""Middleware of every request: the browser guard, the session in the URL, and the access log.

`/s/<session>/v1/...` is served like `/v1/...`; the session's name travels on in the scope. The log has a line a
request with method, path, status and time, and never a body, a query or a header.
"""

import logging
import re
import time
from collections.abc import Collection
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clawrl_trl.gateway.auth import Keys
from clawrl_trl.gateway.errors import ApiError, invalid, speaks_anthropic

logger = logging.getLogger("clawrl_trl.gateway.access")

MAX_URL = 8192
"""Longest path and query, bytes."""

_SESSION_PATH = re.compile(rb"/s/([^/]+)(/v1/.*)", re.DOTALL)


class GatewayMiddleware:
    """Outermost layer of the app: guards against browsers, reads the session in the URL, writes the access log.

    Args:
        app (`ASGIApp`): What is behind it.
        keys (`Keys`): Guard against browsers when there is no chat key.
        host (`str`): The address the gateway is bound to.
        origins (`Collection[str]`, *optional*): Origins of pages that may use the gateway, besides its own.
    """

    def __init__(self, app: ASGIApp, keys: Keys, host: str, origins: Collection[str] = ()) -> None:
        self._app, self._keys, self._host, self._origins = app, keys, host, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        started, status = time.monotonic(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        headers = Headers(scope=scope)
        try:
            self._keys.guard(headers, scope["scheme"], self._host, self._origins)
            await self._app(_check_url(scope), receive, watched)
        # Raised outside of the app, whose handlers of errors are not reached from here.
        except ApiError as error:
            refusal = error.response(anthropic=speaks_anthropic(scope["path"], headers))
            await refusal(scope, receive, watched)
        finally:
            elapsed_ms = (time.monotonic() - started) * 1000
            logger.info("%s %s %d %.0fms", scope["method"], _hide_session(scope["path"]), status, elapsed_ms)


def _read_session(scope: Scope) -> Scope:
    # The raw path: in the decoded one a `%2F` in the name of a session would end it.
    match = _SESSION_PATH.fullmatch(scope.get("raw_path") or b"")
    if match is None:
        return scope
    session, rest = match.groups()
    try:
        name = unquote(session.decode("ascii"), errors="strict")
        path = unquote(rest.decode("ascii"), errors="strict")
    except UnicodeDecodeError:
        raise invalid("The session in the URL is not valid UTF-8.") from None
    return {**scope, "path": path, "raw_path": rest, "path_session": name.replace("\0", "\ufffd")}


def _check_url(scope: Scope) -> Scope:
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_URL:
        raise invalid(f"The URL is longer than {MAX_URL:,} bytes.", status=414, code="url_too_long")
    scope = _read_session(scope)
    # PostgreSQL refuses NUL in a text, and a path names models and responses.
    if "\0" in scope["path"]:
        raise invalid("The URL holds a NUL character (%00).")
    return scope


def _hide_session(path: str) -> str:
    """A path that can't forge a log line, and does not name a session."""
    return re.sub(r"^/s/[^/]+", "/s/*", path).encode("unicode_escape").decode("ascii")[:200]
