"""The HTTP server under gateway and embedded engine: uvicorn with bounds on what idle connections may hold.

A connection that sends no complete head within `HEAD_TIMEOUT_S` is closed. At most `BoundedConfig.max_connections` are
open; one more closes the oldest that still owes a part of its request, so half-open connections can't keep a client
out. The process's limit of open files is raised as far as the system allows, and running out of them costs one line a
minute. This is the only module that relies on uvicorn's protocol classes.
"""

import asyncio
import errno
import json
import logging
import resource
import socket
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from clawrl_trl.errors import UserError

logger = logging.getLogger(__name__)

HEAD_TIMEOUT_S = 15.0
"""Longest time for a request's head: far above what a client on a slow line needs for some kilobytes."""

LEAST_CONNECTIONS = 512
"""Connections that may be open at once where few requests may run and wait: some of them are kept alive."""

SPARE_CONNECTIONS = 64
"""Connections beside those whose requests run and wait: for health, models, feedback, and refusals."""

RESERVED_FILES = 512
"""Open files left for connections to the engine, the ledger and logs."""

ACCEPT_BURST = 32
"""Connections accepted before any is counted. asyncio takes it from the backlog, and logs as many tracebacks when
there are no files left."""

BACKLOG = 2048
"""Connections that wait in the kernel while the event loop is busy."""

COMPLAINT_PERIOD_S = 60.0

_OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_USED_OF_UVICORN = ("connections", "transport", "cycle", "timeout_keep_alive_task")

_REFUSAL = json.dumps(
    {"error": {"message": "Too many connections.", "type": "server_error", "param": None, "code": "overloaded"}}
).encode()
_REFUSED = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 5\r\nconnection: close\r\n"
    b"content-length: " + str(len(_REFUSAL)).encode() + b"\r\n\r\n" + _REFUSAL
)


class BoundedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """One connection, closed when its head takes too long or its place is needed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if missing := [name for name in _USED_OF_UVICORN if not hasattr(self, name)]:
            raise UserError(f"uvicorn {uvicorn.__version__} has no {missing[0]}: pip install 'uvicorn>=0.35,<0.55'.")
        self._head_timer: asyncio.TimerHandle | None = None

    @property
    def owes(self) -> bool:
        """True if the client has yet to send a part of a request."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection, and close another one if there are too many."""
        super().connection_made(transport)
        # A dict keeps the order of arrival, and forgets an entry in constant time.
        self.config.oldest_first[self] = None
        self._watch_head()
        if len(self.connections) > self.config.max_connections:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Take bytes; a head that stays incomplete is timed from its first byte on."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self.config.oldest_first.pop(self, None)
        self._stop_timer()

    def _watch_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # A request is being answered: its head has arrived.
            self._stop_timer()
        elif self._head_timer is None and self.timeout_keep_alive_task is None:
            self._head_timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT_S, self._close_late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_late(self) -> None:
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _make_room(self) -> None:
        oldest = next(
            (connection for connection in self.config.oldest_first if connection.owes and connection is not self), None
        )
        if oldest is not None:
            # Uvicorn counts it until `connection_lost`, which comes a turn of the loop later.
            self.connections.discard(oldest)
            del self.config.oldest_first[oldest]
            # `close` would wait until what is buffered has been read.
            oldest.transport.abort()
        else:
            self.transport.write(_REFUSED)
            self.transport.close()


class BoundedConfig(uvicorn.Config):
    """Settings of uvicorn with the bounds of this module.

    Args:
        app: The application.
        requests (`int`, *optional*, defaults to `0`): Requests that may run and wait at once; each has a connection.
        options: Other settings of uvicorn.
    """

    def __init__(self, app: Any, *, requests: int = 0, **options: Any) -> None:
        super().__init__(app, http=BoundedProtocol, ws="none", backlog=ACCEPT_BURST, log_config=None, **options)
        self.access_log = False
        self.max_connections = raise_connection_limit(max(LEAST_CONNECTIONS, requests + SPARE_CONNECTIONS))
        self.oldest_first: dict[BoundedProtocol, None] = {}


class BoundedServer(uvicorn.Server):
    """A server that calls back once it listens.

    Args:
        config (`BoundedConfig`): Its settings.
        listening (`Callable[[], None]`): Called when connections are accepted.
    """

    def __init__(self, config: BoundedConfig, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._listening = listening
        self._complained_at = float("-inf")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, with the kernel's queue longer than one burst of accepting."""
        asyncio.get_running_loop().set_exception_handler(self._take_fault)
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)
        if self.started:
            self._listening()

    def _take_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _OUT_OF_FILES:
            loop.default_exception_handler(context)
        elif time.monotonic() - self._complained_at > COMPLAINT_PERIOD_S:
            self._complained_at = time.monotonic()
            logger.error("no connection can be accepted (%s); raise the limit of open files (ulimit -n)", error)


def raise_connection_limit(wanted: int) -> int:
    """Raise the limit of open files as far as allowed; returns how many of the wanted connections may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(16, min(wanted, soft - RESERVED_FILES - ACCEPT_BURST))


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        UserError: If the port is taken or the address is not this machine's.
    """
    try:
        # asyncio turns Nagle's algorithm off only on sockets that name their protocol; with it on, each small
        # write may wait 40 ms for the other side's acknowledgement.
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise UserError(
            f"Can't listen on {host}:{port} ({error.strerror}): use another --port, or 0 for any."
        ) from None
    listener.setblocking(False)
    return listener
