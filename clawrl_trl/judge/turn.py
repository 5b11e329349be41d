"""Input and output of judges.

A `JudgedTurn` is a frozen copy of one turn, so that a judge, ours or a user's, can't touch the ledger; a `Judgement`
is all a judge may say. A judge that can't work at the moment raises `JudgeUnavailable`: the turn then stays pending
and is judged later, because a failure of the machinery is never a score.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from clawrl_trl.judge.tools.results import ToolResult
from clawrl_trl.ledger import schema
from clawrl_trl.messages import Json, text_of

Message = Mapping[str, Any]


class JudgeUnavailable(Exception):
    """The judge can't decide at the moment (time-out, server away); the turn stays pending.

    Args:
        reason: For the ledger's events; no message text.
        patience: Attempts after which the turn is judged as abstained for this reason; `None` is never.
        delay: Seconds until the next attempt; `None` for longer and longer ones.
        is_attempt: False if the turn itself was not tried, for a server was away or an exam under way: it then
            counts for no patience.
    """

    def __init__(
        self, reason: str, patience: int | None = None, delay: float | None = None, *, is_attempt: bool = True
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.patience = patience
        self.delay = delay
        self.is_attempt = is_attempt


class JudgeTimedOut(JudgeUnavailable):
    """The judge's server is there and takes too long."""


@dataclass(frozen=True)
class FeedbackItem:
    """One piece of explicit feedback: `kind` is thumbs, text, correction or outcome."""

    kind: str
    value: float | None
    text: str | None


@dataclass(frozen=True)
class JudgedTurn:
    """A frozen copy of one turn, the input of a judge.

    Args:
        turn_id: The ledger's id.
        session_id: The conversation's id.
        messages: The request's messages, as the client sent them.
        tools: Tool definitions of the request, or `None`.
        response: The assistant message the client got.
        next_state: All messages between the reply and the next one; empty when only feedback came.
        next_state_provenance: Who each of those came from: owner, tool, event, client, system, assistant.
        feedback: Explicit feedback, oldest first.
        policy_version: The version that wrote the response, `None` when unknown.
        provenance: Who each of `messages` came from; may be shorter than `messages`.
    """

    turn_id: str
    session_id: str
    messages: Sequence[Message]
    tools: Sequence[Message] | None
    response: Message
    next_state: Sequence[Message]
    next_state_provenance: Sequence[str]
    feedback: Sequence[FeedbackItem]
    policy_version: int | None
    provenance: Sequence[str] = ()

    @classmethod
    def of(cls, turn: schema.Turn, feedback: Sequence[schema.Feedback]) -> "JudgedTurn":
        """The frozen copy of a ledger row and its feedback."""
        in_order = sorted(feedback, key=lambda row: (row.created_at, row.id))
        return cls(
            turn_id=turn.id,
            session_id=turn.session_id,
            messages=tuple(turn.messages or ()),
            tools=tuple(turn.tools) if turn.tools else None,
            response=turn.response or {},
            next_state=tuple(turn.next_state or ()),
            next_state_provenance=tuple(turn.next_state_provenance or ()),
            feedback=tuple(FeedbackItem(row.kind, row.value, row.text) for row in in_order),
            policy_version=turn.policy_version,
            provenance=tuple(turn.provenance or ()),
        )

    @property
    def request(self) -> str:
        """Text of the last of `requests`; empty if there is none."""
        return next(reversed(self.requests), "")

    @property
    def requests(self) -> list[str]:
        """Texts of the owner's messages; of all user messages where nobody is known to be the owner."""
        sources = [*self.provenance, *[""] * len(self.messages)]
        users = [
            (encodable_text(message), source)
            for message, source in zip(self.messages, sources, strict=False)
            if message.get("role") == "user"
        ]
        return [text for text, source in users if source == "owner"] or [text for text, _ in users]

    @property
    def reply(self) -> str:
        """Text of the response, its tool calls written out."""
        calls = [
            f"{call['function'].get('name')}({call['function'].get('arguments')})"
            for call in self.response.get("tool_calls") or ()
            if isinstance(call.get("function"), Mapping)
        ]
        return "\n".join(part for part in (encodable_text(self.response), *calls) if part)

    def tool_results(self) -> list[ToolResult]:
        """The tools' messages of the next state, each with the call of the reply that it answers.

        Call ids are compared by their letters and digits: clients strip the rest.
        """
        calls = {_normalise_id(call.get("id")): call.get("function") for call in self.response.get("tool_calls") or ()}
        # A result whose id matches no call can only answer the one call there was.
        only = next(iter(calls.values())) if len(calls) == 1 else None
        results = []
        for message, source in zip(self.next_state, self.next_state_provenance, strict=False):
            if source == "tool":
                function = calls.get(_normalise_id(message.get("tool_call_id")), only)
                function = function if isinstance(function, Mapping) else {}
                name = function.get("name") or message.get("name") or ""
                results.append(ToolResult(encodable_text(message), str(name), str(function.get("arguments") or "")))
        return results

    def said_by(self, *who: str) -> list[str]:
        """Texts of the next state's messages of the given provenance."""
        pairs = zip(self.next_state, self.next_state_provenance, strict=False)
        return [text for message, source in pairs if source in who and (text := encodable_text(message))]


@dataclass(frozen=True)
class Judgement:
    """A judge's verdict on a turn, before it is stored.

    Args:
        judge: Its name, kept with the verdict.
        score: In [-1, 1]; `None` abstains.
        hints: Candidate hints, best first; the teacher chooses among them.
        hint_source: Where the hints come from, e.g. `owner message`.
        votes: `{"score", "raw", "hint"}` of each vote.
        detail: What explains the decision, in JSON.
    """

    judge: str
    score: float | None
    hints: tuple[str, ...] = ()
    hint_source: str | None = None
    votes: tuple[Json, ...] = ()
    detail: Mapping[str, Any] = field(default_factory=dict)


class Judge(Protocol):
    """Protocol of judges."""

    async def judge(self, turn: JudgedTurn) -> Judgement:
        """The judgement of one turn.

        Raises:
            JudgeUnavailable: If it can't be had at the moment.
        """
        ...


def _normalise_id(value: object) -> str:
    return "".join(letter for letter in str(value) if letter.isalnum())


def encodable_text(message: Message) -> str:
    """The text of a chat message as UTF-8 can hold it: surrogates are paired, lone ones replaced.

    Messages from imported files may hold them, and no judge's server can be sent one.
    """
    return text_of(message).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
