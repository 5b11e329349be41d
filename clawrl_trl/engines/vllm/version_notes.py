"""Notes of a vLLM server on the policy version of each sampled token, and on grammars.

Nobody outside could tell for sure: tokens and exchanges of the model travel on different connections, and what of a
request becomes a grammar depends on the server's tool parser and flags. So to a client that sends `x-policy-versions`
the server notes, for each choice, from which token on which version speaks: in a stream as an event of its own, which
says as well whether the reply is constrained, in a whole reply as a header.
"""

import json
import uuid
from typing import NamedTuple

from starlette.types import Message, Send

from clawrl_trl.engines.calls import VERSIONS_HEADER
from clawrl_trl.engines.vllm.compat import RequestState, find_choice


class VersionNote(NamedTuple):
    """From token `start` on, `version` samples the reply `choice`."""

    choice: int
    start: int
    version: int


class RunningRequests:
    """The requests under way whose client wants to know the versions of their tokens, by the id they were given."""

    def __init__(self) -> None:
        self._notes: dict[str, list[VersionNote]] = {}
        self._constrained: set[str] = set()

    def begin(self) -> str:
        """Return a fresh request id that `note` recognises inside vLLM's own."""
        request_id = uuid.uuid4().hex
        self._notes[request_id] = []
        return request_id

    def end(self, request_id: str) -> None:
        """Forget a request."""
        del self._notes[request_id]
        self._constrained.discard(request_id)

    def note(self, request: RequestState, start: int, version: int) -> None:
        """Note a version for one of vLLM's requests, if it is one of these."""
        place = self._find(request)
        if place is not None:
            request_id, choice = place
            self._notes[request_id].append(VersionNote(choice, start, version))

    def note_constraint(self, request: RequestState) -> None:
        """Note that one of vLLM's requests, if it is one of these, is sampled under a grammar."""
        place = self._find(request)
        if place is not None:
            self._constrained.add(place[0])

    def is_constrained(self, request_id: str) -> bool:
        """Return whether any reply to a request is sampled under a grammar."""
        return request_id in self._constrained

    def take(self, request_id: str) -> list[VersionNote]:
        """Return the notes since the last call."""
        notes, self._notes[request_id] = self._notes[request_id], []
        return notes

    def _find(self, request: RequestState) -> tuple[str, int] | None:
        place = find_choice(request)
        return place if place is not None and place[0] in self._notes else None


def add_version_notes(send: Send, running: RunningRequests, request_id: str) -> Send:
    """Wrap `send` so that it adds the notes: as events of their own in a stream, as a header of a whole reply."""
    streams = False

    async def send_with_notes(message: Message) -> None:
        nonlocal streams
        if message["type"] == "http.response.start":
            headers = list(message["headers"])
            streams = any(name == b"content-type" and b"event-stream" in value for name, value in headers)
            if not streams:
                header = json.dumps(running.take(request_id)).encode()
                message["headers"] = [*headers, (VERSIONS_HEADER.encode(), header)]
        elif streams and message.get("body") and (notes := running.take(request_id)):
            # Before the tokens they are about, so that a reader knows the version when it reads a token.
            event = {"policy_versions": notes, "constrained": running.is_constrained(request_id), "choices": []}
            message["body"] = b"data: " + json.dumps(event).encode() + b"\n\n" + message["body"]
        await send(message)

    return send_with_notes
