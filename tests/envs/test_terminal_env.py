"""TerminalEnv: episodes in a real shell."""

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torchrl.envs import AsyncEnvPool
from torchrl.envs.utils import check_env_specs

from clawrl_trl.envs import TerminalEnv
from clawrl_trl.envs.sandbox.bubblewrap import diagnose_bubblewrap
from clawrl_trl.envs.sandbox.limits import Limits
from clawrl_trl.envs.sandbox.resource_limits import iterate_descendants
from clawrl_trl.envs.terminal.task_folder import TaskFolder
from clawrl_trl.errors import UserError

TROUBLE = diagnose_bubblewrap()
pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(bool(TROUBLE), reason=f"needs bubblewrap: {TROUBLE}")]
TEST = '[ "$(cat /app/a.txt)" = {} ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n'


def task(number: int, **files: str) -> TaskFolder:
    all_files = {"instruction.md": f"Write {number} to a.txt.", "tests/test.sh": TEST.format(number), **files}
    return TaskFolder(f"write-{number}", {name: text.encode() for name, text in all_files.items()})


@pytest.fixture
def env() -> Iterator[TerminalEnv]:
    env = TerminalEnv([task(7), task(8)], tool_timeout=60, limits=Limits(memory_mb=128))
    yield env
    env.close()


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def play(env: TerminalEnv, *actions: str) -> Any:
    state = env.reset()
    for action in actions:
        state = env.step(state.set("action", action))["next"]
    return state


def play_and_read(env: TerminalEnv, *actions: str) -> str:
    return play(env, *actions)["message"].removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")


def test_specs(env: TerminalEnv) -> None:
    check_env_specs(env, break_when_any_done="both", seed=0)


def test_an_episode(env: TerminalEnv) -> None:
    state = env.reset()
    assert state["message"] == "Write 7 to a.txt." and state["task_id"] == "write-7"
    names = [tool["function"]["name"] for tool in json.loads(state["tools"])]
    assert names == ["shell_exec", "shell_view", "shell_write_to_process", "write_file"]
    state = env.step(state.set("action", call("shell_exec", command="echo 7 > a.txt; pwd")))["next"]
    assert "/work" in state["message"] and state["reward"].item() == 0.0 and not state["done"]
    state = env.step(state.set("action", "Done."))["next"]
    assert state["terminated"] and state["outcome"].item() == 1.0 and state["reason"] == ""


def test_nothing_done_fails(env: TerminalEnv) -> None:
    assert play(env, "Done.")["outcome"].item() == -1.0


def test_an_episode_that_runs_out_of_steps_is_judged() -> None:
    env = TerminalEnv([task(7)], max_steps=1)
    state = play(env, call("write_file", path="a.txt", content="7"))
    assert state["truncated"] and state["outcome"].item() == 1.0
    env.close()


def test_the_outcome_is_twice_the_share_of_tests_less_one() -> None:
    tests = "".join(f"def test_{n}():\n    assert {n} < 3\n\n" for n in range(4))
    env = TerminalEnv([task(7, **{"tests/test_it.py": tests})])
    assert play(env, "Done.")["outcome"].item() == 0.5
    env.close()


def test_the_shell_is_one_and_persistent(env: TerminalEnv) -> None:
    actions = (call("shell_exec", command="mkdir d; cd d; x=7"), call("write_file", path="f", content="text"))
    assert play_and_read(env, *actions, call("shell_exec", command="cat f; echo $x; pwd")) == "text7\n/work/d"


def test_the_references_names_are_understood(env: TerminalEnv) -> None:
    write = call("shell_write_content_to_file", file_path="a.txt", content="7\n")
    show = call("shell_exec", id="main", command="cat a.txt", block=True)
    assert play_and_read(env, write, show) == "7"


def test_talking_to_a_program() -> None:
    env = TerminalEnv([task(7)], tool_timeout=1.0)
    state = play(env, call("shell_exec", command="read x; echo $x > a.txt; echo wrote; read y"))
    assert "[still running]" in state["message"]
    busy = env.step(state.set("action", call("shell_exec", command="ls")))["next"]
    assert "A command is still running" in busy["message"]
    state = env.step(busy.set("action", call("shell_write_to_process", input="7")))["next"]
    output = state["message"]
    while "wrote" not in output and not state["done"]:
        state = env.step(state.set("action", call("shell_view")))["next"]
        output += state["message"]
    state = env.step(state.set("action", "Done."))["next"]
    assert "wrote" in output and state["outcome"].item() == 1.0
    env.close()


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        (call("rm", path="/"), "Error: there is no tool 'rm'; there are shell_exec"),
        (call("shell_exec"), "Error: shell_exec needs the argument 'command'."),
        (call("shell_exec", command=3), "Error: the argument 'command' of shell_exec must be a text."),
        (call("shell_exec", command="  "), "Error: the command is empty."),
        (call("shell_exec", cmd="ls"), "Error: shell_exec has no argument 'cmd'; it has command."),
        (call("shell_write_to_process", input="x"), "Error: nothing is running"),
        (call("shell_view"), "[no output]"),
        (call("shell_exec", command="false"), "[exit code 1]"),
        (call("shell_exec", command="true"), "[no output]"),
        (call("shell_exec", command="exit 3"), "[the shell is gone: it ended with code 3"),
        (call("shell_exec", command="printf 'a\\0b\\xff'"), "ab\ufffd"),
        (call("shell_exec", command="echo 'a\0b\udcff'"), "a"),
        (call("write_file", path="", content="x"), "bash: : No such file or directory\n[exit code 1]"),
        (call("write_file", path="/etc/passwd", content="x"), "Read-only file system\n[exit code 1]"),
        (call("write_file", path="a.txt", content="7"), "Wrote 1 characters to a.txt."),
    ],
)
def test_what_the_model_is_told(env: TerminalEnv, action: str, answer: str) -> None:
    state = play(env, action)
    assert answer in state["message"] and not state["done"] and not state["dropped"]


