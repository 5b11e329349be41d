"""Work for a client that may hang up before it is done."""

import asyncio
from collections.abc import Coroutine

from starlette.requests import Request
from starlette.responses import Response


async def run_unless_gone(request: Request, work: Coroutine[object, None, Response]) -> Response:
    """Return the result of the work, or an empty answer when the client hangs up first, which cancels the work.

    Args:
        request (`Request`): The request, whose body has been read.
        work (`Coroutine`): Makes the answer.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_wait_for_disconnect(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        # Nobody reads it: 499 is nginx's status for a client that closed the connection.
        return working.result() if working.done() else Response(status_code=499)
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
