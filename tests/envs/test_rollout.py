"""The rollout: groups of episodes on threads, through a gateway, reported when they have ended."""

import itertools
import json
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from clawrl_trl.envs.base.actor import GatewayPolicy
from clawrl_trl.envs.base.agent import AgentEnv, Effect, Start, WorldBroken
from clawrl_trl.envs.base.message import Action
from clawrl_trl.envs.rollout.episode import Group, compute_success_rate
from clawrl_trl.envs.rollout.rollout import Rollout
from clawrl_trl.errors import UserError


@dataclass(frozen=True)
class Guess:
    """Say a number; it is worth what it says."""

    id: str
    broken: bool = False


TASKS = [Guess("a"), Guess("b"), Guess("broken", broken=True)]


class GuessEnv(AgentEnv[Guess]):
    """Worth the number said; one task has no world at all."""

    alive = 0
    lock = threading.Lock()

    def __init__(self) -> None:
        super().__init__(TASKS, max_steps=3)
        with GuessEnv.lock:
            GuessEnv.alive += 1

    def begin(self, task: Guess) -> Start:
        if task.broken:
            raise WorldBroken("no world")
        return Start([{"role": "user", "content": f"guess {task.id}"}])

    def act(self, action: Action) -> Effect:
        self.said = float(action.text)
        return Effect([], ended=True)

    def evaluate(self) -> float:
        return self.said

    def close(self, *, raise_if_closed: bool = False) -> None:
        with GuessEnv.lock:
            GuessEnv.alive -= 1
        super().close(raise_if_closed=raise_if_closed)


def play_groups(scripted: Any, tasks: Any, script: Any, **options: Any) -> tuple[list[Group], Any]:
    server = scripted(script)
    policy = GatewayPolicy(server.base_url, stream_share=0.0)
    groups = list(Rollout(GuessEnv, policy, **options).play(tasks))
    policy.close()
    return groups, server


def list_reports(server: Any) -> list[dict[str, Any]]:
    return [request["body"] for request in server.seen if request["path"].endswith("/episodes")]


def test_groups_of_one_task_are_reported_once_each(scripted: Any) -> None:
    groups, server = play_groups(scripted, [0, 1], lambda messages, number: "1", num_generations=3, parallel_envs=2)
    assert sorted(len(group.episodes) for group in groups) == [3, 3]
    for group in groups:
        assert len({episode.task_id for episode in group.episodes}) == 1
        assert {episode.outcome for episode in group.episodes} == {1.0} and {
            episode.versions for episode in group.episodes
        } == {(3,)}
    reported = {report["group"]: report["episodes"] for report in list_reports(server)}
    assert set(reported) == {group.id for group in groups}
    headers = [request["headers"] for request in server.seen if request["path"].endswith("/chat/completions")]
    for group in groups:
        sessions = {header["x-session-id"] for header in headers if header["x-group-id"] == group.id}
        assert sessions == {episode["session_id"] for episode in reported[group.id]} and len(sessions) == 3
    assert compute_success_rate(groups) == 1.0 and GuessEnv.alive == 0


def test_an_evaluation_reports_nothing_and_belongs_to_no_group(scripted: Any) -> None:
    groups, server = play_groups(scripted, [0], lambda messages, number: "0.5", num_generations=1, report=False)
    assert list_reports(server) == [] and "x-group-id" not in server.seen[0]["headers"]
    assert compute_success_rate(groups) == 0.0


def test_a_broken_world_is_told_as_dropped_and_asks_nothing(scripted: Any) -> None:
    groups, server = play_groups(scripted, [2], lambda messages, number: "1", num_generations=2, parallel_envs=1)
    assert [episode.outcome for episode in groups[0].episodes] == [None, None]
    assert [entry["outcome"] for entry in list_reports(server)[0]["episodes"]] == [None, None]
    assert list_reports(server)[0]["episodes"][0]["reason"] == "no world"
    assert len(server.seen) == 1 and str(compute_success_rate(groups)) == "nan"


class WordyEnv(GuessEnv):
    """Goes on until a number is said; worth that number, or nothing."""

    def begin(self, task: Guess) -> Start:
        self.said = -1.0
        return super().begin(task)

    def act(self, action: Action) -> Effect:
        return Effect(["go on"])


@pytest.mark.parametrize(
    ("refused", "outcome", "asked"),
    [
        ((2, 400, "maximum context length is 9"), -1.0, 2),
        ((1, 400, "maximum context length is 9"), None, 1),
        ((2, 422, "no such tool"), None, 2),
    ],
)
def test_a_request_that_is_refused_is_not_repeated(
    scripted: Any, refused: tuple[int, int, str], outcome: float | None, asked: int
) -> None:
    server = scripted(lambda messages, number: refused[1:] if messages and number >= refused[0] else "blah")
    policy = GatewayPolicy(server.base_url, stream_share=0.0)
    group = next(Rollout(WordyEnv, policy, num_generations=1, parallel_envs=1).play([0]))
    assert group.episodes[0].outcome == outcome and policy.requests == asked
    assert (
        group.episodes[0].reason == ("" if outcome else refused[2]) == list_reports(server)[0]["episodes"][0]["reason"]
    )
    policy.close()


