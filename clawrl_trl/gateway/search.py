"""Finding the conversation that a request continues, and the reply in it that the request follows.

A `Request` is what arrived, prepared; the functions look it up in the index. Without an id in the request the
evidence is, in this order: it repeats a request that got no whole reply; it shows a reply that the gateway sent,
after the same messages; it goes on from a request whose reply was stopped or lost. Anything less is a new
conversation: two clients that open with the same words stay two.
"""

from dataclasses import dataclass

from clawrl_trl.gateway.chain import Chain, Link, reply_digest, root, text_digest, trail
from clawrl_trl.gateway.identity import Identity
from clawrl_trl.gateway.index import Anchor, Asked, Conversation, Index, Outcome
from clawrl_trl.gateway.kinds import Setting
from clawrl_trl.gateway.messages import Fate, Reading

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
        text: That message's cleaned text, if the request ends with it.
        closed: The request ends with a message that history keeps and that a reply can't merge with.
        key: Tells requests of one conversation apart: the chain and the internal events behind it.
    """

    def __init__(self, owner: str, reading: Reading, identity: Identity, setting: Setting, now: float) -> None:
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
        trigger = reading.trigger()
        self.closed = last in ("user", "tool") and (trigger is None or trigger.fate is Fate.KEPT)
        events = (note.text for note in notes if note.fate is Fate.EVENT)
        self.key = self.link + text_digest("\0".join(events))
        replies = (index for index, _ in reversed(self.path) if notes[index].role == "assistant")
        self.last_reply = next(replies, -1)

    def versions(self, lost: Asked | None) -> tuple[Link, ...]:
        """The chains it may end with in later history, when its last message is one folded into another."""
        if not self.text:
            return ()
        texts = list(self.reading.notes[self.path[-1][0]].versions)
        if lost is not None:
            texts.append(self.text[lost.length :].strip())
        return tuple(Chain(self.before).add("user", {}, text) for text in dict.fromkeys(texts) if text)


@dataclass(frozen=True, slots=True)
class Footing:
    """The reply that a request follows: where it stands in the messages, and its anchor.

    `bare` says that the request shows nothing of the conversation so far.
    """

    position: int
    anchor: Anchor
    bare: bool = False


def repeated(index: Index, request: Request) -> Asked | None:
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
        and (said or (asked.outcome is not Outcome.OPEN and asked.setting == request.setting))
    ]
    return max(found, key=lambda asked: _likeness(request, asked), default=None)


def _likeness(request: Request, asked: Asked) -> tuple[bool, bool, float]:
    """Among requests that look the same: one asked under the same setting, then one that is known to be lost."""
    lost = asked.outcome in (Outcome.FAILED, Outcome.ABORTED)
    return asked.setting == request.setting, lost, asked.at


def shown(index: Index, request: Request, within: Conversation | None = None) -> Footing | None:
    """The last reply of ours that the request shows after the messages it was given to."""
    for position, link in reversed(request.path):
        anchors = [a for a in index.anchors_at(link)[-_CANDIDATES:] if within in (None, a.conversation)]
        if anchors:
            return Footing(position, max(anchors, key=lambda anchor: _preference(request, anchor)))
    return None


def _preference(request: Request, anchor: Anchor) -> tuple[int, bool, bool, int]:
    """Among replies that look the same: a conversation named like the request, then the newest unanswered."""
    free = anchor.main and not anchor.answered and anchor.claimed in (b"", request.key)
    return _kinship(request.identity, anchor.conversation), free, anchor.main, anchor.order


def _kinship(identity: Identity, conversation: Conversation) -> int:
    if identity.source == conversation.source:
        return 2
    return 1 if conversation.source.startswith("message:") or conversation.source == "inferred" else 0


def stopped(index: Index, request: Request) -> Asked | None:
    """An earlier request that this one goes on from without showing any reply: the user stopped it, or it died."""
    for position, link in reversed(request.path[:-1]):
        if position < request.last_reply:
            return None
        found = [asked for asked in index.asked_at(link)[-_CANDIDATES:] if _dangling(asked)]
        if found:
            return max(found, key=lambda asked: _likeness(request, asked))
    return None


def _dangling(asked: Asked) -> bool:
    if asked.outcome is not Outcome.DONE:
        return True
    last = asked.conversation.last_main
    return last is not None and last.turn_id == asked.turn_id and not last.answered and not last.claimed


def folded(index: Index, request: Request, within: Conversation | None = None) -> Asked | None:
    """An earlier request whose lost message stands in front of this one's last message."""
    queued = bool(request.path) and request.reading.notes[request.path[-1][0]].queued
    for asked in reversed(index.unanswered_after(request.before)[-_FOLDS:]):
        if within not in (None, asked.conversation) or request.now - asked.at > RETRY_S:
            continue
        if asked.outcome is Outcome.OPEN and not queued:
            continue
        rest = request.text[asked.length :]
        if asked.length and rest.startswith("\n") and text_digest(request.text[: asked.length]) == asked.text:
            return asked
    return None


def footing(index: Index, request: Request, conversation: Conversation) -> Footing | None:
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
                return Footing(last, anchor)
    if found is not None or request.identity.external_id is None or request.identity.loose:
        return found
    newest = conversation.last_main
    if newest is None:
        return None
    positions = {link: position for position, link in request.path}
    if conversation.bare:
        return Footing(last, newest, bare=True)
    if newest.asked in positions:
        return Footing(last, newest) if last > positions[newest.asked] else None
    overlap = any(a.conversation is conversation for link in positions for a in index.asked_at(link))
    return None if overlap else Footing(last, newest, bare=True)
