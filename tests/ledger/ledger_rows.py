"""Rows for the ledger's tests, with everything a test does not care about filled in."""

import itertools
from typing import Any

from sqlalchemy.orm import Session as Transaction

from clawrl_trl.ledger import turns
from clawrl_trl.ledger.schema import Sample, Session, Turn, Verdict

_numbers = itertools.count()


def session(tx: Transaction, external_id: str | None = None, owner: str = "local", now: float = 1.0) -> Session:
    return turns.get_or_create_session(tx, owner=owner, external_id=external_id, identity_source="header", now=now)


def turn(session_id: str, **fields: Any) -> Turn:
    """A trainable turn of three prompt and two completion tokens."""
    defaults: dict[str, Any] = {
        "completion_id": f"chatcmpl-{next(_numbers)}",
        "messages": [{"role": "user", "content": "what is 5 + 7?"}],
        "response": {"role": "assistant", "content": "12"},
        "prompt_ids": [1, 2, 3],
        "completion_ids": [4, 5],
        "logprobs": [-0.25, -0.5],
        "trainable": True,
        "policy_version": 0,
    }
    return Turn(session_id=session_id, **(defaults | fields))


def follow(tx: Transaction, turn_id: str, text: str = "thanks", now: float = 2.0) -> bool:
    """Give a turn its next state."""
    return turns.set_next_state(tx, turn_id, [{"role": "user", "content": text}], ["owner"], None, now)


def judge(tx: Transaction, turn_id: str, score: float | None = 1.0, **sample: Any) -> bool:
    """Record a verdict with a sample; without one when the score and the sample's fields are missing."""
    wanted = score is not None or sample
    row = Sample(turn_id=turn_id, score=score, **({"policy_version": 0} | sample)) if wanted else None
    return turns.record_verdict(tx, Verdict(turn_id=turn_id, judge="rules", score=score), row)


def judged(tx: Transaction, count: int = 1, **sample: Any) -> list[Turn]:
    """Turns with a verdict and a ready sample each."""
    owner = session(tx)
    made = [turns.add(tx, turn(owner.id)) for _ in range(count)]
    for one in made:
        follow(tx, one.id)
        judge(tx, one.id, **sample)
    return made
