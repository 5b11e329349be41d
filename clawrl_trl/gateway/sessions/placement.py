"""Input and output of the session index: a request, and where it belongs.

Plain values, so that what places requests and what writes them to the ledger need to agree on nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from clawrl_trl.gateway.sessions.identity import identify
from clawrl_trl.gateway.sessions.kinds import setting_of
from clawrl_trl.gateway.sessions.match import Request
from clawrl_trl.gateway.sessions.reading import Message, read


@dataclass(frozen=True)
class Incoming:
    """A request as the gateway received it.

    Attributes:
        owner: Fingerprint of the API key; conversations of two owners never join.
        headers: Names in lower case.
        body: The request's body, chat or raw completion.
        path_session: The session in the URL (`/s/<session>/v1`), if any.
        now: Unix time, seconds.
        follows: The ledger's id of the session of the reply that the request continues by naming it.
    """

    owner: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    path_session: str | None
    now: float
    follows: str | None = None

    @cached_property
    def request(self) -> Request:
        """The request prepared for the search: pure, and what costs time when it is long. Any thread may ask first.

        Raises:
            ApiError: 400 for a session's name that is too long.
        """
        reading = read(_messages(self.body))
        identity = identify(self.headers, self.body, self.path_session, reading)
        return Request(self.owner, reading, identity, setting_of(reading, self.body.get("tools")), self.now)


@dataclass(frozen=True)
class Answer:
    """The next state that a request gives to an earlier turn; one provenance word per message.

    Messages come without stamps, status lines and what the client wrapped around them.
    """

    turn_id: str
    messages: list[Message]
    provenance: list[str]


@dataclass(frozen=True)
class Placement:
    """The place of a request: its session, its kind, and the turns it follows and answers.

    Attributes:
        session_id: The ledger's id of the session.
        external_id: The client's name for it, if it gave one.
        identity_source: Where the session was recognised: `header:...`, `body:...`, `url`, `message:<client>` or
            `inferred`.
        kind: `main` or `side`.
        kind_reason: Why, in a short sentence.
        parent_id: The turn whose reply this request follows.
        provenance: One word per message of the request: `owner`, `other` (another named person), `assistant`, `tool`,
            `system`, `client`, `event`.
        answered: Next states of earlier turns; empty for side requests and repetitions of an answered one.
        retry_of: The turn that this request repeats because its reply was cut; `request_<digest>` when the
            earlier request left no turn.
    """

    session_id: str
    external_id: str | None
    identity_source: str
    kind: str
    kind_reason: str
    parent_id: str | None
    provenance: list[str]
    answered: list[Answer] = field(default_factory=list)
    retry_of: str | None = None
    owner: str = field(default="local", repr=False)
    request_key: bytes = field(default=b"", repr=False)


def _messages(body: Mapping[str, Any]) -> list[Message]:
    messages = body.get("messages")
    if isinstance(messages, list):
        return [message if isinstance(message, dict) else {} for message in messages]
    prompt = body.get("prompt")
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else []
