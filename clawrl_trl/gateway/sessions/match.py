"""Finding the conversation that a request continues, and the reply in it that the request follows.

A `Request` is what arrived, prepared; the functions look it up in the index. Without an id in the request the
evidence is, in this order: it repeats a request that got no whole reply; it shows a reply that the gateway sent,
after the same messages; it goes on from a request whose reply was stopped or lost; it quotes a long reply that only
one conversation got. Anything less is a new conversation: two clients that open with the same words stay two, and a
lost request or a stopped reply of one says nothing about a request under another system prompt.
"""

from dataclasses import dataclass

from clawrl_trl.gateway.sessions.digest import Chain, Link, quotation, reply_digest, root, text_digest, trail
from clawrl_trl.gateway.sessions.identity import Identity
from clawrl_trl.gateway.sessions.index import Conversation, Index, Outcome, PendingRequest, SentReply
from clawrl_trl.gateway.sessions.kinds import RequestSetting
from clawrl_trl.gateway.sessions.reading import HistoryRole, Reading

RETRY_S = 900.0
"""How long after a failure the same request still counts as its repetition."""

_CANDIDATES = 256
_FOLDS = 32


class Request:
    """A request prepared for the search.

    Attributes:
        path: `(index of the message, link)` of what later history keeps.
        link: The chain it ends with.
        before: The chain up to the last user message.
        text: That message's cleaned text, if the request ends with it; `text_digest` is its digest.
        closed: The request ends with a message that history keeps and that a reply can't merge with.
        key: Tells requests of one conversation apart: the chain and the internal events behind it.
    """

    def __init__(self, owner: str, reading: Reading, identity: Identity, setting: RequestSetting, now: float) -> None:
        self.owner = owner
        self.reading = reading
        self.identity = identity
        self.setting = setting
        self.now = now
        self.path = trail(owner, reading)
        start = root(owner)
        self.link = self.path[-1][1] if self.path else start
        notes = reading.notes
        last = notes[self.path[-1][0]].role if self.path else ""
        self.before = self.path[-2][1] if len(self.path) > 1 else start
        self.text = notes[self.path[-1][0]].text if last == "user" else ""
        self.text_digest = text_digest(self.text)
        trigger = reading.trigger()
        self.closed = last in ("user", "tool") and (trigger is None or trigger.fate is HistoryRole.KEPT)
        events = (note.text for note in notes if note.fate is HistoryRole.EVENT)
        self.key = self.link + text_digest("\0".join(events))
        replies = (index for index, _ in reversed(self.path) if notes[index].role == "assistant")
        self.last_reply = next(replies, -1)

    def versions(self, lost: PendingRequest | None) -> tuple[Link, ...]:
        """The chains it may end with in later history, when its last message is one folded into another."""
        if not self.text:
            return ()
        texts = list(self.reading.notes[self.path[-1][0]].versions)
        if lost is not None:
            texts.append(self.text[lost.length :].strip())
        return tuple(self._up_to_last().add("user", {}, text) for text in dict.fromkeys(texts) if text)

    def _up_to_last(self) -> Chain:
        """The chain up to the last user message, ready to go on as its own run of messages does."""
        chain = Chain(root(self.owner))
        for position, _ in self.path[:-1]:
            note = self.reading.notes[position]
            chain.add(note.role, self.reading.messages[position], note.text)
        return chain


@dataclass(frozen=True, slots=True)
class ReplyMatch:
    """The reply that a request follows: where it stands in the messages, and its anchor.

    `bare` says that the request shows nothing of the conversation so far.
    """

    position: int
    anchor: SentReply
    bare: bool = False


def repeated(index: Index, request: Request) -> PendingRequest | None:
    """An earlier request without a whole reply that this one repeats, by the client's word or by its content."""
    if not request.path:
        return None
    said = request.reading.retried()
    found = [
        asked
        for asked in index.asked_at(request.link)[-_CANDIDATES:]
        if asked.key == request.key
        and asked.outcome is not Outcome.DONE
        and request.now - asked.at <= RETRY_S
        and (said or (asked.outcome is not Outcome.OPEN and asked.setting.like(request.setting)))
    ]
    return max(found, key=lambda asked: _likeness(request, asked), default=None)


def _likeness(request: Request, asked: PendingRequest) -> tuple[bool, bool, float]:
    """Among requests that look the same: one asked under the same setting, then one that is known to be lost."""
    lost = asked.outcome in (Outcome.FAILED, Outcome.ABORTED, Outcome.STOPPED)
    return asked.setting.like(request.setting), lost, asked.at


def shown(index: Index, request: Request, within: Conversation | None = None) -> ReplyMatch | None:
    """The last reply of ours that the request shows after the messages it was given to."""
    for position, link in reversed(request.path):
        anchors = [a for a in index.anchors_at(link)[-_CANDIDATES:] if within in (None, a.conversation)]
        if anchors:
            return ReplyMatch(position, max(anchors, key=lambda anchor: _preference(request, anchor)))
    return None


