"""Reading of request bodies: received, parsed and validated within bounds, beside the event loop."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from clawrl_trl.engines.embedded.errors import RequestError
from clawrl_trl.engines.embedded.protocol import Body
from clawrl_trl.http.body import BodyTooLarge, decode_json, read_body, run_beside
from clawrl_trl.http.limits import find_excess, find_excess_of_bytes

B = TypeVar("B", bound=Body)

MAX_BODY_BYTES = 64 * 2**20
"""More than any text that fits a context: the gateway's own bound on bodies is a setting."""


def body_reader(model: type[B]) -> Callable[[Request], Awaitable[B]]:
    """Make a FastAPI dependency that reads a request's body as `model`.

    Raises:
        RequestError: For too much, too slow, too many entries, or no JSON.
        RequestValidationError: For the first field that is wrong.
    """

    async def read(request: Request) -> B:
        try:
            raw = await read_body(request, request.headers.get("content-length"), MAX_BODY_BYTES)
        except BodyTooLarge:
            raise RequestError(f"The body is larger than {MAX_BODY_BYTES // 2**20} MiB.", status=413) from None
        except TimeoutError:
            raise RequestError("The body took too long to arrive.", status=408) from None
        return await run_beside(len(raw), lambda: _validate(model, raw))

    return read


def _validate(model: type[B], raw: bytes) -> B:
    # Before decoding: the decoder lets no other thread run, whatever is in the body.
    if reason := find_excess_of_bytes(raw):
        raise RequestError(reason)
    try:
        body = decode_json(raw)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The body is not valid JSON: {error}") from None
    if isinstance(body, dict) and (surplus := find_excess(body)):
        raise RequestError(surplus[1], param=surplus[0].split(".")[0])
    try:
        return model.model_validate(body)
    except ValidationError as error:
        # The first error alone: a large body may have one for each of its entries.
        raise RequestValidationError(error.errors(include_url=False, include_input=False)[:1]) from None
