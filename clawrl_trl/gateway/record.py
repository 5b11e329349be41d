"""The ledger rows of one exchange: the session, its turns, and what the request says about earlier ones.

All of it is one transaction. It may run more than once or not at all, so it makes its rows anew each time.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlalchemy.orm import Session as Transaction

from clawrl_trl.engines.calls import UNKNOWN_VERSION
from clawrl_trl.gateway import sampling
from clawrl_trl.gateway.capture import Capture, Choice
from clawrl_trl.gateway.sessions import identity
from clawrl_trl.gateway.sessions.sessions import Incoming, Placement, Sessions
from clawrl_trl.gateway.wire import Message, Wire
from clawrl_trl.ledger import schema, turns
from clawrl_trl.messages import other_parts
from clawrl_trl.pictures import read_url, url_of


@dataclass(frozen=True)
class IncomingRequest:
    """A checked request.

    Attributes:
        wire (`Wire`): The endpoint it came to.
        owner (`str`): Whose key it carried.
        headers (`Mapping[str, str]`): Its headers, names in lower case.
        body (`dict`): Its body, as the client wrote it.
        path_session (`str | None`): The session named in the URL.
        at (`float`): When it came, unix seconds.
        api (`dict`): What to remember of a request that came in another API and was translated; empty for the others.
        follows (`str | None`): The session of the reply that the request continues by naming it.
    """

    wire: Wire
    owner: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    path_session: str | None
    at: float = field(default_factory=time.time)
    api: dict[str, Any] = field(default_factory=dict)
    follows: str | None = None

    @cached_property
    def incoming(self) -> list[Incoming]:
        """Its conversations, one for each prompt, as the sessions take them."""
        return [
            Incoming(
                self.owner, self.headers, {**self.body, "messages": one}, self.path_session, self.at, self.follows
            )
            for one in self.wire.conversations(self.body)
        ]

    def read(self) -> None:
        """Read all messages now: what is costly of placing a long request, and may be done on any thread."""
        for incoming in self.incoming:
            _ = incoming.request

    @property
    def streamed(self) -> bool:
        """True if the client asked for a stream."""
        return bool(self.body.get("stream"))

    @property
    def session_done(self) -> bool:
        """True if the client says that this request ends its session."""
        word = self.headers.get("x-session-done") or self.body.get("session_done")
        return str(word).strip().lower() in ("1", "true", "yes", "on")


class Record:
    """The rows of one exchange in the making.

    Args:
        asked (`IncomingRequest`): The request.
        sessions (`Sessions`): Places it, now, and hears what became of it.
        policy_version (`int`): The version it runs under, unless the engine says otherwise.
        model (`str`): The engine's name for that version.
        engine (`str`): Which engine it is.
        temperature (`float`): That of requests which set none.
    """

    def __init__(
        self,
        asked: IncomingRequest,
        sessions: Sessions,
        *,
        policy_version: int,
        model: str,
        engine: str,
        temperature: float,
    ) -> None:
        self.asked, self.sessions = asked, sessions
        self.policy_version, self.model, self.engine = policy_version, model, engine
        self.temperature = temperature
        self._sampled_logprobs: bool | None = None
        self._constrained: bool | None = None
        self._stopped = False
        self._group = identity.group(asked.headers)
        self.id = schema.new_id("turn")
        self.completion_id = asked.wire.id_prefix + self.id
        self.conversations: list[list[Message]] = [incoming.body["messages"] for incoming in asked.incoming]
        self.placements = [sessions.place(incoming) for incoming in asked.incoming]
        self._per_prompt: int = asked.body.get("n") or 1
        self._choices: list[Choice] = []
        self._timings: dict[str, Any] = {}

    def turn_id(self, index: int) -> str:
        """The turn id of a choice."""
        return self.id if index == 0 else f"{self.id}-{index}"

    def turn_ids(self) -> list[str]:
        """The ids of all turns that are to come."""
        return [self.turn_id(index) for index in range(len(self.placements) * self._per_prompt)]

    def settle(
        self, capture: Capture, sampled_logprobs: bool | None, *, grammars: bool = True, stopped: bool = False
    ) -> bool:
        """Take what was captured, when nothing more will come; `False` if there is nothing to keep.

        Args:
            capture (`Capture`): What came.
            sampled_logprobs (`bool | None`): Whether the engine's log-probs follow the temperature, as known now.
            grammars (`bool`, defaults to `True`): Whether the engine may sample under a grammar.
            stopped (`bool`, defaults to `False`): Whether the client cut the reply.
        """
        self._sampled_logprobs, self._stopped = sampled_logprobs, stopped
        self._constrained = capture.constrained if grammars else False
        self._timings = capture.timings()
        self._choices = [one for one in capture.settle() if one.finish_reason or one.sampled]
        return bool(self._choices)

    def write(self, tx: Transaction) -> None:
        """Write everything, in the caller's transaction."""
        sessions: dict[int, str] = {}
        for choice in self._choices:
            prompt = self._prompt_of(choice)
            if prompt not in sessions:
                sessions[prompt] = self._write_session(tx, self.placements[prompt])
            turns.add(tx, self._turn(choice, prompt, sessions[prompt]))
        for prompt in sessions:
            next_turn = self.turn_id(prompt * self._per_prompt)
            for answer in self.placements[prompt].answered:
                turns.set_next_state(tx, answer.turn_id, answer.messages, answer.provenance, next_turn, self.asked.at)

    def committed(self) -> None:
        """Let the replies be recognised in later requests."""
        for choice in self._choices:
            prompt = self._prompt_of(choice)
            self.sessions.replied(
                self.placements[prompt],
                self.turn_id(choice.index),
                choice.message,
                self.conversations[prompt],
                choice.index,
                aborted=choice.stored_finish_reason == "abort",
                stopped=self._stopped,
            )

    def failed(self) -> None:
        """Tell the sessions that the request got no reply."""
        for placement in self.placements:
            self.sessions.failed(placement)

    def _prompt_of(self, choice: Choice) -> int:
        return min(choice.index // self._per_prompt, len(self.placements) - 1)

    def _write_session(self, tx: Transaction, placement: Placement) -> str:
        session = turns.get_or_create_session(
            tx,
            owner=self.asked.owner,
            external_id=placement.external_id,
            identity_source=placement.identity_source,
            now=self.asked.at,
            session_id=placement.session_id,
            group=self._group,
        )
        session.done = self.asked.session_done
        return session.id

    def _sampling(self, choice: Choice) -> dict[str, Any]:
        used = sampling.record(self.asked.body, self.temperature)
        if self._stopped and choice.stored_finish_reason == "abort":
            used[sampling.STOPPED] = True
        asked_for = sampling.grammar_asked_for(self.asked.body)
        if asked_for and self._constrained is False:
            used[sampling.UNCONSTRAINED] = asked_for
        return used | ({"api": self.asked.api} if self.asked.api else {})

    def _turn(self, choice: Choice, prompt: int, session_id: str) -> schema.Turn:
        body, placement = self.asked.body, self.placements[prompt]
        obstacle = choice.obstacle() or sampling.obstacle(
            body, self.temperature, sampled_logprobs=self._sampled_logprobs, constrained=self._constrained
        )
        obstacle = obstacle or _beyond_reach(self.conversations[prompt])
        versions = [one for one in choice.versions if one != UNKNOWN_VERSION] or [self.policy_version]
        return schema.Turn(
            id=self.turn_id(choice.index),
            session_id=session_id,
            parent_id=placement.parent_id,
            completion_id=self.completion_id,
            choice_index=choice.index,
            kind=placement.kind,
            kind_reason=placement.kind_reason,
            messages=self.conversations[prompt],
            tools=body.get("tools"),
            provenance=placement.provenance,
            sampling=self._sampling(choice),
            response=choice.message,
            finish_reason=choice.stored_finish_reason,
            prompt_ids=choice.prompt_ids,  # type: ignore[arg-type]
            completion_ids=choice.token_ids or None,  # type: ignore[arg-type]
            logprobs=choice.logprobs or None,  # type: ignore[arg-type]
            trainable=obstacle is None,
            untrainable_reason=obstacle,
            policy_version=min(versions),
            token_versions=choice.versions if len(set(versions)) > 1 else None,  # type: ignore[arg-type]
            model=self.model,
            engine=self.engine,
            timings=self._timings,
            usage={"prompt_tokens": len(choice.prompt_ids or ()), "completion_tokens": len(choice.token_ids)},
            created_at=self.asked.at,
        )


def _beyond_reach(messages: Sequence[Message]) -> str | None:
    """Why a trainer, which is given token ids and pictures, can't be given these messages, or `None`.

    Without its pixels the ids of a picture stand for nothing, and any probability after them would be another one.
    What lies at an address may be another picture tomorrow.
    """
    parts = [part for message in messages for part in other_parts(message) if part.get("type") != "refusal"]
    others = {str(part.get("type")) for part in parts} - {"image_url"}
    if others:
        return f"trainers are given tokens and pictures alone, not {', '.join(sorted(others))}"
    if not all(read_url(url_of(part) or "")[1] for part in parts):
        return "trainers are given pictures that came with the request (data: URLs), not addresses"
    return None
