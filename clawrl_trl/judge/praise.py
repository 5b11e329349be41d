"""Bounds on approval by words: whoever floods a session with praise teaches no more than who says it once.

Approvals that an owner's words made count up to a cap per session and day, and near-duplicates count once. Explicit
feedback, tool results and objections have no such bounds. What is beyond them is kept as an abstention that says why.
"""

import difflib
import re
import time
from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.judge.turn import JudgedTurn, Judgement
from clawrl_trl.ledger import schema

DAY_S = 86_400.0
BY_WORDS = frozenset({"words", "votes"})
"""What a verdict's `detail["by"]` says where words decided."""
SHORT = 12
"""Longest praise, in words, that is compared: a longer text that resembles another one may be the next task."""
COMPARED = 2000
"""Characters of a text that are compared but for case and punctuation; what follows must be equal but for case."""
SIMILAR = 0.85
"""Least ratio of matching characters of near-duplicates."""

_WORD = re.compile(r"\w+")


def limit_praise(tx: Transaction, turn: JudgedTurn, judgement: Judgement, cap: int) -> Judgement:
    """Limit an approval by words to what its session may still teach on the day on which it was said.

    Args:
        tx: The open transaction, in which the verdict is written afterwards.
        turn: The turn.
        judgement: Its judgement.
        cap: Most approvals per session and day; 0 sets no bound.

    Returns:
        `Judgement`: The same, or an abstention that says why.
    """
    words = turn.said_by("owner")
    is_praise = judgement.score is not None and judgement.score > 0 and judgement.detail.get("by") in BY_WORDS
    if cap < 1 or not is_praise or not words:
        return judgement
    others = _list_approvals(tx, turn)
    if len(others) >= cap:
        return _abstain(judgement, f"{cap} approvals of this session count on that day already")
    praises = _read_owner_words(tx, turn, others)
    if any(is_near_duplicate(text, praise) for text in words for praise in praises):
        return _abstain(judgement, "the same praise counts once in a session and day")
    return judgement


def _list_approvals(tx: Transaction, turn: JudgedTurn) -> list[str]:
    """List the ids of the session's other turns of which the owner's words approved within a day of this one's.

    By when it was said and not when it was judged: a judge that was away for weeks judges them all on one day, and not
    always in order.
    """
    said_at = tx.scalar(select(schema.Turn.next_state_at).where(schema.Turn.id == turn.turn_id)) or time.time()
    # Without the messages, of which a long session may hold many megabytes: this runs inside a write transaction.
    columns = (schema.Turn.id, schema.Turn.next_state_provenance, schema.Verdict.detail)
    query = select(*columns).join(schema.Verdict, schema.Verdict.turn_id == schema.Turn.id)
    query = query.where(
        schema.Turn.session_id == turn.session_id,
        schema.Turn.id != turn.turn_id,
        schema.Verdict.score > 0,
        schema.Turn.next_state_at > said_at - DAY_S,
        schema.Turn.next_state_at < said_at + DAY_S,
    )
    return [
        row.id
        for row in tx.execute(query)
        if row.detail.get("by") in BY_WORDS and "owner" in (row.next_state_provenance or ())
    ]


def _read_owner_words(tx: Transaction, turn: JudgedTurn, turn_ids: Iterable[str]) -> list[str]:
    """Read what the owner said after these turns, fewer than the cap."""
    columns = (schema.Turn.next_state, schema.Turn.next_state_provenance)
    words: list[str] = []
    for row in tx.execute(select(*columns).where(schema.Turn.id.in_(turn_ids))):
        state, sources = tuple(row.next_state or ()), tuple(row.next_state_provenance or ())
        words += replace(turn, next_state=state, next_state_provenance=sources).said_by("owner")
    return words


def _abstain(judgement: Judgement, reason: str) -> Judgement:
    detail = {**judgement.detail, "reason": reason, "score_without_limit": judgement.score}
    return replace(judgement, score=None, hints=(), hint_source=None, detail=detail)


def is_near_duplicate(text: str, other: str) -> bool:
    """Return whether two short texts are the same but for case, punctuation, repeated letters and a word or so."""
    first, second = _normalise(text[:COMPARED]), _normalise(other[:COMPARED])
    if first == second and text[COMPARED:].casefold() != other[COMPARED:].casefold():
        return False
    if first == second:
        # Texts without any word, two emoji for instance, are compared as they are.
        return bool(first) or text.strip() == other.strip()
    if not first or not second or max(len(first), len(second)) > SHORT or _numbers(first) != _numbers(second):
        return False
    shorter, longer = sorted((set(first), set(second)), key=len)
    if shorter <= longer and len(longer) - len(shorter) <= 1:
        return True
    # `ratio` depends on the order of its arguments.
    pairs = ((" ".join(first), " ".join(second)), (" ".join(second), " ".join(first)))
    return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs) >= SIMILAR


def _normalise(text: str) -> list[str]:
    return [re.sub(r"(.)\1{2,}", r"\1", word) for word in _WORD.findall(text.casefold())]


def _numbers(words: Iterable[str]) -> set[str]:
    return {word for word in words if any(letter.isdigit() for letter in word)}
