"""The DevTools protocol, as far as pages share it: commands, their errors and the values they return."""

from collections.abc import Iterator
from typing import Any, Protocol

from clawrl_trl.messages import Json


class ProtocolError(Exception):
    """A command that the browser refused, for a reason that lies in the page and not in the connection."""


class DevTools(Protocol):
    """Protocol of a connection to one page."""

    def send(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result, whose shape the protocol defines.

        Raises:
            ProtocolError: If the page refuses it.
        """


def evaluate(page: DevTools, expression: str) -> Any:
    """Return the value of a JavaScript expression in the page's own world, awaited if it is a promise.

    Raises:
        ProtocolError: If it throws.
    """
    answer = page.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
    return unwrap_value(answer)


def unwrap_value(answer: Json) -> Any:
    """Return the value in an answer of `Runtime`.

    Raises:
        ProtocolError: If the expression threw.
    """
    if "exceptionDetails" in answer:
        details = answer["exceptionDetails"]
        raise ProtocolError(details.get("exception", {}).get("description") or details.get("text", "it threw"))
    return answer["result"].get("value")


def list_frames(page: DevTools) -> list[str]:
    """List the ids of the page's frames, the main one first."""

    def walk(tree: Json) -> Iterator[str]:
        yield tree["frame"]["id"]
        for child in tree.get("childFrames", ()):
            yield from walk(child)

    return list(walk(page.send("Page.getFrameTree")["frameTree"]))