def test_parallel_calls_are_answered_one_by_one(env: TerminalEnv) -> None:
    calls = [
        {"id": f"c{n}", "function": {"name": "shell_exec", "arguments": json.dumps({"command": f"echo {n}"})}}
        for n in range(2)
    ]
    state = play(env, json.dumps({"role": "assistant", "content": None, "tool_calls": calls}))
    assert [m["content"] for m in json.loads(state["conversation"])[-2:]] == ["0", "1"]


def test_a_broken_world_gives_no_reward() -> None:
    env = TerminalEnv([task(7, Dockerfile="FROM x\nRUN exit 3\n"), task(8)])
    state = play(env, call("shell_exec", command="ls"))
    assert state["dropped"] and math.isnan(state["reward"].item()) and "set-up" in state["reason"]
    assert not env.reset()["dropped"]
    env.close()


def test_a_shell_that_cannot_start_drops_the_episode(env: TerminalEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawrl_trl.envs.terminal.shell.START_TIMEOUT", 2.0)
    monkeypatch.setattr("clawrl_trl.envs.terminal.shell._PATH_INSIDE", "/nowhere/else")
    monkeypatch.setattr("clawrl_trl.envs.terminal.shell.CommandFolder.write_text", lambda *args: None)
    state = play(env, call("shell_exec", command="ls"))
    assert state["dropped"] and math.isnan(state["reward"].item())


def test_what_was_left_running_is_gone_before_the_tests(env: TerminalEnv) -> None:
    loop = "(while :; do echo 9 > a.txt; done) & disown; (setsid bash -c 'while :; do echo 9 > a.txt; done' &)"
    state = play(env, call("shell_exec", command=loop))
    state = env.step(state.set("action", call("shell_exec", command="kill %1; pkill setsid; exit")))["next"]
    state = env.step(state.set("action", call("shell_exec", command="echo 7 > a.txt")))["next"]
    assert env.step(state.set("action", "Done."))["next"]["outcome"].item() == 1.0


def test_episodes_leave_nothing_behind(env: TerminalEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    play(env, call("shell_exec", command="true"), "Done.")
    before = _state_of_this_process()
    for _ in range(3):
        play(env, call("shell_exec", command="sleep 1000 & echo 7 > a.txt"), "Done.")
    env.reset()
    env.close()
    assert _state_of_this_process() == before and list(tmp_path.iterdir()) == []


def test_a_pool() -> None:
    envs = 3
    pool = AsyncEnvPool(
        [lambda n=n: TerminalEnv([task(n)], tool_timeout=60) for n in range(envs)],
        backend="threading",
        stack="lazy",
        exchange="queue",
    )
    try:
        state = pool.reset()
        for actions in ([call("shell_exec", command=f"echo {n} > a.txt") for n in range(envs)], ["Done."] * envs):
            for row, action in zip(state.unbind(0), actions, strict=True):
                row.set("action", action)
            state = pool.step(state)["next"]
        assert [row["outcome"].item() for row in state.unbind(0)] == [1.0] * envs
    finally:
        pool.close()


def test_mistakes_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="There are no tasks"):
        TerminalEnv(tmp_path / "none")
    with pytest.raises(UserError, match="bubblewrap, docker, none"):
        TerminalEnv([task(7)], backend="chroot")
    monkeypatch.setattr("clawrl_trl.envs.sandbox.backends.diagnose_bubblewrap", lambda: "bwrap is not installed")
    with pytest.raises(UserError, match="--env_options"):
        TerminalEnv([task(7)])


def test_without_a_sandbox_where_the_user_insists() -> None:
    env = TerminalEnv([task(7)], backend="none", tool_timeout=60)
    assert play(env, call("shell_exec", command="echo 7 > a.txt"), "Done.")["outcome"].item() == 1.0
    env.close()


def _state_of_this_process() -> tuple[int, int, int]:
    import os

    files = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return (
        files,
        sum(1 for _ in iterate_descendants(os.getpid())),
        sum(t.name != "sandbox-monitor" for t in threading.enumerate()),
    )


def test_the_signal_of_an_action_is_its_exit_code(env: TerminalEnv) -> None:
    state = env.reset()
    assert state["signal"].isnan()
    signals = []
    for action in (
        call("shell_exec", command="true"),
        call("shell_exec", command="ls /nowhere"),
        call("write_file", path="b/c.txt", content="x"),
        call("shell_exec", command="echo 1") + call("shell_exec", command="exit 3"),
        call("shell_exec"),
        "<tool_call>{</tool_call>",
        "Done.",
    ):
        state = env.step(state.set("action", action))["next"]
        signals.append(state["signal"].item())
    assert signals[:-1] == [1, -1, 1, -1, -1, -1] and math.isnan(signals[-1])


def test_what_has_not_ended_has_no_signal() -> None:
    env = TerminalEnv([task(7)], tool_timeout=0.3)
    try:
        state = env.step(env.reset().set("action", call("shell_exec", command="cat")))["next"]
        assert "still running" in state["message"] and state["signal"].isnan()
        state = env.step(state.set("action", call("shell_exec", command="ls")))["next"]
        assert state["signal"].item() == -1
    finally:
        env.close()
