"""Errors of calls to an engine.

Two kinds are told apart, because different things follow: the engine answered with a refusal or nonsense, or no
(whole) answer came.
"""

import json
from collections.abc import Mapping

import httpx


class EngineError(Exception):
    """The engine answered, but not with what was asked for.

    Attributes:
        status (`int`): HTTP status; 502 when the answer itself was malformed.
        message (`str`): The engine's own message.
        body (`dict`): The engine's `error` object, if it sent one.
        headers (`Mapping[str, str]`): Headers of the answer (`retry-after` on a 429).
    """

    def __init__(
        self,
        status: int,
        message: str,
        body: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"engine answered {status}: {message}")
        self.status = status
        self.message = message
        self.body: dict[str, object] = dict(body or {})
        self.headers: Mapping[str, str] = headers or {}

    @property
    def retryable(self) -> bool:
        """True if the same call may succeed later: overload and server faults, not a caller's mistake."""
        return self.status in (408, 425, 429) or self.status >= 500

    @property
    def away(self) -> bool:
        """True if the engine is down, being started or too busy: whatever was asked for was not tried."""
        return self.status in (429, 503, 504)


class EngineUnavailable(EngineError):
    """The engine could not be reached, hung up, or took longer than the time-out."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(504 if timed_out else 503, message)
        self.timed_out = timed_out

    @property
    def away(self) -> bool:
        """True if it could not be reached; one that took too long did try."""
        return not self.timed_out


def error_of(response: httpx.Response) -> EngineError:
    """The typed error for an answer that is not a success; its content must have been read."""
    try:
        body = json.loads(response.content)
    except ValueError:
        body = None
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict):
        # vLLM's older shape puts the fields at the top, FastAPI's own errors a `detail`.
        error = body if isinstance(body, dict) else {}
    message = error.get("message") or error.get("detail") or response.text[:500] or response.reason_phrase
    return EngineError(response.status_code, str(message), error, response.headers)


def unavailable(error: httpx.TransportError) -> EngineUnavailable:
    """The typed error for a failed exchange of bytes."""
    timed_out = isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout)
    return EngineUnavailable(f"{type(error).__name__}: {error}".rstrip(": "), timed_out=timed_out)
