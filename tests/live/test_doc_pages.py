"""The pages' Python examples, as they stand, against the bundled model: they run, and give what the page says."""

import re
from pathlib import Path
from typing import Any

import pytest
from live_run import LiveRun, wait_for

from clawrl_trl.ledger import Ledger, turns

pytestmark = [pytest.mark.xdist_group("live"), pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
QUESTION = "Finn has 10 boxes with 5 pens in each box. How many pens does Finn have?"


def example(page: str, number: int, replaced: dict[str, str] | None = None, **names: Any) -> dict[str, Any]:
    """Run an example of a page; returns its names."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)[number]
    for printed, real in (replaced or {}).items():
        assert printed in code
        code = code.replace(printed, real)
    names["__name__"] = "page"
    exec(compile(code, page, "exec"), names)
    return names


def test_the_chat_environment_on_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    names = example("chat.md", 0)
    assert names["rollout"]["next", "reward"].numel() and "tensor" in capsys.readouterr().out


def test_a_ledger_is_read_as_the_chat_page_says(live: LiveRun) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    with live.client(default_headers={"X-Session-Id": "page"}) as client:
        reply = client.chat.completions.create(model="clawrl", messages=messages)
        assert "50" in str(reply.choices[0].message.content)
        messages.append({"role": "assistant", "content": reply.choices[0].message.content})
        messages.append({"role": "user", "content": "Perfect, thank you!"})
        client.chat.completions.create(model="clawrl", messages=messages)
    ledger = Ledger.open(live.folder.ledger)

    def judged() -> bool:
        with ledger.reader() as tx:
            return turns.counts(tx)["judged"] > 0

    wait_for(judged, 60, "the verdict")
    ledger.close()
    names = example("chat.md", 1, {"runs/live": str(live.folder.path)})
    assert (names["scores"] == 1).any() and names["ids"].shape[0] == 32


def test_the_groups_on_the_environments_page(live: LiveRun, capsys: pytest.CaptureFixture[str]) -> None:
    riddle = example("environments.md", 0)
    classes = {name: riddle[name] for name in ("Riddle", "RiddleEnv")}
    example("environments.md", 1, {"http://127.0.0.1:30000": live.base_url.removesuffix("/v1")}, **classes)
    outcomes = re.findall(r"\[(.*?)\]", capsys.readouterr().out)[0].split(", ")
    assert len(outcomes) == 8 and {float(outcome) for outcome in outcomes} <= {1.0, -1.0}


@pytest.mark.sandbox
def test_the_sandbox_on_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    example("sandbox.md", 0)
    assert capsys.readouterr().out == "0 2\n\n"


@pytest.mark.sandbox
def test_the_terminal_on_its_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    names = example("terminal.md", 0)
    assert not names["state"]["dropped"] and names["state"]["message"] in capsys.readouterr().out
    names["env"].close()
