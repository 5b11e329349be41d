"""Finding the conversation that a prompt continues, and the reply in it that the prompt follows.

Without an id in the request the evidence is, in this order: it repeats a request that got no whole reply; it shows a
reply that the gateway sent, after the same messages; it goes on from a request whose reply was stopped or lost; it
quotes a long reply that only one conversation got. Anything less is a new conversation: two clients that open with
the same words stay two, and a lost request or a stopped reply of one says nothing about a request under another
system prompt.
"""

from dataclasses import dataclass

from clawrl_trl.gateway.sessions.digest import digest_reply, digest_text, quote_link
from clawrl_trl.gateway.sessions.identity import Identity
from clawrl_trl.gateway.sessions.incoming import Prompt
from clawrl_trl.gateway.sessions.index import Conversation, Index, Outcome, PendingRequest, SentReply

RETRY_S = 900.0
"""How long after a failure the same request still counts as its repetition."""

# Anybody may send the same opening many times; only the newest of those who share a link are compared.
_CANDIDATES = 256
_MERGE_CANDIDATES = 32


@dataclass(frozen=True, slots=True)
class ReplyMatch:
    """The reply that a prompt follows, and where it stands in the messages.

    `is_unseen` says that the prompt shows nothing of the conversation so far.
    """

    position: int
    reply: SentReply
    is_unseen: bool = False


def find_repeated(index: Index, prompt: Prompt) -> PendingRequest | None:
    """An earlier request without a whole reply that this one repeats, by the client's word or by its content."""
    # Without a message that history keeps every such request would look like every other.
    if not prompt.path:
        return None
    says_retry = prompt.reading.is_retry()
    repeated = [
        request
        for request in index.requests_at(prompt.link)[-_CANDIDATES:]
        if request.key == prompt.key
        and request.outcome is not Outcome.DONE
        # The real client backs off for up to 25 s at a time; after a long while the same words are a new chat.
        and prompt.at - request.at <= RETRY_S
        # While a request is under way the same words are more likely another client's than a repetition.
        and (says_retry or (request.outcome is not Outcome.OPEN and request.setting.is_like(prompt.setting)))
    ]
    return max(repeated, key=lambda request: _likeness(prompt, request), default=None)


def _likeness(prompt: Prompt, request: PendingRequest) -> tuple[bool, bool, float]:
    """Among requests that look the same: one made under the same setting, then one that is known to be lost."""
    is_lost = request.outcome in (Outcome.FAILED, Outcome.ABORTED, Outcome.STOPPED)
    return request.setting.is_like(prompt.setting), is_lost, request.at


def match_reply(index: Index, prompt: Prompt, within: Conversation | None = None) -> ReplyMatch | None:
    """The last reply of ours that the prompt shows after the messages it was given to."""
    for position, link in reversed(prompt.path):
        replies = [reply for reply in index.replies_at(link)[-_CANDIDATES:] if within in (None, reply.conversation)]
        if replies:
            return ReplyMatch(position, max(replies, key=lambda reply: _preference(prompt, reply)))
    return None


def _preference(prompt: Prompt, reply: SentReply) -> tuple[int, bool, bool, bool, int]:
    """Among replies that look the same: a conversation named like the request, one under its system prompt, then the
    newest unanswered.
    """
    is_free = reply.is_main and not reply.is_answered and reply.claimed_by in (b"", prompt.key)
    setting = reply.conversation.setting
    is_prompted_like = setting is None or setting.is_prompted_like(prompt.setting)
    kinship = _kinship(prompt.identity, reply.conversation)
    return kinship, is_prompted_like, is_free, reply.is_main, reply.order


def _kinship(identity: Identity, conversation: Conversation) -> int:
    if identity.source == conversation.source:
        return 2
    return 1 if conversation.source.startswith("message:") or conversation.source == "inferred" else 0


def find_stopped(
    index: Index, prompt: Prompt, within: Conversation | None = None
) -> tuple[int, PendingRequest] | None:
    """An earlier request that this one goes on from without showing any reply: the user stopped it, or it died.

    Returns:
        `tuple[int, PendingRequest] | None`: The place of its last message in this prompt, and the request.
    """
    for position, link in reversed(prompt.path[:-1]):
        # What stands before a reply got that reply: nothing was stopped there.
        if position < prompt.last_reply:
            return None
        stopped = [
            request
            for request in index.requests_at(link)[-_CANDIDATES:]
            if _is_dangling(request)
            and (
                request.conversation is within or (within is None and request.setting.is_prompted_like(prompt.setting))
            )
        ]
        if stopped:
            return position, max(stopped, key=lambda request: _likeness(prompt, request))
    return None


