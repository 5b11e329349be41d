"""Rollouts through the gateway: a header makes a session one, and its outcome is told at the end."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_rig import Rig, running
from sqlalchemy import select

from clawrl_trl.gateway.auth import Keys
from clawrl_trl.ledger import schema


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("episodes")) as rig:
        yield rig


def play(http: httpx.Client, session: str, group: str, steps: int = 2) -> list[str]:
    """Play an episode; returns the ids of its turns."""
    ids = []
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"task of {group}"}]
    for step in range(steps):
        headers = {"X-Session-Id": session, "X-Group-Id": group}
        answer = http.post("/v1/chat/completions", json={"messages": messages}, headers=headers)
        ids.append(answer.headers["X-Clawrl-Turn-Id"])
        messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": f"result {step}"}]
    return ids


def samples_of(rig: Rig, group: str) -> list[schema.Sample]:
    with rig.gateway.ledger.reader() as tx:
        return list(tx.scalars(select(schema.Sample).where(schema.Sample.group == group)))


def test_a_group_of_rollouts(rig: Rig) -> None:
    with rig.client() as http:
        play(http, "one", "task-1")
        play(http, "two", "task-1")
        assert samples_of(rig, "task-1") == []
        ended = [{"session_id": "one", "outcome": 1.0}, {"session_id": "two", "outcome": -1}]
        answer = http.post("/v1/episodes", json={"group": "task-1", "episodes": ended})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "object": "episodes",
        "group": "task-1",
        "samples": 4,
        "constant": 0,
        "incomparable": 0,
        "hinted": 0,
        "dropped_episodes": 0,
        "unknown": [],
    }
    assert sorted(one.score or 0 for one in samples_of(rig, "task-1")) == [-1, -1, 1, 1]


def test_signals_reach_the_turns_they_are_of(rig: Rig) -> None:
    with rig.client() as http:
        good, bad = play(http, "good", "task-s"), play(http, "bad", "task-s")
        ended = [
            {"session_id": "good", "outcome": 1.0, "signals": {good[0]: 0.5, good[1]: -1}},
            {"session_id": "bad", "outcome": -1.0, "signals": {bad[1]: 0.0}},
        ]
        told = {"group": "task-s", "episodes": ended, "signal_weight": 0.5, "stepwise": True}
        assert http.post("/v1/episodes", json=told).json()["samples"] == 4
        assert http.post("/v1/episodes", json=told).json()["samples"] == 0
    found = {one.turn_id: one for one in samples_of(rig, "task-s")}
    # At step 0 the one signal, 0.5, stands for the missing one too; at step 1 they are -1 and 0.
    assert {turn: one.score for turn, one in found.items()} == dict(
        zip([*good, *bad], [1.25, 0.5, -0.75, -1.0], strict=True)
    )
    assert [found[turn].baseline for turn in (*good, *bad)] == [0.25, -0.25] * 2


def test_a_dropped_rollout(rig: Rig) -> None:
    with rig.client() as http:
        play(http, "three", "task-2")
        ended = [{"session_id": "three", "reason": "no browser"}, {"session_id": "four", "outcome": 0.0}]
        answer = http.post("/v1/episodes", json={"group": "task-2", "episodes": ended}).json()
    assert (answer["samples"], answer["dropped_episodes"], answer["unknown"]) == (0, 1, ["four"])
    assert samples_of(rig, "task-2") == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"group": "", "episodes": [{"session_id": "x"}]}, 400),
        ({"group": "g", "episodes": []}, 400),
        ({"group": "g", "episodes": [{"session_id": "x", "outcome": 2}]}, 400),
        ({"group": "g", "episodes": [{"session_id": "x", "outcome": "high"}]}, 400),
        ({"group": "g", "episodes": [{"session_id": "x", "outcome": 1, "score": 1}]}, 400),
        ({"group": "other", "episodes": [{"session_id": "five", "outcome": 1}]}, 404),
        ({"group": "task-3", "episodes": [{"session_id": "five", "outcome": 1, "signals": {"turn_x": 1}}]}, 400),
        ({"group": "task-3", "episodes": [{"session_id": "five", "outcome": 1, "signals": [1]}]}, 400),
        ({"group": "task-3", "episodes": [{"session_id": "five", "outcome": 1}], "signal_weight": -1}, 400),
    ],
)
def test_bad_reports(rig: Rig, body: dict[str, Any], status: int) -> None:
    with rig.client() as http:
        play(http, "five", "task-3", steps=1)
        answer = http.post("/v1/episodes", json=body)
    assert answer.status_code == status and answer.json()["error"]["message"], answer.text


def test_the_scope_is_feedback(tmp_path: Path) -> None:
    with running(tmp_path / "run", keys=Keys(chat=("chat-key",), feedback=("fb-key",))) as rig, rig.client() as http:
        body = {"group": "g", "episodes": [{"session_id": "x", "outcome": 1.0}]}
        assert http.post("/v1/episodes", json=body).status_code == 401
        assert http.post("/v1/episodes", json=body, headers={"Authorization": "Bearer fb-key"}).status_code == 200


@pytest.mark.parametrize("hints", [[], [""], ["x" * 201], ["a", "b", "c", "d"], "a", [1]], ids=str)
def test_hints_are_few_and_short(rig: Rig, hints: object) -> None:
    with rig.client() as http:
        (turn,) = play(http, "long", "task-long", steps=1)
        ended = [{"session_id": "long", "outcome": -1.0, "hints": {turn: hints}}]
        assert http.post("/v1/episodes", json={"group": "task-long", "episodes": ended}).status_code == 400


def test_a_hint_holds_its_turn_back_for_the_teacher(rig: Rig) -> None:
    with rig.client() as http:
        (turn,) = play(http, "fell", "task-h", steps=1)
        ended = [{"session_id": "fell", "outcome": -1.0, "hints": {turn: ["x is 1, not 6."]}}]
        answer = http.post("/v1/episodes", json={"group": "task-h", "episodes": ended}).json()
        assert (answer["hinted"], answer["samples"]) == (1, 0)
    with rig.gateway.ledger.reader() as tx:
        found = tx.get(schema.Turn, turn)
        assert found is not None and found.state == "judging"


def test_a_chat_takes_no_hint(rig: Rig) -> None:
    with rig.client() as http:
        body = {"messages": [{"role": "user", "content": "hello there"}]}
        answer = http.post("/v1/chat/completions", json=body, headers={"X-Session-Id": "a-chat"})
        turn = answer.headers["X-Clawrl-Turn-Id"]
        ended = [{"session_id": "a-chat", "outcome": -1.0, "hints": {turn: ["Say hi."]}}]
        assert http.post("/v1/episodes", json={"group": "task-c", "episodes": ended}).status_code == 404
