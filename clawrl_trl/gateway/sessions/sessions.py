"""Placement of requests in conversations, and the next states they give to earlier replies.

`Sessions` is the index of open conversations. It decides, for every request and before it is forwarded, the
session, main or side, the turn it follows and the next state it gives to earlier turns. It holds digests
only, never histories, and nothing here writes to the ledger: the gateway does, in one transaction, and
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

from sqlalchemy import Row, select
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.gateway.sampling import STOPPED
from clawrl_trl.gateway.sessions import match
from clawrl_trl.gateway.sessions.digest import HistoryDigest, digest_history, digest_reply, quote_link
from clawrl_trl.gateway.sessions.identity import Identity, named_session
from clawrl_trl.gateway.sessions.incoming import IncomingRequest, Prompt
from clawrl_trl.gateway.sessions.index import Conversation, Index, Outcome, PendingRequest, SentReply
from clawrl_trl.gateway.sessions.kinds import find_kind, find_setting, why_side_beside
from clawrl_trl.gateway.sessions.match import ReplyMatch
from clawrl_trl.gateway.sessions.placement import RETRIED, Answer, Placement, explain_main, make_placement
from clawrl_trl.gateway.sessions.reading import read
from clawrl_trl.gateway.sessions.selection import select_turns
from clawrl_trl.gateway.sessions.senders import fold
from clawrl_trl.ledger import schema
from clawrl_trl.messages import Message

__all__ = ["RETRIED", "Answer", "IncomingRequest", "Placement", "Sessions"]


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

    def place(self, request: IncomingRequest) -> list[Placement]:
        """Decide where each prompt of a request belongs, and open or continue its session in the index.

        Call it when the request arrives, before it is forwarded.
        """
        return [self._place_prompt(request, prompt) for prompt in request.prompts]

    def _place_prompt(self, request: IncomingRequest, prompt: Prompt) -> Placement:
        # By the request's time and not the clock's, so that the same requests are placed the same again.
        self._index.expire(prompt.at)
        kind, reason = find_kind(request.headers, request.body, prompt.reading)
        conversation = self._find(prompt, request.follows, is_plain=kind == "main")
        # A client that states the kind or names the reply it follows knows better than its prompt and tools tell.
        is_unstated = kind == "main" and not reason and request.follows is None
        if is_unstated and conversation is not None and conversation.setting is not None:
            reason = why_side_beside(prompt.setting, conversation.setting)
            if reason and self._is_continued(prompt, conversation):
                kind = "side"
            else:
                reason = ""
        if conversation is None:
            conversation = self._open(prompt)
        self._index.touch(conversation, prompt.at)
        conversation.named_owner = prompt.reading.name_owner(self._owner_names, conversation.named_owner)
        followed = match.match_followed_reply(self._index, prompt, conversation)
        if kind == "side":
            return make_placement(prompt, conversation, kind, reason, followed)
        return self._place_main(prompt, conversation, reason, followed)

    def _find(self, prompt: Prompt, follows: str | None, *, is_plain: bool) -> Conversation | None:
        """The conversation a prompt belongs to; only a plain one may repeat or go on from a lost request."""
        # A name decides alone: content must not lead a named request into another session.
        if prompt.identity.external_id is not None:
            return self._index.get(named_session(prompt.owner, prompt.identity.external_id))
        if follows is not None and (conversation := self._index.get(follows)):
            return conversation
        # Before any reply is looked for: the repetition of a lost request shows the replies before it, too.
        if is_plain and (repeated := match.find_repeated(self._index, prompt)):
            return repeated.conversation
        if followed := match.match_reply(self._index, prompt):
            return followed.reply.conversation
        if is_plain and (stopped := match.find_stopped(self._index, prompt)):
            return stopped[1].conversation
        if is_plain and (merged := match.find_merged(self._index, prompt)):
            return merged.conversation
        # Last, because it is the weakest: the history in front of that reply is not compared.
        return match.find_quoted(self._index, prompt)

    def _is_continued(self, prompt: Prompt, conversation: Conversation) -> bool:
        """Return whether the prompt shows a reply of the conversation, after the same messages or by itself."""
        return bool(
            match.match_reply(self._index, prompt, conversation)
            or match.find_quoted(self._index, prompt) is conversation
        )

    def _place_main(
        self, prompt: Prompt, conversation: Conversation, reason: str, followed: ReplyMatch | None
    ) -> Placement:
        # Looked up before it is entered: entering it takes the earlier one's place.
        earlier = conversation.requests.get(prompt.key)
        answers = self._answers(prompt, conversation, followed)
        conversation.sends_news_only = followed.is_unseen if followed else conversation.sends_news_only
        reason = reason or explain_main(earlier, followed, answers, conversation)
        self._add_request(prompt, conversation)
        return make_placement(prompt, conversation, "main", reason, followed, answers)

    def _add_request(self, prompt: Prompt, conversation: Conversation) -> PendingRequest:
        earlier = conversation.requests.get(prompt.key)
        merged = match.find_merged(self._index, prompt, conversation)
        request = PendingRequest(
            key=prompt.key,
            link=prompt.link,
            before=prompt.before,
            text_digest=prompt.text_digest,
            text_length=len(prompt.text),
            is_closed=prompt.is_closed,
            setting=prompt.setting,
            conversation=conversation,
            at=prompt.at,
            turn_id=earlier.turn_id if earlier else None,
            versions=prompt.links_of_versions(merged.text_length if merged else None),
        )
        self._index.add_request(request)
        conversation.setting = prompt.setting
        return request

    def _answers(self, prompt: Prompt, conversation: Conversation, followed: ReplyMatch | None) -> list[Answer]:
        """The next states this prompt gives: to the main turn it follows, and to one the user stopped since."""
        stopped = match.match_stopped_reply(self._index, prompt, conversation, followed)
        matches = [matched for matched in (followed, stopped) if matched is not None]
        return [answer for matched in matches for answer in self._answer(prompt, conversation, matched)]

    def _answer(self, prompt: Prompt, conversation: Conversation, matched: ReplyMatch) -> list[Answer]:
        position, reply = matched.position, matched.reply
        # A side reply in the history is no turn to answer: the words are about the main reply before it.
        if not reply.is_main:
            links = [link for index, link in prompt.path if index < position]
            earlier = (candidate for link in reversed(links) for candidate in self._index.replies_at(link))
            reply = next((main for main in earlier if main.is_main and main.conversation is conversation), reply)
        if not reply.is_main or reply.is_answered:
            return []
        messages, provenance = prompt.reading.after(position)
        if not messages:
            return []
        # Claimed, not answered: the request may fail, and then its repetition gives the next state.
        reply.claimed_by = prompt.key
        return [Answer(reply.turn_id, messages, provenance)]

    def enter_reply(
        self,
        placement: Placement,
        turn_id: str,
        response: Message,
        messages: list[Message],
        *,
        aborted: bool = False,
        stopped: bool = False,
    ) -> None:
        """Enter a reply the gateway sent, after it was written to the ledger.

        Args:
            placement (`Placement`): What `place` returned for its prompt.
            turn_id (`str`): The turn written.
            response (`dict`): The assistant message as the client saw it, also when it was cut.
            messages (`list[dict]`): The prompt's messages.
            aborted (`bool`, *optional*, defaults to `False`): The reply was cut: the same request again is a retry.
            stopped (`bool`, *optional*, defaults to `False`): The client cut it: other words after it are about it.
        """
        # The index is bounded: it may have dropped the conversation while the reply was sampled.
        conversation = self._index.get(placement.session_id) or self._reopen(placement)
        is_main = placement.kind == "main"  # a side request may end with the words of a main one that got no reply
        request = conversation.requests.get(placement.request_key) if is_main else None
        if request is not None and request.outcome is not Outcome.DONE:
            self._index.settle(request, _choose_outcome(aborted, stopped), turn_id, self._now())
        answered = {answer.turn_id for answer in placement.answered}
        for reply in conversation.replies:
            if reply.turn_id in answered:
                reply.is_answered, reply.claimed_by = True, b""
        self._add_reply(conversation, request, is_main, turn_id, response, messages, aborted=aborted)

    def fail(self, placement: Placement) -> None:
        """Note that a prompt got no reply at all (the engine failed, the client left): repeating it is a retry."""
        conversation = self._index.get(placement.session_id) if placement.kind == "main" else None
        request = conversation.requests.get(placement.request_key) if conversation else None
        if conversation is None or request is None or request.outcome is not Outcome.OPEN:
            return
        self._index.settle(request, Outcome.FAILED, None, self._now())
        for reply in conversation.replies:
            if reply.claimed_by == placement.request_key:
                reply.claimed_by = b""

    def forget(self, session_id: str) -> None:
        """Drop a session from the index: it was deleted."""
        self._index.remove(session_id)

    def _add_reply(
        self,
        conversation: Conversation,
        request: PendingRequest | None,
        is_main: bool,
        turn_id: str,
        response: Message,
        messages: list[Message],
        *,
        aborted: bool,
    ) -> SentReply | None:
        """Enter a reply under the links that later history may show; none if it says nothing."""
        reply = {**response, "role": "assistant"}
        digest = digest_reply(reply)
        if request is not None and request.is_closed:
            # The request's links are known: a long history is not read again on the event loop.
            before = request.link
            links = [HistoryDigest(link).add("assistant", reply) for link in (request.link, *request.versions)]
        else:
            path = digest_history(conversation.owner, read([*messages, reply]))
            if not path or path[-1][0] != len(messages):
                return None
            before, links = path[-2][1] if len(path) > 1 else b"", [path[-1][1]]
        if not digest:
            return None
        self._count += 1
        sent_reply = SentReply(turn_id, conversation, is_main, digest, before, self._count)
        quote = quote_link(conversation.owner, reply)
        self._index.add_reply(sent_reply, [*links, quote] if quote else links)
        if is_main:
            # A cut reply is no place to go on from: its client shows it not at all, or in part.
            conversation.last_main = None if aborted else sent_reply
        return sent_reply

    def _open(self, prompt: Prompt) -> Conversation:
        identity = prompt.identity
        if identity.external_id is not None:
            session_id = named_session(prompt.owner, identity.external_id)
        else:
            self._count += 1
            # The count keeps apart two conversations that open alike at the same time.
            facts = f"{prompt.owner}\0{prompt.at!r}\0{self._count}".encode("utf-8", "replace")
            fresh = blake2b(facts + prompt.link, digest_size=8).hexdigest()
            session_id = f"session_{int(prompt.at * 1e6) & (2**48 - 1):012x}{fresh}"
        conversation = Conversation(session_id, prompt.owner, identity.external_id, identity.source, prompt.at)
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

    def load(self, tx: Transaction, *, newest: int = 2_000, budget: int = 512 * 2**20) -> None:
        """Rebuild the index from the ledger's `newest` turns, as far as the budget of bytes goes."""
        # Read oldest first: each request is entered on top of those before it.
        numbers = select_turns(tx, newest, budget)
        columns = (
            *(schema.Turn.id, schema.Turn.kind, schema.Turn.messages, schema.Turn.tools),
            *(schema.Turn.response, schema.Turn.finish_reason, schema.Turn.created_at),
            *(schema.Turn.next_state_at, schema.Turn.sampling),
        )
        rows = select(*columns, schema.Session).join(schema.Session, schema.Session.id == schema.Turn.session_id)
        rows = rows.where(schema.Turn.seq.in_(numbers)).order_by(schema.Turn.seq)
        # In small portions: each row holds the history of its conversation up to then.
        for row in tx.execute(rows.execution_options(yield_per=32)):
            self._remember(row.Session, row)

    def _remember(self, session: schema.Session, turn: "Row[*tuple[Any, ...]]") -> None:
        conversation = self._index.get(session.id)
        if conversation is None:
            conversation = Conversation(
                session.id, session.owner, session.external_id, session.identity_source, session.last_at
            )
            self._index.add(conversation)
        self._index.touch(conversation, turn.created_at)
        aborted = turn.finish_reason == "abort"
        request = None
        if turn.kind == "main":
            reading = read(turn.messages)
            conversation.named_owner = reading.name_owner(self._owner_names, conversation.named_owner)
            identity = Identity(session.external_id, session.identity_source)
            setting = find_setting(reading, turn.tools)
            prompt = Prompt(session.owner, reading, identity, setting, turn.created_at)
            request = self._add_request(prompt, conversation)
            self._index.settle(
                request, _choose_outcome(aborted, STOPPED in (turn.sampling or {})), turn.id, turn.created_at
            )
        reply = self._add_reply(
            conversation, request, turn.kind == "main", turn.id, turn.response, turn.messages, aborted=aborted
        )
        if reply is not None:
            reply.is_answered = turn.next_state_at is not None


def _choose_outcome(aborted: bool, stopped: bool) -> Outcome:
    if not aborted:
        return Outcome.DONE
    return Outcome.STOPPED if stopped else Outcome.ABORTED
