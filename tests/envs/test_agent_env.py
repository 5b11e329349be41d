"""The common outside of the tool environments, with a world small enough to see through."""

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.envs.utils import check_env_specs

from clawrl_trl.envs.base.agent import MAX_FAULTS, MAX_SILENCES, AgentEnv, Effect, Start, WorldBroken
from clawrl_trl.envs.base.message import Action, make_result_messages, read_action


@dataclass(frozen=True)
class Count:
    """Count to `goal`."""

    id: str
    goal: int


class CountEnv(AgentEnv[Count]):
    """Adds what it is told to add; "fail" breaks it."""

    def __init__(self, **options: Any) -> None:
        super().__init__([Count("one", 1), Count("two", 2)], **{"max_steps": 4, **options})
        self.closed = 0

    def begin(self, task: Count) -> Start:
        self.total = 0
        return Start([{"role": "user", "content": f"Count to {task.goal}."}], [{"type": "function"}])

    def act(self, action: Action) -> Effect:
        if not action.calls:
            return Effect([], ended=True)
        for call in action.calls:
            if call.name == "fail":
                raise WorldBroken("the abacus fell apart")
            if call.name == "bug":
                raise KeyError("no such bead")
            self.total += call.arguments.get("by", 1)
        return Effect([str(self.total)] * len(action.calls))

    def evaluate(self) -> float:
        return 1.0 if self.total == self.task.goal else -1.0

    def finish(self) -> None:
        self.closed += 1


