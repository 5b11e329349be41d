"""The ledger rows of one exchange: the session, its turns, and what the request says about earlier ones.

All of it is one transaction. It may run more than once or not at all, so it makes its rows anew each time.
"""

from collections.abc import Sequence

from sqlalchemy.orm import Session as Transaction

from clawrl_trl.engines.calls import UNKNOWN_VERSION
from clawrl_trl.gateway import sampling
from clawrl_trl.gateway.capture import Capture, Choice
from clawrl_trl.gateway.sessions.sessions import IncomingRequest, Placement, Sessions
from clawrl_trl.ledger import schema, turns
from clawrl_trl.ledger.columns import new_id
from clawrl_trl.messages import Json, Message, other_parts
from clawrl_trl.pictures import get_url, read_url


class Record:
    """The rows of one exchange in the making; making it changes nothing.

    Args:
        request (`IncomingRequest`): The request.
        policy_version (`int`): The version it runs under, unless the engine says otherwise.
        model (`str`): The engine's name for that version.
        engine (`str`): Which engine it is.
        temperature (`float`): That of requests which set none.

    Raises:
        ApiError: 400 for a name of a session or a group that is too long.
    """

    def __init__(
        self, request: IncomingRequest, *, policy_version: int, model: str, engine: str, temperature: float
    ) -> None:
        self.request = request
        self.policy_version, self.model, self.engine = policy_version, model, engine
        self.temperature = temperature
        self._sampled_logprobs: bool | None = None
        self._constrained: bool | None = None
        self._stopped = False
        self._group = request.group
        self.id = new_id("turn")
        self.completion_id = request.wire.id_prefix + self.id
        self._conversations: list[list[Message]] = [[*prompt.reading.messages] for prompt in request.prompts]
        self._placements: Sequence[Placement] = ()
        self._per_prompt: int = request.body.get("n") or 1
        self._choices: list[Choice] = []
        self._timings: dict[str, float | None] = {}

    def turn_id(self, index: int) -> str:
        """The turn id of a choice."""
        return self.id if index == 0 else f"{self.id}-{index}"

    def turn_ids(self) -> list[str]:
        """The ids of all turns that are to come."""
        return [self.turn_id(index) for index in range(len(self._conversations) * self._per_prompt)]

    def settle(
        self,
        capture: Capture,
        placements: Sequence[Placement],
        sampled_logprobs: bool | None,
        *,
        grammars: bool = True,
        stopped: bool = False,
    ) -> bool:
        """Take what was captured, when nothing more will come; `False` if there is nothing to keep.

        Args:
            capture (`Capture`): What came.
            placements (`Sequence[Placement]`): Where each prompt belongs.
            sampled_logprobs (`bool | None`): Whether the engine's log-probs follow the temperature, as known now.
            grammars (`bool`, defaults to `True`): Whether the engine may sample under a grammar.
            stopped (`bool`, defaults to `False`): Whether the client cut the reply.
        """
        self._placements = placements
        self._sampled_logprobs, self._stopped = sampled_logprobs, stopped
        self._constrained = capture.constrained if grammars else False
        self._timings = capture.timings()
        self._choices = [choice for choice in capture.settle() if choice.finish_reason or choice.is_sampled]
        return bool(self._choices)

    def write(self, tx: Transaction) -> None:
        """Write everything, in the caller's transaction."""
        session_ids: dict[int, str] = {}
        for choice in self._choices:
            prompt = self._prompt_of(choice)
            if prompt not in session_ids:
                session_ids[prompt] = self._write_session(tx, self._placements[prompt])
            turns.add(tx, self._turn(choice, prompt, session_ids[prompt]))
        for prompt in session_ids:
            next_turn = self.turn_id(prompt * self._per_prompt)
            for answer in self._placements[prompt].answered:
                turns.set_next_state(
                    tx, answer.turn_id, answer.messages, answer.provenance, next_turn, self.request.at
                )

    def enter_replies(self, sessions: Sessions) -> None:
        """Let the replies be recognised in later requests; to be called after the commit."""
        for choice in self._choices:
            prompt = self._prompt_of(choice)
            sessions.enter_reply(
                self._placements[prompt],
                self.turn_id(choice.index),
                choice.message,
                self._conversations[prompt],
                aborted=choice.stored_finish_reason == "abort",
                stopped=self._stopped,
            )

    def _prompt_of(self, choice: Choice) -> int:
        # Engines number the replies of several prompts through: `n` of the first prompt, then `n` of the second.
        return min(choice.index // self._per_prompt, len(self._placements) - 1)

    def _write_session(self, tx: Transaction, placement: Placement) -> str:
        session = turns.get_or_create_session(
            tx,
            owner=self.request.owner,
            external_id=placement.external_id,
            identity_source=placement.identity_source,
            now=self.request.at,
            session_id=placement.session_id,
            group=self._group,
        )
        session.done = self.request.is_session_done
        return session.id

    def _sampling(self, choice: Choice) -> Json:
        parameters = sampling.stored_parameters(self.request.body, self.temperature)
        if self._stopped and choice.stored_finish_reason == "abort":
            parameters[sampling.STOPPED] = True
        grammar = sampling.requested_grammar(self.request.body)
        if grammar and self._constrained is False:
            parameters[sampling.UNCONSTRAINED] = grammar
        return parameters | ({"api": self.request.api} if self.request.api else {})

    def _turn(self, choice: Choice, prompt: int, session_id: str) -> schema.Turn:
        body, placement = self.request.body, self._placements[prompt]
        obstacle = choice.obstacle() or sampling.find_obstacle(
            body, self.temperature, sampled_logprobs=self._sampled_logprobs, constrained=self._constrained
        )
        obstacle = obstacle or _untrainable_parts(self._conversations[prompt])
        # A reply with tokens of several versions counts as old as its oldest, so that staleness is never understated.
        versions = [version for version in choice.versions if version != UNKNOWN_VERSION] or [self.policy_version]
        return schema.Turn(
            id=self.turn_id(choice.index),
            session_id=session_id,
            parent_id=placement.parent_id,
            completion_id=self.completion_id,
            choice_index=choice.index,
            kind=placement.kind,
            kind_reason=placement.kind_reason,
            messages=self._conversations[prompt],
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
            created_at=self.request.at,
        )


def _untrainable_parts(messages: Sequence[Message]) -> str | None:
    """Why a trainer, which is given token ids and pictures, can't be given these messages, or `None`.

    Without its pixels the ids of a picture stand for nothing, and any probability after them would be another one.
    What lies at an address may be another picture tomorrow.
    """
    parts = [part for message in messages for part in other_parts(message) if part.get("type") != "refusal"]
    others = {str(part.get("type")) for part in parts} - {"image_url"}
    if others:
        return f"trainers are given tokens and pictures alone, not {', '.join(sorted(others))}"
    if not all(read_url(get_url(part) or "")[1] for part in parts):
        return "trainers are given pictures that came with the request (data: URLs), not addresses"
    return None
