"""Turns: replies of the model on their way from capture to verdict.

The gateway adds turns and next states, people add feedback, the judge claims turns and records verdicts. Each
function is one step inside the caller's transaction and may be repeated after a crash: adding the same reply,
the same next state or the same verdict twice changes nothing. A turn may change while
a judge works on it (new feedback, a deleted session); then its verdict is refused and the turn is judged again.
"""

from sqlalchemy import delete, func, or_, select
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.ledger import events, history, states
from clawrl_trl.ledger.claims import (
    CLAIM_VOID,
    claim_judging,
    lock,
    read_locked,
    record_unread,
    renew_claims,
    retry_later,
)
from clawrl_trl.ledger.schema import Feedback, Message, Sample, Session, Turn, Verdict
from clawrl_trl.ledger.sessions import (
    delete_session,
    explain,
    find_session,
    get_or_create_session,
    inspect,
    resolve_session,
    sessions,
    short_ids,
)

__all__ = [
    "add",
    "add_feedback",
    "by_completion",
    "claim_judging",
    "counts",
    "delete_session",
    "delete_turn",
    "expire",
    "explain",
    "feedback_of",
    "find_session",
    "get",
    "get_or_create_session",
    "inspect",
    "of_session",
    "read_locked",
    "recent_main",
    "record_unread",
    "record_verdict",
    "renew_claims",
    "resolve_session",
    "retry_later",
    "sessions",
    "set_next_state",
    "short_ids",
    "verdict_of",
]


def add(tx: Transaction, turn: Turn) -> Turn:
    """Add a reply; a main turn then awaits its next state.

    Returns:
        `Turn`: The turn, or the one added before with the same completion id and choice index.
    """
    earlier = by_completion(tx, turn.completion_id, turn.choice_index)
    if earlier is not None:
        return earlier
    turn.digest = turn.compute_digest()
    if turn.kind == "main" and turn.state == "captured":
        turn.state = "awaiting_next_state"
    # The same values, stored once a session.
    for name, value in history.share(tx, turn).items():
        setattr(turn, name, value)
    tx.add(turn)
    tx.flush()
    return turn


def set_next_state(
    tx: Transaction,
    turn_id: str,
    messages: list[Message],
    provenance: list[str],
    next_turn_id: str | None,
    now: float,
) -> bool:
    """Store what followed a main turn, and give the turn to the judge.

    A turn of an episode waits for the outcome instead (`clawrl_trl.ledger.episodes`). One that was judged already, on
    explicit feedback, is judged again while its sample is free.

    Returns:
        `bool`: `False` when nothing was changed: the turn is gone, is a side turn or has a next state.
    """
    turn = lock(tx, turn_id)
    # The first next state stays: a retry of the request that brought it must not have the turn judged twice.
    if turn is None or turn.kind != "main" or turn.next_state is not None:
        return False
    turn.next_state = messages
    turn.next_state_provenance = provenance
    turn.next_turn_id = next_turn_id
    turn.next_state_at = now
    if not _in_episode(tx, turn):
        _to_judge(tx, turn)
    tx.flush()
    return True


def add_feedback(tx: Transaction, feedback: Feedback) -> Turn:
    """Store explicit feedback, and give the turn to the judge if it still can be.

    Side turns keep their feedback without a verdict, and so do turns whose sample is leased or trained.

    Raises:
        KeyError: If there is no such turn.
    """
    turn = lock(tx, feedback.turn_id)
    if turn is None:
        raise KeyError(f"there is no turn {feedback.turn_id}")
    tx.add(feedback)
    if turn.kind == "main":
        _to_judge(tx, turn)
    tx.flush()
    return turn


def _in_episode(tx: Transaction, turn: Turn) -> bool:
    return tx.scalar(select(Session.group).where(Session.id == turn.session_id)) is not None


def _to_judge(tx: Transaction, turn: Turn) -> None:
    """Bring a main turn to `judging`: a verdict under way is void, a sample that is still free is withdrawn."""
    if turn.state == "judging":
        # Negative, so that the turn is due at once, and the verdict under way is told apart from a fresh claim.
        turn.judge_after = CLAIM_VOID if turn.judge_after > 0 else turn.judge_after
        return
    if turn.state == "judged" and not _withdraw_sample(tx, turn.id):
        return
    turn.state = "judging"
    turn.judge_after = 0.0
    turn.judge_attempts = 0


def _withdraw_sample(tx: Transaction, turn_id: str) -> bool:
    """Delete a turn's sample, if it has one; `False` when that is leased or trained."""
    sample = tx.scalars(select(Sample).where(Sample.turn_id == turn_id).with_for_update()).one_or_none()
    if sample is None:
        return True
    if sample.state in ("leased", "trained"):
        return False
    tx.delete(sample)
    tx.flush()
    return True


