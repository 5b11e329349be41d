"""Sessions: conversations, how they are recognised, shown and erased."""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from sqlalchemy import case, delete, exists, func, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session as Transaction
from sqlalchemy.orm import aliased

from clawrl_trl.ledger import events
from clawrl_trl.ledger.columns import Ids, new_id
from clawrl_trl.ledger.errors import AmbiguousName, SharedName
from clawrl_trl.ledger.schema import Feedback, Sample, Session, Turn, Verdict
from clawrl_trl.messages import Json

LEAST_PREFIX = 4
"""Shortest prefix by which a session is looked up, in characters."""
WHOLE_NAME, SHORT_NAME = 20, 10
_LEDGER_ID = re.compile(r"^(?:session|turn)_(?=[0-9a-f]{28}$)")


def get_or_create_session(
    tx: Transaction,
    *,
    owner: str,
    external_id: str | None,
    identity_source: str,
    now: float,
    session_id: str | None = None,
    group: str | None = None,
) -> Session:
    """The session of an owner, made if it is new; it counts as seen at `now`.

    Args:
        tx (`Session`): The open transaction.
        owner (`str`): Fingerprint of the API key; sessions of two owners never join.
        external_id (`str`, *optional*): The client's own name for the session, looked up first.
        identity_source (`str`): How the session was recognised, kept with a new one.
        now (`float`): Unix time, seconds.
        session_id (`str`, *optional*): The id to look up without an `external_id`, and to give a new session.
        group (`str`, *optional*): The group of rollouts that a new session belongs to.

    Raises:
        ValueError: If `session_id` belongs to another owner.
    """
    session = _lookup(tx, owner, external_id, session_id)
    if session is None:
        session = Session(
            id=session_id or new_id("session"),
            external_id=external_id,
            owner=owner,
            identity_source=identity_source,
            started_at=now,
            last_at=now,
            group=group,
        )
        try:
            # A savepoint: what the caller has written before must outlive the refused insert.
            with tx.begin_nested():
                tx.add(session)
        except IntegrityError:  # two first requests of one client at the same time
            session = _lookup(tx, owner, external_id, session_id)
            if session is None:
                raise
    if session.owner != owner:
        raise ValueError(f"session {session.id} belongs to another owner")
    session.last_at = max(session.last_at, now)
    return session


def _lookup(tx: Transaction, owner: str, external_id: str | None, session_id: str | None) -> Session | None:
    if external_id is not None:
        by_name = select(Session).where(Session.owner == owner, Session.external_id == external_id)
        return tx.scalars(by_name).one_or_none()
    return None if session_id is None else tx.get(Session, session_id)


def find_session(tx: Transaction, name: str, *, owner: str | None = None, group: str | None = None) -> Session | None:
    """A session by its id, or by its external id; of several the newest one, rather one of the group.

    Args:
        tx (`Session`): The open transaction.
        name (`str`): The id, or the client's name.
        owner (`str`, *optional*): Whose session it must be. Default: anybody's, as several may use the same name.
        group (`str`, *optional*): The group it is looked for in first.
    """
    session = tx.get(Session, name)
    if session is not None and owner in (None, session.owner):
        return session
    found = _list_named(tx, name, owner)
    return next((each for each in found if group is not None and each.group == group), found[0] if found else None)


def _list_named(tx: Transaction, name: str, owner: str | None = None) -> Sequence[Session]:
    """The sessions with that external id, one for each owner, the newest first."""
    by_name = select(Session).where(Session.external_id == name).order_by(Session.started_at.desc())
    return tx.scalars(by_name if owner is None else by_name.where(Session.owner == owner)).all()


def resolve_session(tx: Transaction, name: str) -> Session | None:
    """A session by its id, its external id, or a prefix of either that no other session shares.

    Args:
        tx (`Session`): The open transaction.
        name (`str`): The id or its beginning, with or without `session_`, or the client's name or its beginning.

    Raises:
        AmbiguousName: If several sessions begin so, or several owners use that name.
    """
    session = tx.get(Session, name)
    named = [session] if session is not None else _list_named(tx, name)
    if len(named) > 1:
        raise SharedName(name, [row.id for row in named])
    if named or len(name) < LEAST_PREFIX:
        return named[0] if named else None
    begins = [Session.id.startswith(name, autoescape=True), Session.id.startswith(f"session_{name}", autoescape=True)]
    begins.append(Session.external_id.startswith(name, autoescape=True))
    rows = tx.scalars(select(Session).where(or_(*begins)).order_by(Session.last_at.desc()).limit(100)).all()
    # LIKE takes upper and lower case for the same. A name that people read goes before an id that they don't.
    visible = [row for row in rows if _begins_with(name, row.external_id or row.id)]
    exact = visible or [row for row in rows if _begins_with(name, row.id)]
    if len(exact) > 1:
        names = [row.external_id or row.id for row in exact]
        # A name that several owners use would be said twice, and tell nothing.
        raise AmbiguousName(
            name, [row.id if names.count(each) > 1 else each for row, each in zip(exact, names, strict=True)]
        )
    return exact[0] if exact else None


