"""The open conversations in memory: which links of a chain lead to which reply.

A `SentReply` is a reply that the gateway sent, found by the link of the chain up to and including it; a
`PendingRequest` is a request, found by the link of what it asked. Several conversations may share a link, as long as
they say the same; they stay separate entries under it. The index is bounded in conversations and in entries: the
longest silent conversation goes first, and a conversation keeps its newest entries only.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from clawrl_trl.gateway.sessions.digest import Link
from clawrl_trl.gateway.sessions.kinds import RequestSetting


class Outcome(Enum):
    """Outcomes of a request."""

    OPEN = "open"  # no word yet
    FAILED = "failed"  # no reply at all
    ABORTED = "aborted"  # a reply that was cut
    STOPPED = "stopped"  # a reply that the client cut
    DONE = "done"


@dataclass(slots=True, eq=False)
class SentReply:
    """A reply the gateway sent, to the request at link `asked`; `claimed` is the request that answers it."""

    turn_id: str
    conversation: "Conversation"
    main: bool
    reply: bytes
    asked: Link
    order: int
    links: tuple[Link, ...] = ()
    answered: bool = False
    claimed: bytes = b""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request and what became of it.

    `link` is the chain it ends with and `before` the chain up to its last user message, of which the digest and
    the length are kept; `versions` are the links it may have in later history instead of `link`. `closed` says
    that it ends with a message which a reply can't merge with.
    """

    key: bytes
    link: Link
    before: Link
    text: bytes
    length: int
    closed: bool
    setting: RequestSetting
    conversation: "Conversation"
    at: float
    outcome: Outcome = Outcome.OPEN
    turn_id: str | None = None
    versions: tuple[Link, ...] = ()


@dataclass(slots=True, eq=False)
class Conversation:
    """A session in the index.

    `setting` is what its last main request was asked under, `last_main` its last main reply unless that was cut;
    `bare` says that its client sends only what is new; `owner_names` are those of the sender who is its owner, `None`
    while no message has named its sender.
    """

    id: str
    owner: str
    external_id: str | None
    source: str
    last_at: float
    setting: RequestSetting | None = None
    last_main: SentReply | None = None
    bare: bool = False
    owner_names: frozenset[str] | None = None
    anchors: list[SentReply] = field(default_factory=list)
    asked: OrderedDict[bytes, PendingRequest] = field(default_factory=OrderedDict)


class Index:
    """Conversations by id, anchors and requests by link; bounded."""

    def __init__(self, *, limit: int, entries: int, turns_per_session: int, ttl_s: float) -> None:
        self._limit = limit
        self._most = entries
        self._entries = 0
        self._turns = turns_per_session
        self._ttl_s = ttl_s
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._anchors: dict[Link, list[SentReply]] = {}
        self._asked: dict[Link, list[PendingRequest]] = {}
        self._unanswered: dict[Link, list[PendingRequest]] = {}

    def __len__(self) -> int:
        return len(self._conversations)

    def entries(self) -> int:
        """Number of replies and requests in the index."""
        return self._entries

    def get(self, session_id: str) -> Conversation | None:
        """A conversation by its id."""
        return self._conversations.get(session_id)

    def add(self, conversation: Conversation) -> None:
        """Take a conversation in; the longest silent one makes room."""
        self._conversations[conversation.id] = conversation
        while len(self._conversations) > self._limit:
            self.remove(next(iter(self._conversations)))

    def touch(self, conversation: Conversation, now: float) -> None:
        """The conversation was heard of at `now`."""
        conversation.last_at = max(conversation.last_at, now)
        if conversation.id in self._conversations:
            self._conversations.move_to_end(conversation.id)

    def expire(self, now: float) -> None:
        """Drop the conversations that were silent for too long."""
        while self._conversations:
            oldest = next(iter(self._conversations.values()))
            if oldest.last_at >= now - self._ttl_s:
                return
            self.remove(oldest.id)

    def remove(self, session_id: str) -> None:
        """Drop a conversation with all it holds."""
        conversation = self._conversations.pop(session_id, None)
        if conversation is None:
            return
        for anchor in conversation.anchors:
            self._unlink(anchor)
        for asked in conversation.asked.values():
            self._forget(asked)

    def anchor(self, anchor: SentReply, links: Iterable[Link]) -> None:
        """Enter a reply under each of the links that later history may show."""
        conversation = anchor.conversation
        anchor.links = tuple(dict.fromkeys(links))
        for link in anchor.links:
            self._anchors.setdefault(link, []).append(anchor)
        conversation.anchors.append(anchor)
        self._entries += 1
        if len(conversation.anchors) > self._turns:
            self._unlink(conversation.anchors.pop(0))
        self._make_room()

    def ask(self, asked: PendingRequest) -> None:
        """Enter a request; the same request asked again takes the place of the earlier one."""
        conversation = asked.conversation
        if earlier := conversation.asked.pop(asked.key, None):
            self._forget(earlier)
        conversation.asked[asked.key] = asked
        self._asked.setdefault(asked.link, []).append(asked)
        self._unanswered.setdefault(asked.before, []).append(asked)
        self._entries += 1
        if len(conversation.asked) > self._turns:
            self._forget(conversation.asked.popitem(last=False)[1])
        self._make_room()

    def settle(self, asked: PendingRequest, outcome: Outcome, turn_id: str | None, now: float) -> None:
        """Note what became of a request; only requests without a whole reply can be repeated or folded."""
        asked.outcome, asked.turn_id, asked.at = outcome, turn_id or asked.turn_id, now
        if outcome is Outcome.DONE:
            _drop(self._unanswered, asked.before, asked)

    def anchors_at(self, link: Link) -> list[SentReply]:
        """The replies that a chain up to this link ends with."""
        return self._anchors.get(link, [])

    def asked_at(self, link: Link) -> list[PendingRequest]:
        """The requests that a chain up to this link ends with."""
        return self._asked.get(link, [])

    def unanswered_after(self, link: Link) -> list[PendingRequest]:
        """The requests without a whole reply whose last message hangs at this link."""
        return self._unanswered.get(link, [])

    def __iter__(self) -> Iterator[Conversation]:
        return iter(self._conversations.values())

    def _make_room(self) -> None:
        while self._entries > self._most and len(self._conversations) > 1:
            self.remove(next(iter(self._conversations)))

    def _unlink(self, anchor: SentReply) -> None:
        self._entries -= 1
        for link in anchor.links:
            _drop(self._anchors, link, anchor)
        if anchor.conversation.last_main is anchor:
            anchor.conversation.last_main = None

    def _forget(self, asked: PendingRequest) -> None:
        self._entries -= 1
        _drop(self._asked, asked.link, asked)
        _drop(self._unanswered, asked.before, asked)


Entry = TypeVar("Entry", SentReply, PendingRequest)


def _drop(table: dict[Link, list[Entry]], link: Link, entry: Entry) -> None:
    entries = table.get(link)
    if entries and entry in entries:
        entries.remove(entry)
        if not entries:
            del table[link]