def match_stopped_reply(
    index: Index, prompt: Prompt, conversation: Conversation, followed: ReplyMatch | None
) -> ReplyMatch | None:
    """The reply in this conversation that the user stopped to say what this prompt says.

    The client shows the words it was asked with, no reply, and the user's next words. A reply that nobody saw being
    cut counts as well, because a client may have hung up behind the last byte, but not on the strength of an opening
    alone: others may open alike.
    """
    stopped = find_stopped(index, prompt, conversation)
    if stopped is None:
        return None
    position, request = stopped
    # Only a reply that the user cut, or heard to its end, is what the next words are about; others are retried.
    if request.outcome not in (Outcome.STOPPED, Outcome.DONE):
        return None
    is_named = prompt.identity.external_id is not None and not prompt.identity.loose
    if request.outcome is Outcome.DONE and not is_named and followed is None:
        return None
    replies = (reply for reply in reversed(conversation.replies) if reply.turn_id == request.turn_id)
    reply = next(replies, None)
    return ReplyMatch(position, reply) if reply is not None else None


def find_quoted(index: Index, prompt: Prompt) -> Conversation | None:
    """The one conversation in which the gateway sent a reply that the prompt has word for word.

    It leads on where the messages before that reply were rewritten: after a compaction.
    """
    notes, messages = prompt.reading.notes, prompt.reading.messages
    for position in reversed([index for index, _ in prompt.path if notes[index].role == "assistant"]):
        link = quote_link(prompt.owner, messages[position])
        replies = index.replies_at(link) if link else []
        conversations = {reply.conversation.id: reply.conversation for reply in replies}
        if len(conversations) == 1:
            return next(iter(conversations.values()))
    return None


def _is_dangling(request: PendingRequest) -> bool:
    if request.outcome is not Outcome.DONE:
        return True
    last = request.conversation.last_main
    return last is not None and last.turn_id == request.turn_id and not last.is_answered and not last.claimed_by


def find_merged(index: Index, prompt: Prompt, within: Conversation | None = None) -> PendingRequest | None:
    """An earlier request whose lost message the client put in front of this prompt's last message."""
    is_queued = bool(prompt.path) and prompt.reading.notes[prompt.path[-1][0]].is_queued
    for request in reversed(index.unanswered_after(prompt.before)[-_MERGE_CANDIDATES:]):
        if within not in (None, request.conversation) or prompt.at - request.at > RETRY_S:
            continue
        # A message whose reply is still under way is lost only if the client says so.
        if request.outcome is Outcome.OPEN and not is_queued:
            continue
        if within is None and not request.setting.is_prompted_like(prompt.setting):
            continue
        rest = prompt.text[request.text_length :]
        lost_text = prompt.text[: request.text_length]
        if request.text_length and rest.startswith("\n") and digest_text(lost_text) == request.text_digest:
            return request
    return None


def match_followed_reply(index: Index, prompt: Prompt, conversation: Conversation) -> ReplyMatch | None:
    """The reply in this conversation that the prompt follows.

    By the links first. When history was rewritten in front of it, the last assistant message may still be a reply
    of ours word for word. With a session the client names, the place of the reply is enough (the client changed
    its text), and so is nothing at all: a client that sends only what is new.
    """
    matched = match_reply(index, prompt, conversation)
    last = prompt.last_reply
    if matched is not None and matched.position >= last:
        return matched
    if last >= 0:
        digest = digest_reply(prompt.reading.messages[last])
        for reply in reversed(conversation.replies):
            # Answered ones are left out: a short reply ("Done.") may have been given before.
            if digest and reply.is_main and not reply.is_answered and reply.digest == digest:
                return ReplyMatch(last, reply)
    if matched is not None or prompt.identity.external_id is None or prompt.identity.loose:
        return matched
    newest = conversation.last_main
    if newest is None:
        return None
    positions = {link: position for position, link in prompt.path}
    if conversation.sends_news_only:
        return ReplyMatch(last, newest, is_unseen=True)
    if newest.request_link in positions:
        return ReplyMatch(last, newest) if last > positions[newest.request_link] else None
    # A prompt that shows an earlier request of the conversation is a history from which the newest reply was taken
    # out (a fork, a regeneration), and not the next message of a client that sends only what is new.
    earlier = (request for link in positions for request in index.requests_at(link))
    shows_earlier = any(request.conversation is conversation for request in earlier)
    return None if shows_earlier else ReplyMatch(last, newest, is_unseen=True)
