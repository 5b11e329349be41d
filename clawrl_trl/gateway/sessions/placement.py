"""The place of a request: its session, its kind, and the earlier turns it answers.

Plain values, so that what places requests and what writes them to the ledger need to agree on nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from clawrl_trl.gateway.sessions.incoming import Prompt
from clawrl_trl.gateway.sessions.index import Conversation, Outcome, PendingRequest
from clawrl_trl.gateway.sessions.match import ReplyMatch
from clawrl_trl.messages import Message

RETRIED = "the same request again, after no whole reply"
"""Kind reason of a main request that repeats one whose reply was cut or never came."""


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
    """The place of one prompt: its session, its kind, and the turns it follows and answers.

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
        owner: The owner of the session.
        request_key: Finds the request in the session, see `incoming.Prompt.key`.
    """

    session_id: str
    external_id: str | None
    identity_source: str
    kind: str
    kind_reason: str
    parent_id: str | None
    provenance: list[str]
    answered: list[Answer] = field(default_factory=list)
    owner: str = field(default="local", repr=False)
    request_key: bytes = field(default=b"", repr=False)


def explain_main(
    earlier: PendingRequest | None, followed: ReplyMatch | None, answers: list[Answer], conversation: Conversation
) -> str:
    """Explain why a main request has its place, in a short sentence."""
    if earlier is not None and earlier.outcome is not Outcome.DONE:
        return RETRIED
    if earlier is not None and not answers:
        return "the same messages again: another reply to them"
    if followed is not None:
        return "it follows a reply of this session"
    if conversation.requests:
        return "it goes on with this session; the reply before is not in its history"
    return "the first request of a conversation"


def make_placement(
    prompt: Prompt,
    conversation: Conversation,
    kind: str,
    reason: str,
    followed: ReplyMatch | None,
    answers: Sequence[Answer] = (),
) -> Placement:
    """Make the placement of a prompt in a conversation."""
    return Placement(
        session_id=conversation.id,
        external_id=conversation.external_id,
        identity_source=prompt.identity.source,
        kind=kind,
        kind_reason=reason,
        parent_id=followed.reply.turn_id if followed else None,
        provenance=prompt.reading.provenance,
        answered=list(answers),
        owner=prompt.owner,
        request_key=prompt.key,
    )
