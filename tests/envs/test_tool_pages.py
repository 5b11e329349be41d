"""The pages on tool calls and software tasks: their examples work."""

import json
import re
from pathlib import Path

import pytest

from clawrl_trl.envs import read_tool_tasks
from clawrl_trl.envs.sandbox.bubblewrap import diagnose_bubblewrap
from clawrl_trl.envs.toolcall.tasks import make_action
from clawrl_trl.envs.toolcall.tools_config import _SERVER_KEYS

ROOT = Path(__file__).parents[2]


def read_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def test_the_tool_call_example() -> None:
    exec(compile(read_blocks("toolcall.md", "python")[0], "page", "exec"), names := {})  # type: ignore[var-annotated]
    env = names["env"]
    state = env.reset()
    call = {"name": "add", "arguments": {"a": 3, "b": 4}}
    for action in (make_action([call]), make_action((), "7")):
        state = env.step(state.set("action", action))["next"]
    assert state["reward"].item() == 1.0


def test_the_formats_of_the_tool_call_page(tmp_path: Path) -> None:
    config, tasks = read_blocks("toolcall.md", "json")
    servers = json.loads(config)["mcpServers"].values()
    assert all(set(server) <= _SERVER_KEYS for server in servers)
    (tmp_path / "tasks.jsonl").write_text(re.sub(r",\n +", ", ", tasks))
    assert [task.id for task in read_tool_tasks(tmp_path / "tasks.jsonl")] == ["a", "b"]


@pytest.mark.sandbox
@pytest.mark.skipif(bool(diagnose_bubblewrap()), reason=f"needs bubblewrap: {diagnose_bubblewrap()}")
def test_the_software_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(read_blocks("swe.md", "python")[0], "page", "exec"), names := {})  # type: ignore[var-annotated]
    assert not names["env"].reset()["dropped"]
    names["env"].close()