def _preference(request: Request, anchor: SentReply) -> tuple[int, bool, bool, bool, int]:
    """Among replies that look the same: a conversation named like the request, one under its system prompt, then the
    newest unanswered.
    """
    free = anchor.main and not anchor.answered and anchor.claimed in (b"", request.key)
    setting = anchor.conversation.setting
    prompted = setting is None or setting.prompted_like(request.setting)
    return _kinship(request.identity, anchor.conversation), prompted, free, anchor.main, anchor.order


def _kinship(identity: Identity, conversation: Conversation) -> int:
    if identity.source == conversation.source:
        return 2
    return 1 if conversation.source.startswith("message:") or conversation.source == "inferred" else 0


def stopped(index: Index, request: Request, within: Conversation | None = None) -> tuple[int, PendingRequest] | None:
    """An earlier request that this one goes on from without showing any reply: the user stopped it, or it died.

    Returns:
        `tuple[int, Asked] | None`: The place of its last message in this request, and the request.
    """
    for position, link in reversed(request.path[:-1]):
        if position < request.last_reply:
            return None
        found = [
            asked
            for asked in index.asked_at(link)[-_CANDIDATES:]
            if _dangling(asked)
            and (asked.conversation is within or (within is None and asked.setting.prompted_like(request.setting)))
        ]
        if found:
            return position, max(found, key=lambda asked: _likeness(request, asked))
    return None


def stopped_reply(
    index: Index, request: Request, conversation: Conversation, followed: ReplyMatch | None
) -> ReplyMatch | None:
    """The reply in this conversation that the user stopped to say what this request says.

    The client shows the words it was asked with, no reply, and the user's next words. A reply that nobody saw being
    cut counts as well, because a client may have hung up behind the last byte, but not on the strength of an opening
    alone: others may open alike.
    """
    found = stopped(index, request, conversation)
    if found is None or found[1].outcome not in (Outcome.STOPPED, Outcome.DONE):
        return None
    named = request.identity.external_id is not None and not request.identity.loose
    if found[1].outcome is Outcome.DONE and not named and followed is None:
        return None
    anchors = (anchor for anchor in reversed(conversation.anchors) if anchor.turn_id == found[1].turn_id)
    anchor = next(anchors, None)
    return ReplyMatch(found[0], anchor) if anchor is not None else None


def quoted(index: Index, request: Request) -> Conversation | None:
    """The one conversation in which the gateway sent a reply that the request has word for word.

    It leads on where the messages before that reply were rewritten: after a compaction.
    """
    notes, messages = request.reading.notes, request.reading.messages
    for position in reversed([index for index, _ in request.path if notes[index].role == "assistant"]):
        link = quotation(request.owner, messages[position])
        found = {anchor.conversation.id: anchor.conversation for anchor in index.anchors_at(link)} if link else {}
        if len(found) == 1:
            return next(iter(found.values()))
    return None


def _dangling(asked: PendingRequest) -> bool:
    if asked.outcome is not Outcome.DONE:
        return True
    last = asked.conversation.last_main
    return last is not None and last.turn_id == asked.turn_id and not last.answered and not last.claimed


def folded(index: Index, request: Request, within: Conversation | None = None) -> PendingRequest | None:
    """An earlier request whose lost message stands in front of this one's last message."""
    queued = bool(request.path) and request.reading.notes[request.path[-1][0]].queued
    for asked in reversed(index.unanswered_after(request.before)[-_FOLDS:]):
        if within not in (None, asked.conversation) or request.now - asked.at > RETRY_S:
            continue
        if asked.outcome is Outcome.OPEN and not queued:
            continue
        if within is None and not asked.setting.prompted_like(request.setting):
            continue
        rest = request.text[asked.length :]
        if asked.length and rest.startswith("\n") and text_digest(request.text[: asked.length]) == asked.text:
            return asked
    return None


def footing(index: Index, request: Request, conversation: Conversation) -> ReplyMatch | None:
    """The reply in this conversation that the request follows.

    By the chain first. When history was rewritten in front of it, the last assistant message may still be a reply
    of ours word for word. With a session the client names, the place of the reply is enough (the client changed
    its text), and so is nothing at all: a client that sends only what is new.
    """
    found = shown(index, request, conversation)
    last = request.last_reply
    if found is not None and found.position >= last:
        return found
    if last >= 0:
        reply = reply_digest(request.reading.messages[last])
        for anchor in reversed(conversation.anchors):
            if reply and anchor.main and not anchor.answered and anchor.reply == reply:
                return ReplyMatch(last, anchor)
    if found is not None or request.identity.external_id is None or request.identity.loose:
        return found
    newest = conversation.last_main
    if newest is None:
        return None
    positions = {link: position for position, link in request.path}
    if conversation.bare:
        return ReplyMatch(last, newest, bare=True)
    if newest.asked in positions:
        return ReplyMatch(last, newest) if last > positions[newest.asked] else None
    overlap = any(a.conversation is conversation for link in positions for a in index.asked_at(link))
    return None if overlap else ReplyMatch(last, newest, bare=True)
