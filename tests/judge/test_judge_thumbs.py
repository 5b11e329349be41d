"""Thumbs beside the votes on the same turns: what is compared, and of which model."""

import pytest
from judge_helpers import put_turn

from clawrl_trl.judge.evaluation.summary import Share
from clawrl_trl.judge.exam import thumbs
from clawrl_trl.judge.exam.thumbs import Agreement, read_agreement
from clawrl_trl.ledger import Ledger, schema


def put_thumbs(ledger: Ledger, value: float, score: float | None = None, **detail: object) -> None:
    """Thumbs on a turn that was judged before they came."""
    turn_id = put_turn(ledger)
    with ledger.transaction() as tx:
        tx.add(schema.Verdict(turn_id=turn_id, judge="llm:base", score=score, detail=dict(detail)))
        tx.add(schema.Feedback(turn_id=turn_id, kind="thumbs", value=value))


def test_late_thumbs_are_compared_with_the_votes_that_decided(ledger: Ledger) -> None:
    put_thumbs(ledger, -1.0, 1.0, by="votes", exam_key="k")
    put_thumbs(ledger, 1.0, 1.0, by="votes", exam_key="k")
    put_thumbs(ledger, 1.0, 1.0, voted={"judge": "llm:base", "score": -1, "exam_key": "k"})
    with ledger.reader() as tx:
        assert read_agreement(tx, "k") == Agreement(Share(2, 3))


def test_votes_of_another_model_or_prompt_are_not_held_against_this_one(ledger: Ledger) -> None:
    for key in ("before", "k"):
        put_thumbs(ledger, -1.0, 1.0, by="votes", exam_key=key)
        put_thumbs(ledger, -1.0, -1.0, voted={"judge": "llm:base", "score": 1, "exam_key": key})
    put_thumbs(ledger, -1.0, -1.0, voted={"judge": "llm:base", "score": 1})
    with ledger.reader() as tx:
        assert read_agreement(tx, "k") == Agreement(Share(2, 2))


def test_thumbs_beside_no_vote_take_no_place_of_those_that_are_compared(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thumbs, "NEWEST", 2)
    for _ in range(2):
        put_thumbs(ledger, -1.0, 1.0, by="votes", exam_key="k")
    for voted in (None, 0):
        put_thumbs(ledger, -1.0, -1.0, voted={"judge": "llm:base", "score": voted, "exam_key": "k"})
    put_thumbs(ledger, -1.0, -1.0, by="feedback: value")
    put_thumbs(ledger, -1.0, None, by="votes", exam_key="k")
    with ledger.reader() as tx:
        assert read_agreement(tx, "k") == Agreement(Share(2, 2))
