"""Tools of an MCP server, over stdio or streamable HTTP, through the official SDK.

The SDK is asynchronous and environments are not, so all connections of a process live on one event loop on a thread
of its own. A connection is made when it is first needed, is kept from episode to episode, and is shared by the
environments that share the toolset. A call is never sent twice: when the server is gone the episode is dropped, and
the next one connects anew. One policy's failed call never ends a connection that others use: as long as the server
answers, the failure is an observation.
"""

import asyncio
import contextlib
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from clawrl_trl.envs.base.episode import WorldBroken
from clawrl_trl.errors import UserError
from clawrl_trl.messages import Json

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult, Tool

T = TypeVar("T")

Transport = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens the pair of streams to a server, as the SDK's `Client` wants it."""

MAX_PAGES = 100
"""Pages of a server's list of tools that are read."""
GRACE_S = 15.0
"""Seconds to wait for a connection to close, or for an answer after the server's own time is up."""


class McpServer:
    """The tools of one MCP server; a [`Toolset`].

    Give a `command` (stdio: the server runs as a child, with a short environment) or a `url` (streamable HTTP).

    Args:
        command (`str`, *optional*): The program to start.
        args (`Sequence[str]`, *optional*): Its arguments.
        env (`Mapping[str, str]`, *optional*): Environment variables, besides HOME, PATH and their like.
        cwd (`str`, *optional*): Where it runs.
        url (`str`, *optional*): The server's address.
        headers (`Mapping[str, str]`, *optional*): Headers of every request.
        include (`Sequence[str]`, *optional*): The tools to offer; default: all.
        per_episode (`bool`, *optional*, defaults to `False`): Whether each episode connects anew (over stdio: starts
            the server anew), for a server that keeps a state.
        connect_timeout (`float`, *optional*, defaults to `60.0`): Seconds a connection may take.

    Raises:
        UserError: If the `mcp` package is missing, or not exactly one of `command` and `url` is given.
    """

    def __init__(
        self,
        command: str | None = None,
        *,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        include: Sequence[str] | None = None,
        per_episode: bool = False,
        connect_timeout: float = 60.0,
    ) -> None:
        if (command is None) == (url is None):
            raise UserError('An MCP server needs either a "command" or a "url".')
        _require_sdk()
        self._name = url or str(command)
        self._transport: Transport
        if url is None:
            self._transport = partial(_open_stdio, command=command, args=list(args), env=dict(env or {}), cwd=cwd)
        else:
            self._transport = partial(_open_http, url, dict(headers or {}))
        self._include = include
        self._per_episode = per_episode
        self._connect_timeout = connect_timeout
        self._lock = threading.Lock()
        self._shared: _Connection | None = None
        self._connections: set[_Connection] = set()
        weakref.finalize(self, _close_all, self._connections)  # else a forgotten server would outlive its toolset

    def open(self) -> "McpTools":
        """See [`Toolset`].

        Raises:
            WorldBroken: If the server can't be reached.
        """
        if self._per_episode:
            return McpTools(self._connect(), self._include, owned=True)
        with self._lock:
            if self._shared is None or not self._shared.is_alive:
                self._shared = self._connect()
            return McpTools(self._shared, self._include, owned=False)

    def close(self) -> None:
        """See [`Toolset`]."""
        with self._lock:
            if self._shared is not None:
                self._shared.close()
                self._shared = None

    def _connect(self) -> "_Connection":
        connection = _Connection(self._transport, self._name, self._connect_timeout, self._connections)
        self._connections.add(connection)
        return connection


class McpTools:
    """The tools of a server during an episode; see [`Tools`]."""

    def __init__(self, connection: "_Connection", include: Sequence[str] | None, *, owned: bool) -> None:
        self._connection = connection
        self._owned = owned
        self.schemas = [_make_schema(tool) for tool in connection.tools if include is None or tool.name in include]

    def call(self, name: str, arguments: Json, timeout: float) -> str:
        """See [`Tools`]."""
        return self._connection.call(name, arguments, timeout)

    def close(self) -> None:
        """See [`Tools`]."""
        if self._owned:
            self._connection.close()


