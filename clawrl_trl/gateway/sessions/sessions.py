"""Placement of requests in conversations, and the next states they give to earlier replies.

`Sessions` is the index of open conversations. It decides, for every request and before it is forwarded, the
session, main or side, the turn it follows and the next state it gives to earlier turns. It holds digests and
anchors only, never histories, and nothing here writes to the ledger: the gateway does, in one transaction, and
then tells the index what became of the request. Decisions follow from what was said to the index and from the
times given; there is no clock or chance in them.

What it promises where clients leave room for doubt:

- Two conversations that open alike stay apart: a request without a reply of ours in it is a new session, unless
  it repeats one that failed or was cut off in the last 15 minutes.
- Conversations that were alike up to and including our replies can't be told apart by history; the request goes
  to the one that was heard of last and still waits for an answer.
- A reply that the user stopped is answered by the words that follow, where the client shows them behind the words the
  reply was to. Any other reply that history no longer shows gets no next state: it was regenerated or rewritten.
- After a compaction a session goes on by the client's id, or by a long reply that history still shows word for word;
  else it is a new session.
"""

import time
from collections.abc import Callable, Collection
from hashlib import blake2b
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.gateway.sampling import STOPPED
from clawrl_trl.gateway.sessions import match
from clawrl_trl.gateway.sessions.digest import Chain, quotation, reply_digest, trail
from clawrl_trl.gateway.sessions.identity import Identity, named_session, strip_identity
from clawrl_trl.gateway.sessions.index import Conversation, Index, Outcome, PendingRequest, SentReply
from clawrl_trl.gateway.sessions.kinds import kind_of, setting_of
from clawrl_trl.gateway.sessions.match import ReplyMatch, Request
from clawrl_trl.gateway.sessions.placement import Answer, Incoming, Placement
from clawrl_trl.gateway.sessions.reading import Message, read
from clawrl_trl.gateway.sessions.senders import fold
from clawrl_trl.ledger import schema

__all__ = ["Answer", "Incoming", "Placement", "Sessions", "strip_identity"]


