"""The pages' Python examples, as they stand, against the bundled model: they run, and give what the page says."""

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from live_run import LiveRun, wait_for

from clawrl_trl.ledger import Ledger, turns

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("live"), pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
QUESTION = "Finn has 10 boxes with 5 pens in each box. How many pens does Finn have?"
PRINTED_HOST = "http://127.0.0.1:30000"


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


def test_the_clients_on_the_gateway_page_are_answered_rightly(
    live: LiveRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sampled at the bundled model's own temperature; the question is one that it solved 10 times of 10."""
    example("gateway.md", 0, {PRINTED_HOST: live.base_url.removesuffix("/v1")})
    assert len(re.findall(r"\b28\b", capsys.readouterr().out)) >= 3


def test_the_feedback_on_the_gateway_page_is_taken(live: LiveRun) -> None:
    with live.client() as client:
        reply = client.chat.completions.create(model="clawrl", messages=[{"role": "user", "content": QUESTION}])
    commands = re.findall(r"^curl .*$", (ROOT / "docs" / "gateway.md").read_text(), re.MULTILINE)
    assert len(commands) == 3
    host = live.base_url.removesuffix("/v1").removeprefix("http://")
    for command in commands:
        command = command.replace("localhost:30000", host).replace("<completion id>", reply.id)
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        assert json.loads(done.stdout)["object"] == "feedback", done.stdout


def test_the_ledger_on_its_page(live: LiveRun, capsys: pytest.CaptureFixture[str]) -> None:
    with live.client(default_headers={"X-Session-Id": "ledger-page"}) as client:
        client.chat.completions.create(model="clawrl", messages=[{"role": "user", "content": QUESTION}])
    example("ledger.md", 0, {"runs/live/ledger.db": str(live.folder.ledger)})
    out = capsys.readouterr().out
    assert "ledger-page 1" in out and "'ready'" in out


def test_training_without_a_gateway_on_the_training_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    example("training.md", 0)
    assert capsys.readouterr().out.splitlines()[-1] == "1"


def test_the_advantages_on_the_training_page(capsys: pytest.CaptureFixture[str]) -> None:
    names = example("training.md", 1)
    assert names["advantages"] == pytest.approx([0.7071, -0.7071, float("nan"), 1.0], abs=1e-3, nan_ok=True)
    assert names["gap"] == pytest.approx([1.0, -1.2])
    printed = capsys.readouterr().out.splitlines()[-1]
    assert [float(word) for word in printed.strip("[]").split()] == pytest.approx([1.207, 0.107], abs=1e-3)


def test_a_policy_version_is_loaded_as_the_policies_page_says(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from clawrl_trl.tiny import MODEL_PATH

    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(MODEL_PATH), LoraConfig(target_modules="all-linear"))
    adapted.save_pretrained(tmp_path / "policies" / "policy-v1")
    names = example("policies.md", 0, {"runs/live": str(tmp_path)})
    assert names["model"].active_adapters() == ["default"]


def test_the_bundled_model_on_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    example("bundled_model.md", 0)
    assert re.search(r"\b50\b", capsys.readouterr().out)


def test_the_reward_on_the_judge_page() -> None:
    reward = example("judge.md", 0)["short_replies"]
    scores = [reward(SimpleNamespace(reply=reply)) for reply in ("", "word", "word " * 41)]
    assert scores == [None, 1.0, -1.0]


def test_the_groups_on_the_environments_page(live: LiveRun, capsys: pytest.CaptureFixture[str]) -> None:
    riddle = example("environments.md", 0)
    classes = {name: riddle[name] for name in ("Riddle", "RiddleEnv")}
    example("environments.md", 1, {PRINTED_HOST: live.base_url.removesuffix("/v1")}, **classes)
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


@pytest.mark.browser
def test_the_screen_on_its_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    names = example("gui.md", 0)
    assert not names["state"]["dropped"] and names["state"]["message"] in capsys.readouterr().out