def _begins_with(beginning: str, name: str) -> bool:
    return name.startswith(beginning) or name.removeprefix("session_").startswith(beginning)


def short_ids(names: Iterable[str]) -> dict[str, str]:
    """For each name the shortest beginning that no other has, without the kind that the ledger's ids open with.

    Args:
        names (`Iterable[str]`): Ids of the ledger, or clients' names. Those of up to 20 characters stay whole, of
            longer ones at least 10 are kept.
    """
    stripped = {name: _LEDGER_ID.sub("", name) for name in names}
    # Sorted, every text has its longest common beginning with a neighbour.
    ordered = sorted(set(stripped.values()))
    longest: dict[str, int] = {}
    for before, after in pairwise(ordered):
        shared = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
        for text in (before, after):
            longest[text] = max(longest.get(text, 0), shared)
    return {
        name: text if len(text) <= WHOLE_NAME else text[: max(SHORT_NAME, longest.get(text, 0) + 1)]
        for name, text in stripped.items()
    }


def sessions(tx: Transaction) -> list[Json]:
    """Every session, the one seen last first.

    Returns:
        `list[dict]`: Rows `{session_id, turns, main, side, started_at, last_at}`. `session_id` is the
            client's own name for the session where it gave one that no other owner uses, else the ledger's
            id; `inspect` and `delete_session` take either.
    """
    other = aliased(Session)
    # A name that two owners use would open the session of one of them under the other's.
    shared = exists().where(other.external_id == Session.external_id, other.id != Session.id)
    name = case((or_(Session.external_id.is_(None), shared), Session.id), else_=Session.external_id)
    main = func.sum(case((Turn.kind == "main", 1), else_=0))
    rows = tx.execute(
        select(name, func.count(Turn.id), func.coalesce(main, 0), Session.started_at, Session.last_at)
        .outerjoin(Turn, Turn.session_id == Session.id)
        .group_by(Session.id, Session.external_id, Session.started_at, Session.last_at)
        .order_by(Session.last_at.desc(), Session.id)
    )
    return [
        {
            "session_id": session_id,
            "turns": count,
            "main": int(main_count),
            "side": count - int(main_count),
            "started_at": started_at,
            "last_at": last_at,
        }
        for session_id, count, main_count, started_at, last_at in rows
    ]


def inspect(tx: Transaction, session_id: str) -> list[Json]:
    """The turns of a session as a person reads them, in order.

    Args:
        tx (`Session`): The open transaction.
        session_id (`str`): The session's id, or the client's own name for it.

    Returns:
        `list[dict]`: Rows `{turn_id, kind, kind_reason, state, messages, response, finish_reason, next_state,
            next_state_provenance, next_turn_id, feedback, votes, score, hint, hint_source, detail, policy_version,
            token_versions, prompt_tokens, completion_tokens}`; none when there is no such session. `next_turn_id` is
            the turn whose request brought the next state, `feedback` what was said on purpose, `detail` how the
            verdict came about.
    """
    session = find_session(tx, session_id)
    if session is None:
        return []
    rows = tx.execute(
        select(Turn, Verdict)
        .outerjoin(Verdict, Verdict.turn_id == Turn.id)
        .where(Turn.session_id == session.id)
        .order_by(Turn.seq)
    )
    feedback: dict[str, list[Json]] = {}
    of_session = select(Feedback).join(Turn, Turn.id == Feedback.turn_id).where(Turn.session_id == session.id)
    for row in tx.scalars(of_session.order_by(Feedback.created_at, Feedback.id)):
        facts = {"kind": row.kind, "value": row.value, "text": row.text, "created_at": row.created_at}
        feedback.setdefault(row.turn_id, []).append(facts)
    return [_describe_turn(turn, verdict, feedback.get(turn.id, [])) for turn, verdict in rows]


