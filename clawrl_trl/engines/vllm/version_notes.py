"""Notes of a vLLM server on the policy version of each sampled token, and on grammars.

Nobody outside could tell for sure: tokens and exchanges of the model travel on different connections, and what of a
request becomes a grammar depends on the server's tool parser and flags. So to a client that sends `x-policy-versions`
the server notes, for each choice, from which token on which version speaks: in a stream as an event of its own, which
says as well whether the reply is constrained, in a whole reply as a header.
"""

import json
import re
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

from clawrl_trl.engines.calls import VERSIONS_HEADER

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

_REQUEST = re.compile(r"(chatcmpl|cmpl)-(?P<flight>[0-9a-f]{32})(-(?P<prompt>\d+))?")


class VersionNote(NamedTuple):
    """From token `start` on, `version` samples the reply `choice`."""

    choice: int
    start: int
    version: int


class RunningRequests:
    """The requests under way whose client wants to know the versions of their tokens."""

    def __init__(self) -> None:
        self._notes: dict[str, list[VersionNote]] = {}
        self._constrained: set[str] = set()

    def begin(self) -> str:
        """A fresh request id that `note` recognises inside vLLM's own."""
        flight = uuid.uuid4().hex
        self._notes[flight] = []
        return flight

    def end(self, flight: str) -> None:
        """Forget a request."""
        del self._notes[flight]
        self._constrained.discard(flight)

    def note(self, request: Any, start: int, version: int) -> None:
        """Note a version for one of vLLM's requests, if it is one of these."""
        match = _REQUEST.fullmatch(request.external_req_id)
        if match is not None and match["flight"] in self._notes:
            per_prompt = 1 if request.parent_req is None else request.parent_req.sampling_params.n
            choice = int(match["prompt"] or 0) * per_prompt + request.request_index
            self._notes[match["flight"]].append(VersionNote(choice, start, version))

    def constrain(self, request: Any) -> None:
        """Note that one of vLLM's requests, if it is one of these, is sampled under a grammar."""
        match = _REQUEST.fullmatch(request.external_req_id)
        if match is not None and match["flight"] in self._notes:
            self._constrained.add(match["flight"])

    def constrained(self, flight: str) -> bool:
        """Return whether any reply to a request is sampled under a grammar."""
        return flight in self._constrained

    def take(self, flight: str) -> list[VersionNote]:
        """The notes since the last call."""
        notes, self._notes[flight] = self._notes[flight], []
        return notes


def noting(send: Send, flights: RunningRequests, flight: str) -> Send:
    """`send` with the notes on board: as an event of their own in a stream, as a header of a whole reply."""
    streams = False

    async def noted(message: Message) -> None:
        nonlocal streams
        if message["type"] == "http.response.start":
            headers = list(message["headers"])
            streams = any(name == b"content-type" and b"event-stream" in value for name, value in headers)
            if not streams:
                header = json.dumps(flights.take(flight)).encode()
                message["headers"] = [*headers, (VERSIONS_HEADER.encode(), header)]
        elif streams and message.get("body") and (notes := flights.take(flight)):
            event = {"policy_versions": notes, "constrained": flights.constrained(flight), "choices": []}
            message["body"] = b"data: " + json.dumps(event).encode() + b"\n\n" + message["body"]
        await send(message)

    return noted
