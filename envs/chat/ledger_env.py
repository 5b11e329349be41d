"""The live twin of the chat environment: what people and models said to each other, as a TorchRL world.

The ledger's sessions are its episodes. What happened can't be changed: each step tells what was asked, what was
replied, with the engine's own token ids and log-probs, and how that was judged, whatever the action is. The ledger is
only read.

```python
env = LedgerEnv("runs/live")
rollout = env.rollout(100, recorded)  # the first session, turn by turn

buffer = ReplayBuffer(storage=LazyStackStorage(10_000), batch_size=32)
for session in trajectories("runs/live"):
    buffer.extend(session)
ids = buffer.sample().get("completion_ids", as_padded_tensor=True, padding_value=0)
```
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from sqlalchemy import select
from tensordict import TensorDict, TensorDictBase, lazy_stack
from torchrl.data import Categorical, Composite, NonTensor, Unbounded
from torchrl.envs import EnvBase

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger, turns
from clawrl_trl.ledger.schema import Message, Session, Turn, Verdict
from clawrl_trl.messages import text_of
from clawrl_trl.run import RunFolder

ScoredTurn = tuple[Turn, float]
"""A turn, and its score; NaN where it has none."""
TEXTS = ("conversation", "message", "reply", "response", "session_id", "turn_id")


class LedgerEnv(EnvBase):  # type: ignore[misc]
    """Stored sessions, one an episode, read and never written.

    An episode goes through the main turns of a session, in the order in which they were captured. It ends
    (`terminated`) after the last one when the session is over, and is cut off there (`truncated`) when it may go on.

    Observations: `conversation` (the messages so far as the model saw them, JSON of the chat API's list), `message`
    (text of the last one from outside), `session_id`, `turn_id`, `step` (int64, turns gone by); and what was
    replied to it: `reply` (text), `response` (the whole message, JSON), `prompt_ids` and `completion_ids` (int64,
    as many as there were), `logprobs` (float32, one for each of `completion_ids`), `policy_version` (int64, -1 when
    unknown), `trainable` (bool). Ids are empty where the engine gave none, and after the last turn.
    Action: `action`, a text; [`recorded`] is the policy that says what was said. No action changes what happened.
    Reward: the stored score of the turn in [-1, 1], NaN where it has none.

    Args:
        ledger (`Ledger`, `str` or `Path`): A ledger, or the folder of a run.
        sessions (`Sequence[str]`, *optional*): Names or ids of the sessions. Default: all that have a main turn,
            oldest first.
        first_episode (`int`, *optional*, defaults to `0`): Position of the session that the first reset begins.
        device (`torch.device`, *optional*): Where the tensors live.

    Raises:
        UserError: If there is no such run or session, or nothing was said yet.
    """

    def __init__(
        self,
        ledger: Ledger | str | Path,
        *,
        sessions: Sequence[str] | None = None,
        first_episode: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(device=device, batch_size=())
        self._own = not isinstance(ledger, Ledger)
        self._ledger = ledger if isinstance(ledger, Ledger) else _open_ledger(ledger)
        self.sessions = list_session_ids(self._ledger, sessions)
        self.next_episode = first_episode
        self._make_specs()

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the ledger, where it was opened here."""
        if self._own:
            self._ledger.close()
        super().close(raise_if_closed=raise_if_closed)

    def _make_specs(self) -> None:
        def numbers(dtype: torch.dtype, size: int) -> Unbounded:
            return Unbounded(shape=(size,), dtype=dtype, device=self.device)

        flag = Categorical(2, shape=(1,), dtype=torch.bool, device=self.device)
        self.observation_spec = Composite(
            **{name: NonTensor(shape=(), example_data="", device=self.device) for name in TEXTS},
            prompt_ids=numbers(torch.int64, -1),
            completion_ids=numbers(torch.int64, -1),
            logprobs=numbers(torch.float32, -1),
            policy_version=numbers(torch.int64, 1),
            trainable=flag.clone(),
            step=numbers(torch.int64, 1),
        )
        self.action_spec = NonTensor(shape=(), example_data="", device=self.device)
        self.reward_spec = numbers(torch.float32, 1)
        self.done_spec = Composite(done=flag.clone(), terminated=flag.clone(), truncated=flag.clone())

    def _set_seed(self, seed: int | None) -> None:
        self.next_episode = (seed or 0) % len(self.sessions)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        for _ in self.sessions:  # one may have been erased since
            stored = _read_session(self._ledger, self.sessions[self.next_episode % len(self.sessions)])
            self.next_episode += 1
            if stored is not None:
                self._session, self._turns = stored
                self._step_number = 0
                return self._observe()
        raise UserError("the ledger's sessions were erased: make the environment anew.")

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        _, score = self._turns[self._step_number]
        self._step_number += 1
        return self._observe().update({"reward": torch.tensor([score], device=self.device)})

    def _observe(self) -> TensorDict:
        over = self._step_number == len(self._turns)
        # After the last turn its own messages, and what followed, are all there is to observe.
        turn, _ = self._turns[self._step_number - over]
        facts = {**_collect_texts(self._session, turn, after=over), **_collect_tensors(None if over else turn)}
        ended = _make_end_flags(self._session, over)
        content = {**facts, "step": torch.tensor([self._step_number]), **ended}
        return TensorDict(content, batch_size=(), device=self.device)


def recorded(tensordict: TensorDictBase) -> TensorDictBase:
    """The policy that says what was said."""
    return tensordict.set("action", tensordict["reply"])


def trajectories(ledger: Ledger | str | Path, *, sessions: Sequence[str] | None = None) -> Iterator[TensorDictBase]:
    """The stored sessions, each as a trajectory.

    Args:
        ledger (`Ledger`, `str` or `Path`): A ledger, or the folder of a run.
        sessions (`Sequence[str]`, *optional*): Names or ids of the sessions. Default: all that have a main turn,
            oldest first.

    Yields:
        `TensorDict`: A lazy stack of the session's main turns, `[T]`, of ragged ids. Keys are those of a rollout of
            [`LedgerEnv`], with `action` what was replied, and of what is next `("next", "reward")`, `("next",
            "done")`, `("next", "terminated")` and `("next", "truncated")`.

    Raises:
        UserError: If there is no such run or session, or nothing was said yet.
    """
    opened = ledger if isinstance(ledger, Ledger) else _open_ledger(ledger)
    try:
        for name in list_session_ids(opened, sessions):
            if (stored := _read_session(opened, name)) is not None:
                session, scored_turns = stored
                yield lazy_stack(
                    [_make_transition(session, scored_turns, number) for number in range(len(scored_turns))]
                )
    finally:
        if opened is not ledger:
            opened.close()


def list_session_ids(ledger: Ledger, names: Sequence[str] | None = None) -> list[str]:
    """The ledger's ids of the sessions with a main turn, oldest first, or of those that are named.

    Raises:
        UserError: If there are none, or one that is named has none.
    """
    main = select(Turn.id).where(Turn.session_id == Session.id, Turn.kind == "main").exists()
    with ledger.reader() as tx:
        if names is None:
            ids = list(tx.scalars(select(Session.id).where(main).order_by(Session.started_at, Session.id)))
            if not ids:
                raise UserError(f"{ledger.where} holds no chat yet: talk to the model, or name another run.")
            return ids
        ids = []
        for name in names:
            session = turns.find_session(tx, name)
            if session is None or tx.scalar(select(Session.id).where(Session.id == session.id, main)) is None:
                raise UserError(f"{ledger.where} holds no chat {name!r}: see 'clawrl sessions'.")
            ids.append(session.id)
        return ids


def _open_ledger(run: str | Path) -> Ledger:
    folder = RunFolder(run)
    settings = ServeSettings.find(run)
    return Ledger.open((settings and settings.ledger_url) or folder.ledger, untouched=True)


def _read_session(ledger: Ledger, session_id: str) -> tuple[Session, list[ScoredTurn]] | None:
    """A session with its main turns and their scores; `None` when it was erased."""
    with ledger.reader() as tx:
        session = tx.get(Session, session_id)
        rows = tx.execute(
            select(Turn, Verdict.score)
            .outerjoin(Verdict, Verdict.turn_id == Turn.id)
            .where(Turn.session_id == session_id, Turn.kind == "main")
            .order_by(Turn.seq)
        )
        scored_turns = [(turn, math.nan if score is None else score) for turn, score in rows]
    return (session, scored_turns) if session is not None and scored_turns else None


def _make_transition(session: Session, scored_turns: Sequence[ScoredTurn], number: int) -> TensorDict:
    turn, score = scored_turns[number]
    facts = {**_collect_texts(session, turn), **_collect_tensors(turn), "step": torch.tensor([number])}
    ended = _make_end_flags(session, number + 1 == len(scored_turns))
    return TensorDict(
        {
            **facts,
            "action": facts["reply"],
            **_make_end_flags(session, False),
            "next": {"reward": torch.tensor([score]), **ended},
        }
    )


def _make_end_flags(session: Session, over: bool) -> dict[str, torch.Tensor]:
    flags = {"done": over, "terminated": over and session.done, "truncated": over and not session.done}
    return {name: torch.tensor([value]) for name, value in flags.items()}


def _collect_texts(session: Session, turn: Turn, *, after: bool = False) -> dict[str, str]:
    """The texts of a turn, or of what came after it."""
    messages = [*turn.messages, turn.response, *(turn.next_state or [])] if after else turn.messages
    nothing: Message = {}
    outside = next((message for message in reversed(messages) if message.get("role") != "assistant"), nothing)
    return {
        "conversation": json.dumps(messages, ensure_ascii=False),
        "message": text_of(outside),
        "reply": "" if after else text_of(turn.response),
        "response": "{}" if after else json.dumps(turn.response, ensure_ascii=False),
        "session_id": session.external_id or session.id,
        "turn_id": "" if after else turn.id,
    }


def _collect_tensors(turn: Turn | None) -> dict[str, torch.Tensor]:
    version = None if turn is None else turn.policy_version
    return {
        "prompt_ids": _make_tensor(turn and turn.prompt_ids, torch.int64),
        "completion_ids": _make_tensor(turn and turn.completion_ids, torch.int64),
        "logprobs": _make_tensor(turn and turn.logprobs, torch.float32),
        "policy_version": torch.tensor([-1 if version is None else version]),
        "trainable": torch.tensor([turn is not None and turn.trainable]),
    }


def _make_tensor(array: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([] if array is None else array, dtype=dtype)