def record_verdict(tx: Transaction, verdict: Verdict, sample: Sample | None, *, attempt: int | None = None) -> bool:
    """Record the judge's decision, in place of an earlier one, and the sample it makes.

    Args:
        tx (`Session`): The open transaction.
        verdict (`Verdict`): The decision.
        sample (`Sample`, *optional*): The sample, or `None` when the verdict teaches nothing. An earlier one
            was withdrawn when the turn was given to the judge again.
        attempt (`int`, *optional*): The claimed turn's `judge_attempts`; refuses the verdict if another judge
            has claimed the turn since.

    Returns:
        `bool`: `False` when the verdict was refused and nothing written, because the turn is gone, is not
            being judged any more, or got feedback after it was claimed (then it is due at once).

    Raises:
        ValueError: If the sample's arrays are not as long as the turn's completion, or it is another turn's.
    """
    turn = lock(tx, verdict.turn_id)
    if turn is None or turn.state != "judging" or turn.judge_after == CLAIM_VOID:
        return False
    if attempt is not None and attempt != turn.judge_attempts:
        return False
    if sample is not None:
        _check_sample(sample, turn)
    # By a statement: a flush inserts before it deletes, and a turn can't have two verdicts.
    tx.execute(delete(Verdict).where(Verdict.turn_id == turn.id))
    turn.state = "judged"
    turn.judge_after = 0.0
    tx.add(verdict)
    if sample is not None:
        tx.add(sample)
    tx.flush()
    return True


def _check_sample(sample: Sample, turn: Turn) -> None:
    if sample.turn_id != turn.id:
        raise ValueError(f"sample of turn {sample.turn_id} in a verdict on turn {turn.id}")
    if not turn.trainable or turn.completion_ids is None:
        raise ValueError(f"turn {turn.id} is not trainable: {turn.untrainable_reason or 'no token ids'}")
    for name in ("teacher_logprobs", "plain_logprobs"):
        array = getattr(sample, name)
        if array is not None and len(array) != len(turn.completion_ids):
            raise ValueError(f"{name} has {len(array)} entries for {len(turn.completion_ids)} tokens")


def expire(tx: Transaction, silent_since: float) -> int:
    """Expire the turns that wait in sessions that are done, or silent since that unix time.

    Returns:
        `int`: How many turns expired. A late reply still brings them back.
    """
    over = select(Session.id).where(or_(Session.done, Session.last_at < silent_since))
    return states.move(tx, Turn.state, states.TURN, "expired", Turn.session_id.in_(over))


def get(tx: Transaction, turn_id: str) -> Turn | None:
    """One turn by its id, or `None`."""
    return tx.get(Turn, turn_id)


def by_completion(tx: Transaction, completion_id: str, choice_index: int = 0) -> Turn | None:
    """The turn of a completion id as the client saw it (and a choice of it), or `None`."""
    completion = select(Turn).where(Turn.completion_id == completion_id, Turn.choice_index == choice_index)
    return tx.scalars(completion).one_or_none()


def delete_turn(tx: Transaction, turn_id: str) -> bool:
    """Erase a turn with its feedback, verdict and sample, whatever their states; `False` when there is none.

    Later turns of the session keep what their requests repeated of it.
    """
    # By columns and statements: a turn whose conversation is damaged can't be read, but it can be erased.
    session_id = tx.scalar(select(Turn.session_id).where(Turn.id == turn_id))
    if session_id is None:
        return False
    # Nobody may add a turn meanwhile that shares what is swept.
    tx.scalar(select(Session.id).where(Session.id == session_id).with_for_update())
    if tx.scalar(delete(Turn).where(Turn.id == turn_id).returning(Turn.id)) is None:
        return False
    history.sweep(tx, session_id)
    events.log(tx, "turn_deleted", turn_id)
    return True


def of_session(tx: Transaction, session_id: str) -> list[Turn]:
    """All turns of a session, in the order they were added."""
    return list(tx.scalars(select(Turn).where(Turn.session_id == session_id).order_by(Turn.seq)))


def recent_main(tx: Transaction, owner: str | None, limit: int) -> list[Turn]:
    """The newest `limit` main turns of an owner (`None`: of all owners), oldest first."""
    newest = select(Turn).where(Turn.kind == "main").order_by(Turn.seq.desc()).limit(limit)
    if owner is not None:
        newest = newest.join(Session, Session.id == Turn.session_id).where(Session.owner == owner)
    return list(reversed(tx.scalars(newest).all()))


def feedback_of(tx: Transaction, turn_id: str) -> list[Feedback]:
    """The explicit feedback on a turn, oldest first."""
    return list(
        tx.scalars(select(Feedback).where(Feedback.turn_id == turn_id).order_by(Feedback.created_at, Feedback.id))
    )


def verdict_of(tx: Transaction, turn_id: str) -> Verdict | None:
    """The verdict on a turn, or `None`."""
    return tx.scalars(select(Verdict).where(Verdict.turn_id == turn_id)).one_or_none()


def counts(tx: Transaction) -> dict[str, int]:
    """Number of turns in each state."""
    rows = tx.execute(select(Turn.state, func.count()).group_by(Turn.state))
    return dict.fromkeys(states.names(states.TURN), 0) | dict(rows.tuples().all())
