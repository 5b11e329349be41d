"""The tool-call environment, with functions, a real MCP server and a real interpreter."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import AsyncEnvPool
from torchrl.envs.utils import check_env_specs

from clawrl_trl.envs import ToolCallEnv, read_tool_tasks
from clawrl_trl.envs.sandbox.bubblewrap import diagnose_bubblewrap
from clawrl_trl.envs.toolcall.env import compute_outcome
from clawrl_trl.envs.toolcall.tasks import ToolTask, make_action
from clawrl_trl.envs.toolcall.tools_config import load_tools
from clawrl_trl.errors import UserError
from clawrl_trl.messages import Json
from recipes.tasks import toolcall as taskgen
from recipes.tasks.splits import SPLITS, write_splits

FOLDER = Path(__file__).parents[2] / "examples" / "tasks" / "toolcall"
TROUBLE = diagnose_bubblewrap()
sandboxed = pytest.mark.skipif(bool(TROUBLE), reason=f"needs bubblewrap: {TROUBLE}")
SUM = ToolTask("sum", "How much is 3 + 4?", answer="7")
CALLS = ToolTask("calls", "Add 3 and 4.", calls=[{"name": "add", "arguments": {"a": 3, "b": 4}}])


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def long(n: int) -> str:
    """A long text.

    Args:
        n: Its length.
    """
    return "x" * n


def call(name: str, **arguments: Any) -> Json:
    return {"name": name, "arguments": arguments}


def step(env: ToolCallEnv, state: Any, *calls: Json, text: str = "") -> Any:
    return env.step(state.set("action", make_action(calls, text)))["next"]


def read_results(state: Any) -> list[str]:
    return [message["content"] for message in json.loads(state["conversation"]) if message["role"] == "tool"]


def test_specs() -> None:
    check_env_specs(ToolCallEnv([SUM, CALLS], tools=[add]), break_when_any_done="both", seed=0)


@pytest.mark.parametrize(
    ("answer", "reward"), [(r"\boxed{7}", 1.0), ("It is 7.", 1.0), (r"\boxed{8}", -1.0), ("no idea", -1.0)]
)
def test_an_answer_ends_the_episode(answer: str, reward: float) -> None:
    env = ToolCallEnv([SUM], tools=[add])
    state = step(env, env.reset(), call("add", a=3, b=4))
    assert state["message"] == "7" and state["reward"].item() == 0.0 and not state["done"]
    state = step(env, state, text=answer)
    assert state["terminated"] and state["reward"].item() == reward


def test_a_rollout_by_a_policy() -> None:
    env = ToolCallEnv([SUM], tools=[add])
    actions = iter([make_action([call("add", a=3, b=4)]), make_action((), "7")])
    rollout = env.rollout(16, lambda td: td.set("action", next(actions)))
    assert rollout["next", "reward"].flatten().tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("made", "reward"),
    [
        ([call("add", a=3, b=4)], 1.0),
        ([call("add", b=4, a=3)], 1.0),
        ([call("add", a=4, b=3)], -1.0),
        ([call("add", a="3", b=4)], -1.0),
        ([call("add", a=3, b=4), call("add", a=3, b=4)], -1.0),
        ([call("sub", a=3, b=4)], -1.0),
    ],
)
def test_a_task_may_ask_for_calls(made: list[Json], reward: float) -> None:
    env = ToolCallEnv([CALLS], tools=[add])
    state = step(env, env.reset(), *made)
    assert state["terminated"] and state["reward"].item() == reward


def test_calls_of_one_action_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3)

    def meet() -> str:
        """Meet the others."""
        meeting.wait(30)
        return "met"

    env = ToolCallEnv([SUM], tools=[meet])
    state = step(env, env.reset(), *[call("meet")] * 3)
    assert read_results(state) == ["met"] * 3


def test_mistakes_are_observations() -> None:
    env = ToolCallEnv([SUM], tools=[add])
    state = step(env, env.reset(), call("sub", a=1), call("add", a=1), call("add", a=1, b=1))
    unknown, wrong, right = read_results(state)
    assert unknown == "Error: there is no tool 'sub'; there are: add." and wrong.startswith("Error: the arguments")
    assert right == "2" and state["faults"].item() == 0 and not state["done"]


def test_calls_and_results_are_bounded() -> None:
    env = ToolCallEnv([SUM], tools=[add, long], max_calls=3, result_length=101)
    state = step(env, env.reset(), call("long", n=101), call("long", n=500))
    assert read_results(state) == ["x" * 101, "x" * 51 + "\n[... 399 characters left out ...]\n" + "x" * 50]
    state = step(env, state, call("add", a=1, b=1), call("add", a=1, b=2))
    assert read_results(state)[2] == "2" and read_results(state)[3].startswith("Error: no call is left")
    assert step(env, state, text="7")["reward"].item() == 1.0


def test_turns_are_bounded() -> None:
    env = ToolCallEnv([SUM], tools=[add])
    state = env.reset()
    for _ in range(16):
        assert not state["done"]
        state = step(env, state, call("add", a=3, b=4))
    assert state["truncated"] and state["reward"].item() == -1.0


@pytest.mark.parametrize(("calls", "outcome"), [(0, -1.0), (2, -1.0), (4, -0.9), (8, -0.7), (16, -0.6)])
def test_the_references_rule_for_many_calls(calls: int, outcome: float) -> None:
    assert compute_outcome(False, calls, encourage_calls=True) == pytest.approx(outcome)
    assert compute_outcome(False, calls) == -1.0 and compute_outcome(True, calls, encourage_calls=True) == 1.0


def test_a_task_offers_some_of_the_tools() -> None:
    env = ToolCallEnv([ToolTask("a", "?", answer="1", tools=["add"]), ToolTask("b", "?", answer="1", tools=["no"])],
                      tools=[add, long])  # fmt: skip
    state = env.reset()
    assert [tool["function"]["name"] for tool in json.loads(state["tools"])] == ["add"]
    assert read_results(step(env, state, call("long", n=1)))[0].startswith("Error: there is no tool 'long'")
    state = step(env, env.reset(), text="1")
    assert state["dropped"] and "the tool 'no'" in state["reason"] and state["reward"].isnan().all()


def test_two_tools_of_one_name_and_wrong_tasks_are_the_users_mistake(tmp_path: Path) -> None:
    for line, message in (
        ("{", "line 1 is no tool-call task"),
        ('{"id": "a", "question": "?"}', "asks for nothing"),
        ('{"id": "a", "question": "?", "answer": "1", "colour": 1}', "colour"),
        ('{"id": "a", "question": "?", "answer": "1"}\n' * 2, "same id"),
    ):
        (tmp_path / "tasks.jsonl").write_text(line)
        with pytest.raises(UserError, match=message):
            read_tool_tasks(tmp_path / "tasks.jsonl")
    with pytest.raises(UserError, match="There is no task set"):
        read_tool_tasks(tmp_path / "none.jsonl")


def test_environments_share_the_tools_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLS_CONFIG", raising=False)
    (tmp_path / "mine.py").write_text('def one() -> int:\n    """One."""\n    return 1\n')
    (tmp_path / "tools.json").write_text('{"functions": ["mine.py:one"]}')
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "question": "?", "answer": "1"}')
    tasks = read_tool_tasks(tmp_path / "tasks.jsonl")
    closed: list[int] = []
    first, second = ToolCallEnv(tasks), ToolCallEnv(tasks, tools=tmp_path / "tools.json")
    monkeypatch.setattr(first._toolsets[0], "close", lambda: closed.append(1))
    assert first._toolsets is second._toolsets
    state = step(second, second.reset(), call("one"))
    assert read_results(state) == ["1"] and step(second, state, text="1")["done"]
    closed.clear()
    first.close()
    first.close()
    assert not closed
    second.close()
    assert closed == [1]
    third = ToolCallEnv(tasks)
    assert third._toolsets is not first._toolsets
    third.close()
    monkeypatch.setenv("TOOLS_CONFIG", str(tmp_path / "none.json"))
    with pytest.raises(UserError, match="can't be read"):
        ToolCallEnv(tasks)


@pytest.fixture(scope="module")
def shipped() -> Iterator[list[Any]]:
    toolsets = load_tools(FOLDER / "tools.json")
    yield toolsets
    for toolset in toolsets:
        toolset.close()


def test_in_a_pool(shipped: list[Any]) -> None:
    tasks = read_tool_tasks(FOLDER / "train.jsonl", difficulty=1)
    pool = AsyncEnvPool(
        [lambda i=i: ToolCallEnv(tasks, tools=shipped, first_task=i) for i in range(3)],
        backend="threading",
        stack="lazy",
    )
    try:
        state = pool.reset()
        for i in range(3):
            state[i].set("action", tasks[i].oracle()[0])
        last = pool.step(state)["next"]
        assert last["reward"].flatten().tolist() == [1.0] * 3 and not last["dropped"].any()
    finally:
        pool.close()


@pytest.mark.sandbox
@sandboxed
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_every_oracle_passes_and_every_no_op_fails(split: str, shipped: list[Any]) -> None:
    tasks = read_tool_tasks(FOLDER / f"{split}.jsonl")
    env = ToolCallEnv(tasks, tools=shipped)
    for index, task in enumerate(tasks):
        for actions, outcome in ((task.oracle(), 1.0), (task.noop(), -1.0)):
            state = env.reset(TensorDict({"next_task": torch.tensor([index])}, batch_size=()))
            for action in actions:
                assert not state["done"], task.id
                state = env.step(state.set("action", action))["next"]
            assert state["reward"].item() == outcome, (task.id, state["reason"], read_results(state))
    env.close()


@pytest.mark.sandbox
@sandboxed
def test_many_episodes_leave_nothing(shipped: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = ToolCallEnv([ToolTask("count", "?", answer="2", tools=["code_interpreter", "price"])], tools=shipped)
    calls = [call("code_interpreter", code="open('a', 'w').write('x')\n1 + 1"), call("price", item="plum")]

    def episode() -> None:
        state = step(env, env.reset(), *calls)
        assert read_results(state) == ["2", "2"]
        assert step(env, state, text="2")["reward"].item() == 1.0

    episode()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    process = psutil.Process()
    before = process.num_fds(), len(process.children(recursive=True))
    for _ in range(10):
        episode()
    step(env, env.reset(), *calls)  # one that is not played to its end
    env.close()
    assert (process.num_fds(), len(process.children(recursive=True))) == before
    assert list(tmp_path.iterdir()) == []


def test_the_shipped_tasks_are_what_the_seed_gives(tmp_path: Path) -> None:
    write_splits(tmp_path, taskgen.generate())
    for split in SPLITS:
        assert (tmp_path / f"{split}.jsonl").read_text() == (FOLDER / f"{split}.jsonl").read_text()


def test_the_shipped_splits_are_apart_and_the_first_step_is_short() -> None:
    train, heldout = (read_tool_tasks(FOLDER / f"{split}.jsonl") for split in ("train", "heldout"))
    questions = [
        {json.dumps(list(task.calls)) + (task.answer or "") + task.question * bool(task.answer) for task in tasks}
        for tasks in (train, heldout)
    ]
    assert not questions[0] & questions[1] and len(train) == 120 and len(heldout) == 60
    for task in train + heldout:
        if task.difficulty == 1:
            assert len(task.oracle()) == 1 and len(task.question.split()) < 10


def test_the_generator_knows_the_servers_prices(shipped: list[Any]) -> None:
    tools = shipped[0].open()
    for item, price in taskgen.PRICES.items():
        assert tools.call("price", {"item": item}, 60.0) == str(price)


def test_the_signal_of_an_action_is_whether_its_calls_worked() -> None:
    env = ToolCallEnv([SUM], tools=[add])
    state, signals = env.reset(), []
    for calls in (
        [call("add", a=3, b=4)],
        [call("add", a=3, b=4), call("add", a="x", b=4)],
        [call("subtract", a=3, b=4)],
    ):
        state = step(env, state, *calls)
        signals.append(state["signal"].item())
    assert signals == [1, -1, -1]
    assert step(env, state, text="7")["signal"].isnan()
    env.close()