def _describe_turn(turn: Turn, verdict: Verdict | None, feedback: list[Json]) -> Json:
    return {
        "turn_id": turn.id,
        "kind": turn.kind,
        "kind_reason": turn.kind_reason,
        "state": turn.state,
        "messages": turn.messages,
        "response": turn.response,
        "finish_reason": turn.finish_reason,
        "next_state": turn.next_state,
        "next_state_provenance": turn.next_state_provenance,
        "next_turn_id": turn.next_turn_id,
        "feedback": feedback,
        "votes": verdict.votes if verdict else [],
        "score": verdict.score if verdict else None,
        "hint": verdict.hint if verdict else None,
        "hint_source": verdict.hint_source if verdict else None,
        "detail": verdict.detail if verdict else {},
        "policy_version": turn.policy_version,
        "token_versions": None if turn.token_versions is None else list(map(int, turn.token_versions)),
        "prompt_tokens": _count_tokens(turn.prompt_ids, turn.usage, "prompt_tokens"),
        "completion_tokens": _count_tokens(turn.completion_ids, turn.usage, "completion_tokens"),
    }


def explain(tx: Transaction, session_id: str) -> list[Json]:
    """Why each turn of a session is what it is and became a sample or not, in order.

    Args:
        tx (`Session`): The open transaction.
        session_id (`str`): The session's id, or the client's own name for it.

    Returns:
        `list[dict]`: Rows `{session_id, identity_source, turn_id, kind, kind_reason, state, trainable,
            untrainable_reason, note, judge, exam, score, hint, hint_source, sample, sample_reason}`,
            `identity_source` being how the session was recognised and `sample` the sample's state; none when there is
            no such session. `note` says why a turn is trainable that does not look it, `exam` what the judge's exam
            said of turns like it.
    """
    session = find_session(tx, session_id)
    if session is None:
        return []
    columns = {
        "turn_id": Turn.id,
        "kind": Turn.kind,
        "kind_reason": Turn.kind_reason,
        "state": Turn.state,
        "trainable": Turn.trainable,
        "untrainable_reason": Turn.untrainable_reason,
        "note": Turn.sampling,
        "judge": Verdict.judge,
        "exam": Verdict.detail,
        "score": Verdict.score,
        "hint": Verdict.hint,
        "hint_source": Verdict.hint_source,
        "sample": Sample.state,
        "sample_reason": Sample.reason,
    }
    rows = tx.execute(
        select(*(column.label(name) for name, column in columns.items()))
        .select_from(Turn)
        .outerjoin(Verdict, Verdict.turn_id == Turn.id)
        .outerjoin(Sample, Sample.turn_id == Turn.id)
        .where(Turn.session_id == session.id)
        .order_by(Turn.seq)
    )
    recognised = {"session_id": session.external_id or session.id, "identity_source": session.identity_source}
    return [
        {**recognised, **row, "note": _explain_training(row["note"]), "exam": (row["exam"] or {}).get("exam")}
        for row in rows.mappings()
    ]


def _explain_training(sampling: Json | None) -> str | None:
    constraint = (sampling or {}).get("unconstrained")
    return f"asked for {constraint}; the engine constrained nothing" if constraint else None


def _count_tokens(ids: Ids | None, usage: Json, name: str) -> int | None:
    # Without token ids the engine's own count is all there is.
    return usage.get(name) if ids is None else len(ids)


def delete_session(tx: Transaction, session_id: str) -> int | None:
    """Erase a session with its turns, feedback, verdicts and samples, whatever their states.

    The rows of batches stay, with their digests, so that what was trained once is known to be; they hold ids
    only. On SQLite, `Ledger.checkpoint` then clears the write-ahead log too.

    Returns:
        `int`: How many turns were erased, or `None` when there is no such session.
    """
    session = find_session(tx, session_id)
    if session is None:
        return None
    erased = set(tx.scalars(select(Turn.id).where(Turn.session_id == session.id)))
    tx.execute(delete(Session).where(Session.id == session.id))
    # The database cascades by itself, so the objects of erased rows are still in this session: it must not write them.
    for row in list(tx.identity_map.values()):
        if row is session or getattr(row, "session_id", None) == session.id or _turn_of(row) in erased:
            tx.expunge(row)
    events.log(tx, "session_deleted", session.id, turns=len(erased))
    tx.flush()
    return len(erased)


def _turn_of(row: object) -> str | None:
    return getattr(row, "turn_id", None)
