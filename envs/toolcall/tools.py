"""Protocols of the tools of a tool-call environment, and tools that are plain Python functions.

A toolset (functions, an MCP server, the code interpreter) outlives episodes and may be shared by many environments;
the state of one episode, such as an interpreter's variables, is in the `Tools` it opens. A call returns text, also
where it fails, because a failure is the model's next state; only a world that can't go on raises.
"""

import asyncio
import inspect
import json
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from pydantic import ValidationError, validate_call

from clawrl_trl.envs.base.episode import WorldBroken
from clawrl_trl.errors import UserError
from clawrl_trl.messages import Json

MAX_HANGING = 16
"""Calls of a toolset's functions that may hang at a time: a thread can't be ended, only left behind."""


class Tools(Protocol):
    """The tools of one toolset during one episode."""

    @property
    def schemas(self) -> Sequence[Json]:
        """Schemas of the tools, chat API."""

    def call(self, name: str, arguments: Json, timeout: float) -> str:
        """Call a tool, once, for at most `timeout` seconds.

        Returns:
            What it returned, or what went wrong, beginning with `Error:`.

        Raises:
            WorldBroken: If its world can't go on.
        """

    def close(self) -> None:
        """Close what belongs to the episode."""


class Toolset(Protocol):
    """A source of tools."""

    def open(self) -> Tools:
        """Begin an episode and return its tools."""

    def close(self) -> None:
        """Close everything; the toolset may be opened again."""


class FunctionTools:
    """Python functions as tools, in this process: for code that is trusted.

    Type hints and a docstring in Google's style give the schema; arguments are checked against the hints, and what
    a function raises is returned as its traceback. Coroutine functions run in an event loop of their own.

    Args:
        *functions (`Callable`): The functions.

    Raises:
        UserError: If a function lacks a type hint or the description of an argument.

    Examples:
        >>> def add(a: int, b: int) -> int:
        ...     '''Add two numbers.
        ...
        ...     Args:
        ...         a: The first.
        ...         b: The second.
        ...     '''
        ...     return a + b
        >>> FunctionTools(add).open().call("add", {"a": 1, "b": 2}, timeout=1.0)
        '3'
    """

    def __init__(self, *functions: Callable[..., Any]) -> None:
        self.schemas = [make_schema(function) for function in functions]
        self._functions = {function.__name__: validate_call(function) for function in functions}
        self._hanging_threads: set[threading.Thread] = set()

    def open(self) -> "FunctionTools":
        """See [`Toolset`]; functions have no state of an episode."""
        return self

    def call(self, name: str, arguments: Json, timeout: float) -> str:
        """See [`Tools`]."""
        self._hanging_threads = {thread for thread in self._hanging_threads if thread.is_alive()}
        if len(self._hanging_threads) >= MAX_HANGING:
            raise WorldBroken(f"{MAX_HANGING} calls of Python functions hang, the last one to {name!r}")
        future: Future[str] = Future()
        # Not a pool: its threads would be waited for when the program ends, and a hanging call never returns.
        thread = threading.Thread(
            target=lambda: future.set_result(_run_function(self._functions[name], arguments)),
            name=f"tool-{name}",
            daemon=True,
        )
        thread.start()
        try:
            return future.result(timeout)
        except TimeoutError:
            self._hanging_threads.add(thread)
            return f"Error: {name} did not return within {timeout:g} s."

    def close(self) -> None:
        """See [`Toolset`]."""


def make_schema(function: Callable[..., Any]) -> Json:
    """Make the chat API's schema of a function.

    Raises:
        UserError: If a type hint or the description of an argument is missing.
    """
    from transformers.utils import get_json_schema

    try:
        schema: Json = get_json_schema(function)
    except Exception as error:  # noqa: BLE001 - its errors share no base; each is the fault of the function it is given
        name = getattr(function, "__name__", repr(function))
        raise UserError(f"{name!r} can't be a tool ({error}): give it type hints and a docstring.") from None
    schema["function"].pop("return", None)  # not in the chat API
    return schema


def format_result(value: Any) -> str:
    """Return a tool's result as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def map_tools(opened: Sequence[Tools]) -> Mapping[str, Tools]:
    """Map the names of tools to the toolsets they belong to.

    Raises:
        UserError: If two tools have the same name.
    """
    tools_by_name: dict[str, Tools] = {}
    for tools in opened:
        for schema in tools.schemas:
            name = schema["function"]["name"]
            if name in tools_by_name:
                raise UserError(f"Two tools are called {name!r}: leave one out or rename it.")
            tools_by_name[name] = tools
    return tools_by_name


def _run_function(function: Callable[..., Any], arguments: Json) -> str:
    try:
        value = function(**arguments)
        return format_result(asyncio.run(value) if inspect.iscoroutine(value) else value)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        return f"Error: the arguments don't fit: {faults}."
    except BaseException as error:  # noqa: BLE001 - also SystemExit: a tool does not end the episode
        return f"Error: {_format_trace(error)}"


def _format_trace(error: BaseException) -> str:
    """Format a traceback from the tool's own code on: the frames before it are ours and mean nothing to a model."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).strip()


def _is_ours(filename: str) -> bool:
    return filename == __file__ or "pydantic" in filename