class _Connection:
    """A client that lives in one task of the loop: its cancel scopes must be left by the task that entered them."""

    def __init__(
        self,
        transport: Transport,
        name: str,
        timeout: float,
        registry: "set[_Connection]",
    ) -> None:
        self._name = name
        self._registry = registry
        self._transport = transport
        self._stop = asyncio.Event()
        self._ready: Future[tuple[Client, list[Tool]]] = Future()
        self._task = _submit(self._run())
        try:
            self._client, self.tools = self._ready.result(timeout)
        except TimeoutError:
            self._task.cancel()
            raise WorldBroken(f"the MCP server {name} did not answer within {timeout:g} s") from None
        except Exception as error:  # noqa: BLE001 - whatever it is, the server is not there
            raise WorldBroken(f"the MCP server {name} can't be reached: {_describe_cause(error)}") from None

    @property
    def is_alive(self) -> bool:
        """True if calls may reach the server."""
        return not self._task.done()

    def call(self, name: str, arguments: Json, timeout: float) -> str:
        from mcp import MCPError
        from mcp.types import REQUEST_TIMEOUT

        if not self.is_alive:
            raise WorldBroken(f"the MCP server {self._name} is gone")
        if not _is_serialisable(name, arguments):
            return f"Error: {name} can't be called with characters that Unicode does not have, or nested this deep."
        pending = _submit(self._client.call_tool(name, arguments, read_timeout_seconds=timeout))
        try:
            return _format_result(pending.result(timeout + GRACE_S))
        except TimeoutError:
            pending.cancel()
            return f"Error: {name} did not return within {timeout:g} s."
        except Exception as error:  # noqa: BLE001 - a transport's errors share no base
            if isinstance(error, MCPError) and error.code == REQUEST_TIMEOUT:
                return f"Error: {name} did not return within {timeout:g} s."
            if self._is_answering():
                return f"Error: {_describe_cause(error)}"
            self.close()
            raise WorldBroken(f"the MCP server {self._name} failed: {_describe_cause(error)}") from None

    def _is_answering(self) -> bool:
        """Return whether the server still answers; an error's code may mean a failed tool or a lost connection."""
        pending = _submit(self._client.list_tools(cache_mode="refresh"))  # a cached list would prove nothing
        try:
            pending.result(GRACE_S)
        except Exception:  # noqa: BLE001 - as above
            pending.cancel()
            return False
        return True

    def close(self) -> None:
        _get_loop().call_soon_threadsafe(self._stop.set)  # an asyncio event may only be set on its loop
        with contextlib.suppress(BaseException):  # it is over either way, and said why where it mattered
            self._task.result(GRACE_S)
        self._registry.discard(self)

    async def _run(self) -> None:
        from mcp import Client

        try:
            async with Client(self._transport()) as client:
                tools: list[Tool] = []
                cursor: str | None = None
                for _ in range(MAX_PAGES):
                    page = await client.list_tools(cursor=cursor)
                    tools += page.tools
                    cursor = page.next_cursor
                    if cursor is None:
                        break
                self._ready.set_result((client, tools))
                await self._stop.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise


@contextlib.asynccontextmanager
async def _open_stdio(**server: Any) -> AsyncIterator[Any]:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async with stdio_client(StdioServerParameters(**server), errlog=sys.__stderr__ or sys.stderr) as streams:
        yield streams


@contextlib.asynccontextmanager
async def _open_http(url: str, headers: dict[str, str]) -> AsyncIterator[Any]:
    from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

    async with (
        create_mcp_http_client(headers=headers) as http,
        streamable_http_client(url, http_client=http) as streams,
    ):
        yield streams


def _close_all(connections: set[_Connection]) -> None:
    for connection in list(connections):
        connection.close()


def _is_serialisable(name: str, arguments: Json) -> bool:
    """Return whether a call can be written as JSON; one that can't would end the transport and all calls under way."""
    from mcp.types import JSONRPCRequest

    params = {"name": name, "arguments": arguments}
    try:
        JSONRPCRequest(jsonrpc="2.0", id=0, method="tools/call", params=params).model_dump_json()
    except ValueError:
        return False
    return True


def _make_schema(tool: "Tool") -> Json:
    function = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": _drop_titles(tool.input_schema),
    }
    return {"type": "function", "function": function}


def _drop_titles(schema: Any, *, names: bool = False) -> Any:
    """Return a JSON schema without titles, which servers generate from the names: every turn would pay for them.

    Args:
        schema: The schema, or a part of it.
        names (`bool`, *optional*, defaults to `False`): Whether the keys are names that the server chose (the keys of
            `properties` and `$defs`), among which `title` is an argument and stays.
    """
    if isinstance(schema, list):
        return [_drop_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _drop_titles(value, names=key in ("properties", "$defs") and not names)
        for key, value in schema.items()
        if names or key != "title"
    }


def _format_result(result: "CallToolResult") -> str:
    """Return a result's text; a part that is no text is named by its type."""
    parts = []
    for block in result.content:
        text = getattr(block, "text", None) or getattr(getattr(block, "resource", None), "text", None)
        parts.append(text if text is not None else f"[{getattr(block, 'mime_type', None) or block.type}]")
    output = "\n".join(parts)
    return f"Error: {output}" if result.is_error and not output.startswith("Error") else output


def _describe_cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):  # the SDK's task groups wrap what ended them
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _require_sdk() -> None:
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise UserError('MCP servers need the package mcp: pip install "clawrl-trl[envs]".') from None


@cache
def _get_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="mcp", daemon=True).start()
    return loop


def _submit(work: Coroutine[Any, Any, T]) -> "Future[T]":
    return asyncio.run_coroutine_threadsafe(work, _get_loop())
