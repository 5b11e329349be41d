"""The open conversations in memory: which links of a history lead to which reply.

A `SentReply` is a reply that the gateway sent, found by the link of the history up to and including it; a
`PendingRequest` is a request, found by the link of its own history. Several conversations may share a link, as long as
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
from clawrl_trl.gateway.sessions.senders import Sender


class Outcome(Enum):
    """Outcomes of a request."""

    OPEN = "open"  # no word yet
    FAILED = "failed"  # no reply at all
    ABORTED = "aborted"  # a reply that was cut
    STOPPED = "stopped"  # a reply that the client cut
    DONE = "done"


# By identity: two clients' entries may be equal in every field, and a list must drop the right one.
@dataclass(slots=True, eq=False)
class SentReply:
    """A reply the gateway sent.

    `digest` is the reply's by itself, `request_link` the link of the request it answered, `links` those under which
    it is found; `claimed_by` is the key of the request that answers it and is still under way.
    """

    turn_id: str
    conversation: "Conversation"
    is_main: bool
    digest: bytes
    request_link: Link
    order: int
    links: tuple[Link, ...] = ()
    is_answered: bool = False
    claimed_by: bytes = b""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request and what became of it.

    `link` is the one its history ends with and `before` the one up to its last user message, of which the digest and
    the length are kept; `versions` are the links it may have in later history instead of `link`. `is_closed` says
    that it ends with a message which a reply can't merge with.
    """

    key: bytes
    link: Link
    before: Link
    text_digest: bytes
    text_length: int
    is_closed: bool
    setting: RequestSetting
    conversation: "Conversation"
    at: float
    outcome: Outcome = Outcome.OPEN
    turn_id: str | None = None
    versions: tuple[Link, ...] = ()


@dataclass(slots=True, eq=False)
class Conversation:
    """A session in the index.

    `setting` is what its last main request was made under, `last_main` its last main reply unless that was cut;
    `sends_news_only` says that its client sends no history; `named_owner` is the sender who is its owner,
    `None` while no message has named its sender; `requests` are found by their key.
    """

    id: str
    owner: str
    external_id: str | None
    source: str
    last_at: float
    setting: RequestSetting | None = None
    last_main: SentReply | None = None
    sends_news_only: bool = False
    named_owner: Sender | None = None
    replies: list[SentReply] = field(default_factory=list)
    requests: OrderedDict[bytes, PendingRequest] = field(default_factory=OrderedDict)


class Index:
    """Conversations by id, replies and requests by link; bounded."""

    def __init__(self, *, limit: int, entries: int, turns_per_session: int, ttl_s: float) -> None:
        self._limit = limit
        self._max_entries = entries
        self._entries = 0
        self._turns = turns_per_session
        self._ttl_s = ttl_s
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._replies: dict[Link, list[SentReply]] = {}
        self._requests: dict[Link, list[PendingRequest]] = {}
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
        # A request that was read on a thread may be placed after one that came later.
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
        for reply in conversation.replies:
            self._drop_reply(reply)
        for request in conversation.requests.values():
            self._drop_request(request)

    def add_reply(self, reply: SentReply, links: Iterable[Link]) -> None:
        """Enter a reply under each of the links that later history may show."""
        conversation = reply.conversation
        reply.links = tuple(dict.fromkeys(links))
        for link in reply.links:
            self._replies.setdefault(link, []).append(reply)
        conversation.replies.append(reply)
        self._entries += 1
        if len(conversation.replies) > self._turns:
            self._drop_reply(conversation.replies.pop(0))
        self._make_room()

    def add_request(self, request: PendingRequest) -> None:
        """Enter a request; the same request made again takes the place of the earlier one."""
        conversation = request.conversation
        if earlier := conversation.requests.pop(request.key, None):
            self._drop_request(earlier)
        conversation.requests[request.key] = request
        self._requests.setdefault(request.link, []).append(request)
        self._unanswered.setdefault(request.before, []).append(request)
        self._entries += 1
        if len(conversation.requests) > self._turns:
            self._drop_request(conversation.requests.popitem(last=False)[1])
        self._make_room()

    def settle(self, request: PendingRequest, outcome: Outcome, turn_id: str | None, now: float) -> None:
        """Note what became of a request; only requests without a whole reply can be repeated or merged."""
        request.outcome, request.turn_id, request.at = outcome, turn_id or request.turn_id, now
        if outcome is Outcome.DONE:
            _remove_entry(self._unanswered, request.before, request)

    def replies_at(self, link: Link) -> list[SentReply]:
        """The replies that a history up to this link ends with."""
        return self._replies.get(link, [])

    def requests_at(self, link: Link) -> list[PendingRequest]:
        """The requests that a history up to this link ends with."""
        return self._requests.get(link, [])

    def unanswered_after(self, link: Link) -> list[PendingRequest]:
        """The requests without a whole reply whose last message hangs at this link."""
        return self._unanswered.get(link, [])

    def __iter__(self) -> Iterator[Conversation]:
        return iter(self._conversations.values())

    def _make_room(self) -> None:
        # The last conversation stays, or a request would be dropped while it is placed.
        while self._entries > self._max_entries and len(self._conversations) > 1:
            self.remove(next(iter(self._conversations)))

    def _drop_reply(self, reply: SentReply) -> None:
        self._entries -= 1
        for link in reply.links:
            _remove_entry(self._replies, link, reply)
        if reply.conversation.last_main is reply:
            reply.conversation.last_main = None

    def _drop_request(self, request: PendingRequest) -> None:
        self._entries -= 1
        _remove_entry(self._requests, request.link, request)
        _remove_entry(self._unanswered, request.before, request)


Entry = TypeVar("Entry", SentReply, PendingRequest)


def _remove_entry(table: dict[Link, list[Entry]], link: Link, entry: Entry) -> None:
    entries = table.get(link)
    if entries and entry in entries:
        entries.remove(entry)
        # An empty list would stay for ever: the entries are bounded, the links that clients can make are not.
        if not entries:
            del table[link]
