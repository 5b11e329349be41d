"""Which conversation a request continues, and what it says about the replies before it.

`Sessions` is the index of open conversations. It decides, for every request and before it is forwarded, the
session, main or side, the turn it follows and the next state it gives to earlier turns. It holds digests and
anchors only, never histories, and nothing here writes to the ledger: the gateway does, in one transaction.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import Session as Transaction

Message = dict[str, Any]


@dataclass(frozen=True)
class Incoming:
    """A request as the gateway received it; header names are lower case, `now` is unix seconds."""

    owner: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    path_session: str | None
    now: float


@dataclass(frozen=True)
class Answer:
    """The next state that a request gives to an earlier turn; one provenance word per message."""

    turn_id: str
    messages: list[Message]
    provenance: list[str]


@dataclass(frozen=True)
class Placement:
    """Where a request belongs. `session_id` is the ledger's id, `external_id` the one the client gave."""

    session_id: str
    external_id: str | None
    identity_source: str
    kind: str
    kind_reason: str
    parent_id: str | None
    provenance: list[str]
    answered: list[Answer] = field(default_factory=list)
    retry_of: str | None = None


class Sessions:
    """The index of open conversations, rebuilt from the ledger at start; bounded by LRU and TTL."""

    def __init__(
        self, *, now: Callable[[], float] = time.time, limit: int = 10_000, ttl_s: float = 7 * 86_400.0
    ) -> None:
        self._now = now
        self._limit = limit
        self._ttl_s = ttl_s

    def load(self, tx: Transaction) -> None:
        """Rebuild the index from the main turns in the ledger."""
        raise NotImplementedError

    def place(self, incoming: Incoming) -> Placement:
        """Decide where a request belongs; called when it arrives."""
        raise NotImplementedError

    def replied(
        self,
        placement: Placement,
        turn_id: str,
        response: Message,
        messages: list[Message],
        choice_index: int = 0,
        *,
        aborted: bool = False,
    ) -> None:
        """Anchor the reply the gateway sent (`response`: the assistant message). `aborted`: it was cut."""
        raise NotImplementedError

    def failed(self, placement: Placement) -> None:
        """The request got no reply at all (engine error, 5xx): its repetition will be a retry."""
        raise NotImplementedError

    def forget(self, session_id: str) -> None:
        """Drop a session from the index (it was deleted)."""
        raise NotImplementedError


def strip_identity(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body without the keys that are ours: session_id, turn_type, session_done."""
    return {key: value for key, value in body.items() if key not in ("session_id", "turn_type", "session_done")}