def make_reply(*names: str, text: str = "", by: int = 1) -> str:
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": json.dumps({"by": by})}}
        for i, name in enumerate(names)
    ]
    return json.dumps({"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})})


def step(env: CountEnv, state: Any, action: str) -> Any:
    return env.step(state.set("action", action))["next"]


def test_specs() -> None:
    check_env_specs(CountEnv(), break_when_any_done="both", seed=0)


def test_an_episode_has_one_outcome_at_its_end() -> None:
    env = CountEnv(first_task=1)
    state = env.reset()
    assert state["task_id"] == "two" and state["message"] == "Count to 2."
    state = step(env, state, make_reply("add"))
    assert state["reward"].item() == 0.0 and not state["done"] and math.isnan(state["outcome"].item())
    state = step(env, state, make_reply("add"))
    state = step(env, state, make_reply(text="Done."))
    assert state["terminated"] and not state["truncated"] and state["reward"].item() == 1.0
    assert state["outcome"].item() == 1.0 and env.closed == 1
    roles = [message["role"] for message in json.loads(state["conversation"])]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]


def test_parallel_calls_are_answered_one_by_one() -> None:
    env = CountEnv()
    state = step(env, env.reset(), make_reply("add", "add"))
    tools = [message for message in json.loads(state["conversation"]) if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in tools] == ["c0", "c1"]


def test_calls_in_text_are_answered_in_text() -> None:
    env = CountEnv()
    state = step(env, env.reset(), 'Sure. <tool_call>\n{"name": "add", "arguments": {"by": 3}}\n</tool_call>')
    assert json.loads(state["conversation"])[-1] == {
        "role": "user",
        "content": "<tool_response>\n3\n</tool_response>",
    }


def test_too_many_steps_truncate_and_are_graded() -> None:
    env = CountEnv(max_steps=1)
    state = step(env, env.reset(), make_reply("add"))
    assert state["truncated"] and not state["terminated"] and state["reward"].item() == 1.0


@pytest.mark.parametrize(("name", "reason"), [("fail", "the abacus fell apart"), ("bug", "KeyError")])
def test_a_broken_world_drops_the_episode_without_a_reward(name: str, reason: str) -> None:
    env = CountEnv()
    state = step(env, env.reset(), make_reply(name))
    assert state["dropped"] and state["terminated"] and reason in state["reason"]
    assert math.isnan(state["reward"].item()) and math.isnan(state["outcome"].item())
    assert env.closed == 1
    again = env.reset()
    assert not again["dropped"] and again["reason"] == "" and again["task_id"] == "two"


@pytest.mark.parametrize("outcome", [math.nan, math.inf, -math.inf])
def test_an_outcome_that_is_no_finite_number_drops_the_episode(
    outcome: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = CountEnv()
    monkeypatch.setattr(env, "evaluate", lambda: outcome)
    state = step(env, env.reset(), make_reply(text="Done."))
    assert state["dropped"] and math.isnan(state["reward"].item()) and math.isnan(state["outcome"].item())
    assert str(outcome) in state["reason"] and env.closed == 1


def test_unreadable_actions_are_told_and_end_the_episode() -> None:
    env = CountEnv(max_steps=10)
    state = env.reset()
    for number in range(MAX_FAULTS):
        assert not state["done"]
        state = step(env, state, "<tool_call>{nonsense</tool_call>")
        assert state["faults"].item() == number + 1 and "Error" in state["message"]
    assert state["terminated"] and state["reward"].item() == -1.0


def test_silence_drops_the_episode() -> None:
    env = CountEnv()
    state = env.reset()
    for _ in range(MAX_SILENCES):
        assert not state["done"]
        state = step(env, state, " ")
    assert state["dropped"] and math.isnan(state["reward"].item()) and state["step"].item() == 0


def test_a_reset_may_name_its_task() -> None:
    env = CountEnv()
    for index, name in ((1, "two"), (1, "two"), (0, "one")):
        state = env.reset(TensorDict({"next_task": torch.tensor([index])}, batch_size=()))
        assert state["task_id"] == name
    assert env.reset()["task_id"] == "two"


@pytest.mark.parametrize("calls", ['"x"', "[1]", '[{"function": 3}]', '[{"id": "a"}]', "{}"])
def test_what_only_looks_like_a_message_is_text(calls: str) -> None:
    action = f'{{"role": "assistant", "content": "", "tool_calls": {calls}}}'
    assert read_action(action).calls == ()


@given(st.text() | st.builds(json.dumps, st.dictionaries(st.text(), st.text() | st.integers() | st.none())))
def test_reading_never_raises(action: str) -> None:
    parsed = read_action(action)
    assert parsed.fault is None or not parsed.calls
    assert parsed.message["role"] == "assistant"
    json.dumps(
        make_result_messages(parsed, ["x"] * max(1, len(parsed.calls))) if not parsed.message.get("tool_calls") else []
    )


@given(st.lists(st.tuples(st.text(min_size=1), st.dictionaries(st.text(), st.integers())), max_size=4))
def test_calls_read_alike_from_the_message_and_from_text(calls: list[tuple[str, dict[str, int]]]) -> None:
    blocks = "".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>" for name, arguments in calls
    )
    inside = [{"function": {"name": name, "arguments": json.dumps(arguments)}} for name, arguments in calls]
    whole = json.dumps({"role": "assistant", "content": None, "tool_calls": inside})
    expected = [(name, arguments) for name, arguments in calls]
    for action in (blocks, whole):
        assert [(call.name, call.arguments) for call in read_action(action).calls] == expected


class ToldEnv(CountEnv):
    """Its checker says what it counted."""

    def advise(self) -> dict[int, str]:
        return {0: f"The total is {self.total}, not {self.task.goal}.<|im_start|>\x1b[2J" + "x" * 500}


def test_the_checker_s_words_come_with_a_bad_end_only() -> None:
    env = ToldEnv()
    state = step(env, env.reset(), make_reply("add", by=2))
    assert json.loads(state["hints"]) == {}, "the episode goes on"
    state = step(env, state, make_reply())
    (words,) = json.loads(state["hints"])["0"]
    assert words.startswith("The total is 2, not 1. [2Jx") and "<|" not in words and "\x1b" not in words
    assert len(words) == 200 and words.endswith("…")
    state = step(env, step(env, env.reset(), make_reply("add", by=2)), make_reply())
    assert state["outcome"] == 1.0 and json.loads(state["hints"]) == {}


def test_an_action_that_could_not_be_read_has_the_form_it_should_have_had_for_a_hint() -> None:
    env = CountEnv()
    state = step(env, env.reset(), "<tool_call>[1]</tool_call>")
    state = step(env, state, make_reply())
    (words,) = json.loads(state["hints"])["0"]
    assert words == 'Error: a block must be an object with "name" and "arguments".', "and no marker of a template"
