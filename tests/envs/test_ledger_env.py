"""Stored chats as a TorchRL world and as trajectories: what is on record, and nothing else, and never written."""

import hashlib
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import text
from torchrl.data import LazyStackStorage, ReplayBuffer, SliceSampler
from torchrl.envs import AsyncEnvPool, check_env_specs

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.envs.chat.ledger_env import LedgerEnv, recorded, trajectories
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger, episodes, turns
from clawrl_trl.ledger.schema import Sample, Turn, Verdict
from clawrl_trl.run import RunFolder


def make_message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


class Writer:
    """Puts chats into a ledger as the gateway and the judge do; the n-th chat begins n seconds after the last."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.now = time.time()

    def chat(
        self,
        name: str,
        scores: list[float | None],
        *,
        group: str | None = None,
        kind: str = "main",
        ids: bool = True,
        state: str = "awaiting",
    ) -> list[Turn]:
        self.now += 1
        with self.ledger.transaction() as tx:
            session = turns.get_or_create_session(
                tx, owner="local", external_id=name, identity_source="header", now=self.now, group=group
            )
            messages = [make_message("system", "Be kind."), make_message("user", f"{name}: question 0")]
            turn_ids = []
            for number, score in enumerate(scores):
                length = number + 2
                sampled: dict[str, Any] = {
                    "prompt_ids": np.arange(10 * length),
                    "completion_ids": np.arange(100, 100 + length),
                    "logprobs": -np.arange(1, 1 + length) / 8,
                    "trainable": True,
                    "policy_version": number,
                }
                turn = Turn(
                    session_id=session.id,
                    completion_id=f"{name}-{kind}-{number}",
                    kind=kind,
                    messages=list(messages),
                    response=make_message("assistant", f"{name}: reply {number}"),
                    **(sampled if ids else {}),
                )
                turn_ids.append(turns.add(tx, turn))
                following = make_message("user", f"{name}: question {number + 1}")
                if kind == "main" and (number + 1 < len(scores) or score is not None) and group is None:
                    turns.set_next_state(tx, turn.id, [following], ["owner"], None, self.now)
                    if score is not None:
                        sample = Sample(turn_id=turn.id, score=score, policy_version=number) if ids else None
                        turns.record_verdict(tx, Verdict(turn_id=turn.id, judge="test", score=score), sample)
                messages += [turn.response, following]
        return turn_ids


@pytest.fixture
def run(tmp_path: Path) -> Path:
    RunFolder(tmp_path).make()
    ServeSettings(run=str(tmp_path)).save()
    return tmp_path


@pytest.fixture
def ledger(run: Path) -> Iterator[Ledger]:
    opened = Ledger.open(RunFolder(run).ledger)
    yield opened
    opened.close()


@pytest.fixture
def filled(ledger: Ledger) -> Ledger:
    writer = Writer(ledger)
    writer.chat("first", [-1.0, 1.0, None])
    writer.chat("on the side", [None], kind="side")
    writer.chat("second", [0.5])
    writer.chat("without ids", [1.0], ids=False)
    return ledger


def dump_contents(ledger: Ledger) -> str:
    """A digest of every row of every table."""
    with ledger.reader() as tx:
        connection = tx.connection().connection.driver_connection
        return hashlib.sha256("\n".join(connection.iterdump()).encode()).hexdigest()


def test_specs(filled: Ledger) -> None:
    check_env_specs(LedgerEnv(filled), break_when_any_done="both", seed=0)


def test_an_episode_is_a_session(filled: Ledger) -> None:
    env = LedgerEnv(filled)
    rollout = env.rollout(100, recorded)
    assert rollout["action"] == [f"first: reply {number}" for number in range(3)]
    assert rollout["message"] == [f"first: question {number}" for number in range(3)]
    assert set(rollout["session_id"]) == {"first"}
    rewards = rollout["next", "reward"].flatten()
    assert rewards[:2].tolist() == [-1.0, 1.0] and rewards[2].isnan()
    assert rollout["policy_version"].flatten().tolist() == [0, 1, 2]
    assert rollout["next", "done"].flatten().tolist() == [False, False, True]
    for number in range(3):
        step = rollout[number]
        assert step["prompt_ids"].tolist() == list(range(10 * (number + 2)))
        assert step["completion_ids"].tolist() == list(range(100, 102 + number))
        assert step["logprobs"].tolist() == [-(place + 1) / 8 for place in range(number + 2)]
        talk = json.loads(step["conversation"])
        assert [message["role"] for message in talk] == ["system", "user", *["assistant", "user"] * number]
        assert json.loads(step["response"]) == make_message("assistant", f"first: reply {number}")


def test_after_the_last_turn_there_is_what_came_next_and_no_reply(filled: Ledger) -> None:
    env = LedgerEnv(filled, sessions=["second"])
    last = env.rollout(100, recorded)[-1]["next"]
    assert last["message"] == "second: question 1"
    assert json.loads(last["conversation"])[-2:] == [
        make_message("assistant", "second: reply 0"),
        make_message("user", last["message"]),
    ]
    assert (last["reply"], last["turn_id"], last["completion_ids"].numel()) == ("", "", 0)


def test_episodes_go_through_the_sessions_and_leave_side_turns_out(filled: Ledger) -> None:
    env = LedgerEnv(filled)
    names = [env.reset()["session_id"] for _ in range(4)]
    assert names == ["first", "second", "without ids", "first"]
    assert LedgerEnv(filled, first_episode=1).reset()["session_id"] == "second"
    env.set_seed(2)
    assert env.reset()["session_id"] == "without ids"


def test_no_action_changes_what_happened(filled: Ledger) -> None:
    def talk(action: str) -> list[str]:
        return LedgerEnv(filled).rollout(9, lambda td: td.set("action", action))["next", "message"]

    assert talk("Something else.") == talk("") == LedgerEnv(filled).rollout(9, recorded)["next", "message"]


def test_a_turn_without_ids_has_none(filled: Ledger) -> None:
    (step,) = LedgerEnv(filled, sessions=["without ids"]).rollout(9, recorded).unbind(0)
    assert step["completion_ids"].numel() == step["logprobs"].numel() == step["prompt_ids"].numel() == 0
    assert step["policy_version"].item() == -1 and not step["trainable"].item()
    assert step["next", "reward"].item() == 1.0


def test_an_open_session_is_cut_off_and_a_settled_one_has_ended(ledger: Ledger) -> None:
    writer = Writer(ledger)
    writer.chat("live", [1.0])
    for name in ("good", "bad"):
        writer.chat(name, [None, None], group="g")
    with ledger.transaction() as tx:
        episodes.settle(tx, "g", [episodes.EpisodeOutcome("good", 1.0), episodes.EpisodeOutcome("bad", -1.0)])
    live, good, bad = trajectories(ledger)
    assert live["next", "truncated"][-1].item() and not live["next", "terminated"].any()
    assert good["next", "terminated"].flatten().tolist() == [False, True]
    assert good["next", "reward"].flatten().tolist() == [1.0, 1.0]
    assert bad["next", "reward"].flatten().tolist() == [-1.0, -1.0]


def test_trajectories_are_what_the_environment_plays(filled: Ledger) -> None:
    env = LedgerEnv(filled)
    episodes = list(trajectories(filled))
    assert [len(episode) for episode in episodes] == [3, 1, 1]
    for episode in episodes:
        played = env.rollout(100, recorded)
        shared = set(episode.keys(True, True)) & set(played.keys(True, True))
        assert shared == set(episode.keys(True, True))
        for mine, theirs in zip(episode.unbind(0), played.unbind(0), strict=True):
            for key in shared:
                if isinstance(mine[key], torch.Tensor):
                    assert mine[key].dtype == theirs[key].dtype
                    torch.testing.assert_close(mine[key], theirs[key], equal_nan=True)
                else:
                    assert mine[key] == theirs[key]


def test_replay_buffers_hold_live_chats(filled: Ledger) -> None:
    buffer = ReplayBuffer(storage=LazyStackStorage(100), batch_size=64)
    for session in trajectories(filled):
        buffer.extend(session)
    assert len(buffer) == 5
    batch = buffer.sample()
    ids = batch.get("completion_ids", as_padded_tensor=True, padding_value=-1)
    assert ids.shape == (64, 4)
    lengths = {
        (version.item(), int((row >= 0).sum())) for version, row in zip(batch["policy_version"], ids, strict=True)
    }
    assert lengths == {(0, 2), (1, 3), (2, 4), (-1, 0)}

    slices = ReplayBuffer(
        storage=LazyStackStorage(100),
        sampler=SliceSampler(num_slices=8, end_key=("next", "done"), strict_length=False),
        batch_size=24,
    )
    for session in trajectories(filled, sessions=["first", "second"]):
        slices.extend(session)
    assert set(slices.sample()["session_id"]) <= {"first", "second"}


def test_a_run_is_found_and_never_written(run: Path, filled: Ledger) -> None:
    before = dump_contents(filled)
    env = LedgerEnv(run)
    assert len(env.sessions) == 3
    env.rollout(100, recorded)
    assert len(list(trajectories(str(run)))) == 3
    env.close()
    assert dump_contents(filled) == before
    with filled.reader() as tx:
        assert tx.get(Turn, turns.by_completion(tx, "first-main-2").id).state == "awaiting_next_state"


def test_an_old_ledger_is_refused_and_not_brought_up_to_date(run: Path, filled: Ledger) -> None:
    with filled.transaction() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '0002'"))
    with pytest.raises(UserError, match="an old one"):
        LedgerEnv(run)
    assert filled.revision() == "0002"


def test_an_erased_session_is_passed_over(filled: Ledger) -> None:
    env = LedgerEnv(filled)
    with filled.transaction() as tx:
        turns.delete_session(tx, "first")
    assert env.reset()["session_id"] == "second"
    with filled.transaction() as tx:
        turns.delete_session(tx, "second")
        turns.delete_session(tx, "without ids")
    with pytest.raises(UserError, match="erased"):
        env.reset()


def test_what_is_not_there_is_one_line(filled: Ledger, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no chat 'third'"):
        LedgerEnv(filled, sessions=["third"])
    with pytest.raises(UserError, match="no chat 'on the side'"):
        LedgerEnv(filled, sessions=["on the side"])
    with pytest.raises(UserError, match="no ledger"):
        LedgerEnv(tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()
    empty = Ledger.open(tmp_path / "empty.db")
    with pytest.raises(UserError, match="no chat yet"):
        list(trajectories(empty))
    empty.close()


def test_pool_of_threads(run: Path, filled: Ledger) -> None:
    pool = AsyncEnvPool(
        [partial(LedgerEnv, run, first_episode=first) for first in range(3)], backend="threading", stack="lazy"
    )
    actions: dict[int, list[str]] = {0: [], 1: [], 2: []}
    try:
        ready = pool.reset()
        for _ in range(12):
            for env_state in ready.unbind(0):
                actions[env_state["env_index"]].append(recorded(env_state)["action"])
            pool.async_step_and_maybe_reset_send(ready)
            _, ready = pool.async_step_and_maybe_reset_recv(min_get=1, max_get=3)
    finally:
        pool.close()
    assert [replies[0] for replies in actions.values()] == [
        "first: reply 0",
        "second: reply 0",
        "without ids: reply 0",
    ]