class Sessions:
    """The index of open conversations, rebuilt from the ledger at start.

    Args:
        now (`Callable[[], float]`, *optional*, defaults to `time.time`): The clock for outcomes of requests.
        limit (`int`, *optional*, defaults to 10,000): Conversations kept; the longest silent one goes first.
        entries (`int`, *optional*, defaults to 200,000): Replies and requests kept of all conversations.
        turns_per_session (`int`, *optional*, defaults to 256): Replies and requests kept of a conversation.
        ttl_s (`float`, *optional*, defaults to a week): How long a silent conversation is kept.
        owner_names (`Collection[str]`, *optional*): Names and ids under which the owner writes, where clients name
            the senders of messages. By default they are found for each conversation (`senders.choose_owner`).
    """

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.time,
        limit: int = 10_000,
        entries: int = 200_000,
        turns_per_session: int = 256,
        ttl_s: float = 7 * 86_400.0,
        owner_names: Collection[str] = (),
    ) -> None:
        self._now = now
        self._owner_names = fold(owner_names)
        self._index = Index(limit=limit, entries=entries, turns_per_session=turns_per_session, ttl_s=ttl_s)
        self._count = 0

    def __len__(self) -> int:
        return len(self._index)

    def place(self, incoming: Incoming) -> Placement:
        """Decide where a request belongs. Call it when the request arrives, before it is forwarded."""
        headers, body, request = incoming.headers, incoming.body, incoming.request
        reading = request.reading
        self._index.expire(incoming.now)

        kind, reason = kind_of(headers, body, reading, None)
        conversation = self._find(request, incoming.follows, plain=kind == "main")
        plain = kind == "main" and incoming.follows is None
        if plain and conversation is not None and self._continues(request, conversation):
            kind, reason = kind_of(headers, body, reading, conversation.setting)
        if conversation is None:
            conversation = self._open(request)
        self._index.touch(conversation, incoming.now)
        conversation.owner_names = reading.name_owner(self._owner_names, conversation.owner_names)
        followed = match.footing(self._index, request, conversation)
        if kind == "side":
            return _placement(request, conversation, kind, reason, followed)
        return self._place_main(request, conversation, reason, followed)

    def _find(self, request: Request, follows: str | None, *, plain: bool) -> Conversation | None:
        """The conversation a request belongs to; only a plain one may repeat or go on from a lost request."""
        if request.identity.external_id is not None:
            return self._index.get(named_session(request.owner, request.identity.external_id))
        if follows is not None and (conversation := self._index.get(follows)):
            return conversation
        if plain and (asked := match.repeated(self._index, request)):
            return asked.conversation
        if followed := match.shown(self._index, request):
            return followed.anchor.conversation
        if plain and (cut := match.stopped(self._index, request)):
            return cut[1].conversation
        if plain and (lost := match.folded(self._index, request)):
            return lost.conversation
        return match.quoted(self._index, request)

    def _continues(self, request: Request, conversation: Conversation) -> bool:
        """Return whether the request shows a reply of the conversation, after the same messages or by itself."""
        return bool(
            match.shown(self._index, request, conversation) or match.quoted(self._index, request) is conversation
        )

    def _place_main(
        self, request: Request, conversation: Conversation, reason: str, followed: ReplyMatch | None
    ) -> Placement:
        earlier = conversation.asked.get(request.key)
        again = earlier is not None and earlier.outcome is not Outcome.DONE
        retry_of = (earlier.turn_id or f"request_{request.key.hex()[:24]}") if earlier and again else None
        answered = self._answers(request, conversation, followed)
        conversation.bare = followed.bare if followed else conversation.bare
        reason = reason or _main_reason(earlier, followed, answered, conversation)
        self._ask(request, conversation)
        return _placement(request, conversation, "main", reason, followed, answered, retry_of)

    def _ask(self, request: Request, conversation: Conversation) -> PendingRequest:
        earlier = conversation.asked.get(request.key)
        lost = match.folded(self._index, request, conversation)
        asked = PendingRequest(
            key=request.key,
            link=request.link,
            before=request.before,
            text=request.text_digest,
            length=len(request.text),
            closed=request.closed,
            setting=request.setting,
            conversation=conversation,
            at=request.now,
            turn_id=earlier.turn_id if earlier else None,
            versions=request.versions(lost),
        )
        self._index.ask(asked)
        conversation.setting = request.setting
        return asked

    def _answers(self, request: Request, conversation: Conversation, followed: ReplyMatch | None) -> list[Answer]:
        """The next states this request gives: to the main turn it follows, and to one the user stopped since."""
        stopped = match.stopped_reply(self._index, request, conversation, followed)
        footings = [footing for footing in (followed, stopped) if footing is not None]
        return [answer for footing in footings for answer in self._answer(request, conversation, footing)]

    def _answer(self, request: Request, conversation: Conversation, footing: ReplyMatch) -> list[Answer]:
        position, anchor = footing.position, footing.anchor
        if not anchor.main:
            below = [link for at, link in request.path if at < position]
            main = (a for link in reversed(below) for a in self._index.anchors_at(link))
            anchor = next((a for a in main if a.main and a.conversation is conversation), anchor)
        if not anchor.main or anchor.answered:
            return []
        messages, provenance = request.reading.after(position)
        if not messages:
            return []
        anchor.claimed = request.key
        return [Answer(anchor.turn_id, messages, provenance)]

    def replied(
        self,
        placement: Placement,
        turn_id: str,
        response: Message,
        messages: list[Message],
        choice_index: int = 0,
        *,
        aborted: bool = False,
        stopped: bool = False,
    ) -> None:
        """Anchor a reply the gateway sent, after it was written to the ledger.

        Args:
            placement (`Placement`): What `place` said of the request.
            turn_id (`str`): The turn written.
            response (`dict`): The assistant message as the client saw it, also when it was cut.
            messages (`list[dict]`): The request's messages.
            choice_index (`int`, *optional*, defaults to 0): Which of several replies; the client shows which one
                it took.
            aborted (`bool`, *optional*, defaults to `False`): The reply was cut: the same request again is a retry.
            stopped (`bool`, *optional*, defaults to `False`): The client cut it: other words after it are about it.
        """
        conversation = self._index.get(placement.session_id) or self._reopen(placement)
        main = placement.kind == "main"  # a side request may end with the words of a main one that got no reply
        asked = conversation.asked.get(placement.request_key) if main else None
        if asked is not None and asked.outcome is not Outcome.DONE:
            self._index.settle(asked, _outcome(aborted, stopped), turn_id, self._now())
        given = {answer.turn_id for answer in placement.answered}
        for anchor in conversation.anchors:
            if anchor.turn_id in given:
                anchor.answered, anchor.claimed = True, b""
        self._anchor(conversation, asked, main, turn_id, response, messages, aborted=aborted)

    def failed(self, placement: Placement) -> None:
        """The request got no reply at all (the engine failed, the client left): repeating it is a retry."""
        conversation = self._index.get(placement.session_id) if placement.kind == "main" else None
        asked = conversation.asked.get(placement.request_key) if conversation else None
        if conversation is None or asked is None or asked.outcome is not Outcome.OPEN:
            return
        self._index.settle(asked, Outcome.FAILED, None, self._now())
        for anchor in conversation.anchors:
            if anchor.claimed == placement.request_key:
                anchor.claimed = b""

    def forget(self, session_id: str) -> None:
        """Drop a session from the index: it was deleted."""
        self._index.remove(session_id)

    def _anchor(
        self,
        conversation: Conversation,
        asked: PendingRequest | None,
        main: bool,
        turn_id: str,
        response: Message,
        messages: list[Message],
        *,
        aborted: bool,
    ) -> SentReply | None:
        """Enter a reply under the chains that later history may show; none if it says nothing."""
        reply = {**response, "role": "assistant"}
        digest = reply_digest(reply)
        if asked is not None and asked.closed:
            before, links = asked.link, [Chain(link).add("assistant", reply) for link in (asked.link, *asked.versions)]
        else:
            path = trail(conversation.owner, read([*messages, reply]))
            if not path or path[-1][0] != len(messages):
                return None
            before, links = path[-2][1] if len(path) > 1 else b"", [path[-1][1]]
        if not digest:
            return None
        self._count += 1
        anchor = SentReply(turn_id, conversation, main, digest, before, self._count)
        quote = quotation(conversation.owner, reply)
        self._index.anchor(anchor, [*links, quote] if quote else links)
        if main:
            conversation.last_main = None if aborted else anchor
        return anchor

    def _open(self, request: Request) -> Conversation:
        identity = request.identity
        if identity.external_id is not None:
            session_id = named_session(request.owner, identity.external_id)
        else:
            self._count += 1
            facts = f"{request.owner}\0{request.now!r}\0{self._count}".encode("utf-8", "replace")
            fresh = blake2b(facts + request.link, digest_size=8).hexdigest()
            session_id = f"session_{int(request.now * 1e6) & (2**48 - 1):012x}{fresh}"
        conversation = Conversation(session_id, request.owner, identity.external_id, identity.source, request.now)
        self._index.add(conversation)
        return conversation

    def _reopen(self, placement: Placement) -> Conversation:
        conversation = Conversation(
            placement.session_id,
            placement.owner,
            placement.external_id,
            placement.identity_source,
            self._now(),
        )
        self._index.add(conversation)
        return conversation

    def load(self, tx: Transaction, *, newest: int = 2_000) -> None:
        """Rebuild the index from the ledger's `newest` turns."""
        numbers = select(schema.Turn.seq).order_by(schema.Turn.seq.desc()).limit(newest)
        columns = (
            *(schema.Turn.id, schema.Turn.kind, schema.Turn.messages, schema.Turn.tools),
            *(schema.Turn.response, schema.Turn.finish_reason, schema.Turn.created_at),
            *(schema.Turn.next_state_at, schema.Turn.sampling),
        )
        rows = select(*columns, schema.Session).join(schema.Session, schema.Session.id == schema.Turn.session_id)
        rows = rows.where(schema.Turn.seq.in_(numbers)).order_by(schema.Turn.seq)
        for row in tx.execute(rows.execution_options(yield_per=32)):
            self._remember(row.Session, row)

    def _remember(self, session: schema.Session, turn: Any) -> None:
        conversation = self._index.get(session.id)
        if conversation is None:
            conversation = Conversation(
                session.id, session.owner, session.external_id, session.identity_source, session.last_at
            )
            self._index.add(conversation)
        self._index.touch(conversation, turn.created_at)
        aborted = turn.finish_reason == "abort"
        asked = None
        if turn.kind == "main":
            reading = read(turn.messages)
            conversation.owner_names = reading.name_owner(self._owner_names, conversation.owner_names)
            identity = Identity(session.external_id, session.identity_source)
            setting = setting_of(reading, turn.tools)
            request = Request(session.owner, reading, identity, setting, turn.created_at)
            asked = self._ask(request, conversation)
            self._index.settle(asked, _outcome(aborted, STOPPED in (turn.sampling or {})), turn.id, turn.created_at)
        anchor = self._anchor(
            conversation, asked, turn.kind == "main", turn.id, turn.response, turn.messages, aborted=aborted
        )
        if anchor is not None:
            anchor.answered = turn.next_state_at is not None


