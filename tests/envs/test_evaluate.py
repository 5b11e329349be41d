"""Evaluation asks the same again, never as a main turn; "holds" means what it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import BOLD, PLAIN

from clawrl_trl.envs.chat.evaluation import HOLD, evaluate, interactions_to_hold
from clawrl_trl.errors import UserError


def test_report(scripted) -> None:
    server = scripted(lambda messages, number: PLAIN)
    report = evaluate(server.base_url, None, "student", problems=12, seed=3, temperature=0.5)
    assert (report.score, report.n, report.requests, report.failed) == (1.0, 12, 12, 0)
    assert report.correct == sum(row["correct"] for row in report.rows) / 12
    assert [row["index"] for row in report.rows] == list(range(12))
    assert all(row["policy_version"] == 3 and row["faults"] == [] for row in report.rows)
    assert {request["headers"]["x-turn-type"] for request in server.seen} == {"side"}
    assert {request["body"]["temperature"] for request in server.seen} == {0.5}
    assert len({request["body"]["seed"] for request in server.seen}) == 12


def test_before_and_after_are_asked_the_same(scripted) -> None:
    server = scripted(lambda messages, number: BOLD)
    evaluate(server.base_url, None, "teacher", problems=8, seed=1)
    evaluate(server.base_url, None, "teacher", problems=8, seed=1)
    problems = [(request["body"]["messages"][0]["content"], request["body"]["seed"]) for request in server.seen]
    assert sorted(problems[:8]) == sorted(problems[8:])
    evaluate(server.base_url, None, "teacher", problems=8, seed=2)
    other_problems = [
        (request["body"]["messages"][0]["content"], request["body"]["seed"]) for request in server.seen[16:]
    ]
    assert not set(other_problems) & set(problems)


def test_a_failed_request_is_counted_and_no_score(scripted) -> None:
    server = scripted(lambda messages, number: 500 if number <= 2 else PLAIN)
    report = evaluate(server.base_url, None, "student", problems=5, concurrency=1)
    assert (report.n, report.requests, report.failed, report.score) == (5, 7, 2, 1.0)


def test_no_answer_at_all_is_a_clear_error(scripted) -> None:
    server = scripted(lambda messages, number: 400)
    with pytest.raises(UserError, match="logs of the gateway"):
        evaluate(server.base_url, None, "student", problems=2)


@given(st.lists(st.sampled_from([0.0, 1.0, None])))
def test_interactions_to_hold(scores: list[float | None]) -> None:
    naive = [end for end in range(HOLD, len(scores) + 1) if scores[end - HOLD : end] == [1.0] * HOLD]
    assert interactions_to_hold([{"first_score": score} for score in scores]) == (naive[0] if naive else None)
