"""Errors in OpenAI's shape: `{"error": {message, type, param, code}}` with the right status."""

import json

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from clawrl_trl.engines.embedded.chat import PromptError
from clawrl_trl.engines.embedded.replies import ReplyFailed
from clawrl_trl.engines.embedded.scheduler import QueueFull
from clawrl_trl.messages import Json

TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class RequestError(Exception):
    """A request that can't be served.

    Args:
        message (`str`): For the client.
        status (`int`): HTTP status.
        param (`str`, *optional*): The key of the body that is wrong.
    """

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


def error_object(message: str, status: int, param: str | None = None) -> Json:
    """The whole body of an error."""
    kind = TYPES.get(status, "BadRequestError")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def register(app: FastAPI) -> None:
    """Answer every exception that a route may raise in this shape."""
    app.add_exception_handler(RequestError, _request_error)
    app.add_exception_handler(PromptError, _prompt_error)
    app.add_exception_handler(UnicodeError, _no_text)
    app.add_exception_handler(QueueFull, _queue_full)
    app.add_exception_handler(ReplyFailed, _failed)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _failed)


def _answer(message: str, status: int, param: str | None = None) -> Response:
    # In ASCII: a message may quote text that no other encoding can write.
    content = json.dumps(error_object(message, status, param))
    return Response(content, status, media_type="application/json")


async def _request_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _answer(str(error), error.status, error.param)


async def _prompt_error(_: Request, error: Exception) -> Response:
    return _answer(str(error), 400, "messages")


async def _no_text(_: Request, error: Exception) -> Response:
    return _answer("The request holds text that is not valid Unicode (half a surrogate pair).", 400)


async def _queue_full(_: Request, error: Exception) -> Response:
    return _answer(str(error), 429)


async def _failed(_: Request, error: Exception) -> Response:
    return _answer(f"The engine failed: {error}", 500)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _answer(f"The body is not valid JSON: {first.get('ctx', {}).get('error', first['msg'])}", 400)
    place = [str(part) for part in first["loc"] if part != "body"]
    message = first["msg"].removeprefix("Value error, ")
    return _answer(f"{'.'.join(place)}: {message}" if place else message, 400, place[0] if place else None)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _answer(str(error.detail), error.status_code)