def _outcome(aborted: bool, stopped: bool) -> Outcome:
    if not aborted:
        return Outcome.DONE
    return Outcome.STOPPED if stopped else Outcome.ABORTED


def _main_reason(
    earlier: PendingRequest | None, followed: ReplyMatch | None, answered: list[Answer], conversation: Conversation
) -> str:
    if earlier is not None and earlier.outcome is not Outcome.DONE:
        return "the same request again, after no whole reply"
    if earlier is not None and not answered:
        return "the same messages again: another reply to them"
    if followed is not None:
        return "it follows a reply of this session"
    if conversation.asked:
        return "it goes on with this session; the reply before is not in its history"
    return "the first request of a conversation"


def _placement(
    request: Request,
    conversation: Conversation,
    kind: str,
    reason: str,
    followed: ReplyMatch | None,
    answered: list[Answer] | None = None,
    retry_of: str | None = None,
) -> Placement:
    return Placement(
        session_id=conversation.id,
        external_id=conversation.external_id,
        identity_source=request.identity.source,
        kind=kind,
        kind_reason=reason,
        parent_id=followed.anchor.turn_id if followed else None,
        provenance=request.reading.provenance,
        answered=answered or [],
        retry_of=retry_of,
        owner=request.owner,
        request_key=request.key,
    )