def test_an_own_reward_is_told_in_place_of_the_outcome(scripted: Any) -> None:
    options = {"num_generations": 1, "parallel_envs": 1, "reward": lambda episode: -episode.outcome / 4}
    groups, server = play_groups(scripted, [0, 2], lambda messages, number: "0.5", **options)
    assert [[episode.outcome for episode in group.episodes] for group in groups] == [[0.5], [None]]
    assert [report["episodes"][0]["outcome"] for report in list_reports(server)] == [-0.125, None]


@pytest.mark.parametrize("reward", [2.0, float("nan")])
def test_an_own_reward_that_is_none_is_the_users_mistake(scripted: Any, reward: float) -> None:
    with pytest.raises(UserError, match="from -1 to 1"):
        play_groups(scripted, [0], lambda messages, number: "0.5", num_generations=1, reward=lambda episode: reward)


def test_a_report_that_fails_is_told_again(scripted: Any) -> None:
    broken = itertools.count()

    def script(messages: Any, number: int) -> str | int:
        return "1" if messages is not None else (503 if next(broken) < 2 else "ok")

    groups, server = play_groups(scripted, [0], script, num_generations=1)
    assert len(groups) == 1 and len(list_reports(server)) == 3


def test_an_endless_task_list_ends_with_its_reader(scripted: Any) -> None:
    server = scripted(lambda messages, number: "1")
    policy = GatewayPolicy(server.base_url, stream_share=0.0)
    rollout = Rollout(GuessEnv, policy, num_generations=2, parallel_envs=3)
    groups = list(itertools.islice(rollout.play(itertools.count()), 4))
    assert len(groups) == 4
    rollout.stop.set()
    assert list(rollout.play(itertools.count())) == []
    assert GuessEnv.alive == 0
    policy.close()


class LongEnv(WordyEnv):
    """Its task "b" goes on and on."""

    def __init__(self) -> None:
        super().__init__()
        self.max_steps = 200

    def act(self, action: Action) -> Effect:
        return Effect(["go on"], ended=self.task.id == "a")


def test_a_reader_who_leaves_does_not_wait_for_an_episode_s_end(scripted: Any) -> None:
    policy = GatewayPolicy(scripted(lambda messages, number: "blah").base_url, stream_share=0.0)
    groups = Rollout(LongEnv, policy, num_generations=1, parallel_envs=2).play([1, 0])
    assert next(groups).episodes[0].task_id == "a"
    groups.close()
    assert policy.requests < 200 and GuessEnv.alive == 0
    policy.close()


def test_a_stop_drops_the_episodes_under_way(scripted: Any) -> None:
    class StoppedEnv(LongEnv):
        def act(self, action: Action) -> Effect:
            rollout.stop.set()
            return super().act(action)

    policy = GatewayPolicy(scripted(lambda messages, number: "blah").base_url, stream_share=0.0)
    rollout = Rollout(StoppedEnv, policy, num_generations=1, parallel_envs=1)
    episode = next(rollout.play([1])).episodes[0]
    assert (episode.outcome, episode.reason, episode.steps) == (None, "stopped", 1)
    policy.close()


def test_an_environment_that_cannot_be_made_is_the_reader_s_error(scripted: Any) -> None:
    def make() -> AgentEnv[Any]:
        raise UserError("no sandbox here")

    policy = GatewayPolicy(scripted(lambda messages, number: "1").base_url)
    with pytest.raises(UserError, match="no sandbox here"):
        list(Rollout(make, policy).play([0]))
    policy.close()


def test_calls_reach_the_world_with_their_ids(scripted: Any) -> None:
    call = {"id": "c7", "type": "function", "function": {"name": "x", "arguments": json.dumps({"a": 1})}}

    class ToolEnv(GuessEnv):
        def begin(self, task: Guess) -> Start:
            return Start([{"role": "user", "content": "go"}], [{"type": "function", "function": {"name": "x"}}])

        def act(self, action: Action) -> Effect:
            self.said = 1.0 if action.calls and action.calls[0].id == "c7" else -1.0
            return Effect(["done"] * len(action.calls), ended=True)

    server = scripted(lambda messages, number: {"role": "assistant", "content": None, "tool_calls": [call]})
    policy = GatewayPolicy(server.base_url)
    group = next(Rollout(ToolEnv, policy, num_generations=1, parallel_envs=1).play([0]))
    assert group.episodes[0].outcome == 1.0
    assert server.seen[0]["body"]["tools"] and not server.seen[0]["body"].get("stream")
    policy.close()


class AdvisedEnv(GuessEnv):
    def advise(self) -> dict[int, str]:
        return {0: "Too small.", 7: "There was no such step."}


@pytest.mark.parametrize("hints", [True, False])
def test_the_checker_s_words_are_reported_for_the_turn_they_are_of(scripted: Any, hints: bool) -> None:
    server = scripted(lambda messages, number: "settled" if messages is None else "-1")
    policy = GatewayPolicy(server.base_url, stream_share=0.0)
    rollout = Rollout(AdvisedEnv, policy, num_generations=1, parallel_envs=1, hints=hints)
    (group,) = rollout.play([0])
    policy.close()
    (reported,) = list_reports(server)[0]["episodes"]
    assert reported.get("hints", {}) == group.episodes[0].hints
    assert list(group.episodes[0].hints.values()) == ([["Too small."]] if hints else [])
