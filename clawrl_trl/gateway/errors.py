"""Errors as an OpenAI client expects them, or an Anthropic client where one is speaking.

Every refusal of the gateway, whoever raised it, leaves as `{"error": {message, type, param, code}}` (Anthropic:
`{"type": "error", "error": {type, message}}`) with the status that fits. A user's mistake is never a 500 and never
a traceback; a fault of ours is a 500 that names nothing from inside, and its traceback goes to the log.
"""

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from clawrl_trl.engines.client import EngineError, EngineUnavailable
from clawrl_trl.ledger.errors import LedgerError, LedgerWriteError

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 5

_ANTHROPIC_PATH = re.compile(r"(?:/s/[^/]+)?/v1/messages(?:/.*)?", re.DOTALL)
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """A refusal with everything an OpenAI client wants to know about it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.error = {"message": message, "type": type or type_of(status), "param": param, "code": code}

    def response(self, *, anthropic: bool = False) -> Response:
        """The whole answer, in the shape of OpenAI's or Anthropic's errors."""
        shaped = anthropic_error(self.status, str(self.error["message"])) if anthropic else {"error": self.error}
        return JSONResponse(shaped, self.status, headers=self.headers)

    def event(self) -> bytes:
        """The same as an event in a stream that has begun."""
        return b"data: " + json.dumps({"error": {**self.error, "status": self.status}}).encode() + b"\n\n"


def anthropic_error(status: int, message: str) -> dict[str, Any]:
    """An error as Anthropic's API gives it, in an answer or as an event of a stream."""
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def speaks_anthropic(path: str, headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from a client of Anthropic's API."""
    return "anthropic-version" in headers or _ANTHROPIC_PATH.fullmatch(path) is not None


def type_of(status: int) -> str:
    """OpenAI's name for an error of this status."""
    names = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    if status in names:
        return names[status]
    return "invalid_request_error" if status < 500 else "server_error"


def invalid(message: str, param: str | None = None, status: int = 400, code: str | None = None) -> ApiError:
    """A request that can't be served as it is."""
    return ApiError(status, message, type="invalid_request_error", param=param, code=code)


def too_many(under_way: int) -> ApiError:
    """No more may wait: engines other than the embedded one would let them wait without end."""
    return ApiError(
        429,
        f"{under_way} requests are under way already; try again shortly.",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def of_engine(error: EngineError) -> ApiError:
    """Return an engine's error in OpenAI's shape: its status and message are passed on."""
    if isinstance(error, EngineUnavailable):
        if error.timed_out:
            return ApiError(504, "The engine took too long to answer.", code="engine_timeout")
        return ApiError(
            503,
            "The engine can't be reached; try again shortly.",
            code="engine_unavailable",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )
    # An engine's refusal that is no error to HTTP would look like success to the client.
    status = error.status if 400 <= error.status <= 599 else 502
    if status in (401, 403):
        # The gateway's own key was refused; the client's was fine.
        return ApiError(502, "The engine refused the gateway's key: check CLAWRL_ENGINE_KEY.", code="engine_key")
    headers = {"Retry-After": error.headers["retry-after"]} if "retry-after" in error.headers else {}
    if status == 429 and not headers:
        headers = {"Retry-After": str(RETRY_AFTER_S)}
    kind, param, code = (error.body.get(name) for name in ("type", "param", "code"))
    return ApiError(
        status,
        error.message,
        # vLLM puts the name of an exception class here (BadRequestError), which no OpenAI client knows.
        type=kind if isinstance(kind, str) and not kind[:1].isupper() else None,
        param=param if isinstance(param, str) else None,
        code=code if isinstance(code, str) else None,
        headers=headers,
    )


def of_ledger(error: LedgerError) -> ApiError:
    """A reply that could not be recorded is not handed out as finished."""
    writes = isinstance(error, LedgerWriteError)
    return ApiError(
        503,
        f"The reply could not be recorded: {error}" if writes else str(error),
        code="ledger_write_failed" if writes else "ledger_unavailable",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def any_error(error: BaseException) -> ApiError:
    """The refusal that fits an exception; a fault of ours is logged and becomes a bare 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineError):
        return of_engine(error)
    if isinstance(error, LedgerError):
        return of_ledger(error)
    logger.error("unexpected fault in the gateway", exc_info=error)
    return ApiError(500, "The gateway failed to handle this request; its log has the details.", code="internal_error")


def install(app: FastAPI) -> None:
    """Make every error of the app leave in the shape that its client expects."""

    def shaped(request: Request, error: ApiError) -> Response:
        return error.response(anthropic=speaks_anthropic(request.url.path, request.headers))

    async def ours(request: Request, error: Exception) -> Response:
        return shaped(request, any_error(error))

    async def routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            unknown = f"Unknown route {request.method} {request.url.path}"
            return shaped(request, invalid(unknown, status=404, code="unknown_url"))
        if error.status_code == 405:
            refusal = invalid(f"{request.method} is not allowed on {request.url.path}", status=405)
            refusal.headers.update(error.headers or {})
            return shaped(request, refusal)
        return shaped(request, ApiError(error.status_code, str(error.detail), headers=error.headers))

    async def gone(request: Request, error: Exception) -> Response:
        # Nobody reads it; the access log tells a client that left from a fault of ours.
        return Response(status_code=499)

    for kind in (ApiError, EngineError, LedgerError, Exception):
        app.add_exception_handler(kind, ours)
    app.add_exception_handler(HTTPException, routing)
    app.add_exception_handler(ClientDisconnect, gone)


def shape(status: int, message: str) -> dict[str, Any]:
    """A bare error object, for places outside a request handler."""
    return {"error": ApiError(status, message).error}
