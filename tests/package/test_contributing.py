"""What CONTRIBUTING.md tells a contributor to write works as a package of its own, installed beside this one."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from gateway_rig import running, wait_until
from made_up import make_samples, save_tiny_model

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.launch import free_port
from clawrl_trl.errors import UserError

pytestmark = [pytest.mark.xdist_group("contributing"), pytest.mark.slow]

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
BLOCK = re.compile(r"```(?:python|toml)\n# (\S+)\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the page's package is installed."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    for name, content in BLOCK.findall(PAGE):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(content)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True)
    return target


@pytest.fixture
def importable(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(installed))
    yield installed
    for name in [name for name in sys.modules if name.split(".")[0] == "guessing"]:
        del sys.modules[name]


def call(number: int) -> str:
    function = {"name": "guess", "arguments": json.dumps({"number": number})}
    calls = [{"id": "a", "type": "function", "function": function}]
    return json.dumps({"role": "assistant", "content": None, "tool_calls": calls})


def test_an_environment_of_another_package_is_known_by_its_name(importable: Path, tmp_path: Path) -> None:
    from clawrl_trl.envs.catalogue import get_environment, list_environments

    tasks = tmp_path / "numbers.jsonl"
    tasks.write_text("".join(json.dumps({"id": f"n{number}", "number": number}) + "\n" for number in range(1, 11)))
    assert "guess" in list_environments()
    make, count = get_environment("guess").make_factory(tasks, "train")
    env = make()
    assert count == 8 and env.max_steps == 8
    state = env.reset()
    number = int(state["task_id"].removeprefix("n"))
    state = env.step(state.set("action", call(number - 1)))["next"]
    assert json.loads(state["conversation"])[-1]["content"] == "higher"
    state = env.step(state.set("action", call(number)))["next"]
    assert state["terminated"].item() and state["outcome"].item() == 1.0


def test_commands_offer_it(installed: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "clawrl_trl.cli.main", "env-server", "--env", "nothing"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 2 and "guess" in process.stderr


async def test_a_judge_of_another_package_is_known_by_its_name(importable: Path) -> None:
    from clawrl_trl.engines.client import EngineClient
    from clawrl_trl.judge.factory import open_judge
    from clawrl_trl.judge.turn import JudgedTurn

    response = {"role": "assistant", "content": "word " * 50}
    turn = JudgedTurn("t", "s", [], None, response, [], [], [], 0)
    async with (
        EngineClient("http://127.0.0.1:9", None) as engine,
        open_judge(ServeSettings(judge="brief"), engine) as judge,
    ):
        judgement = await judge.judge(turn)
    assert (judgement.judge, judgement.score, judgement.detail) == ("brief", -1.0, {"words": 50})


def test_an_unknown_name_is_told_with_those_there_are(importable: Path) -> None:
    from clawrl_trl.envs.catalogue import get_environment

    with pytest.raises(UserError, match=r"use .*guess.*terminal"):
        get_environment("chess")
    with pytest.raises(UserError, match="use rules, llm, auto, brief or off"):
        ServeSettings(judge="polite")


def test_a_part_that_cannot_be_imported_is_told_in_one_line(importable: Path) -> None:
    from clawrl_trl.envs.catalogue import get_environment

    (importable / "guessing" / "env.py").rename(importable / "guessing" / "gone.py")
    try:
        with pytest.raises(UserError, match=r"'guess' can't be imported from guessing\.env:ENTRY"):
            get_environment("guess")
    finally:
        (importable / "guessing" / "gone.py").rename(importable / "guessing" / "env.py")


def test_a_name_of_this_package_is_not_taken_over(importable: Path) -> None:
    from clawrl_trl.envs.catalogue import BUILTIN_ENVIRONMENTS, get_environment

    assert get_environment("terminal") is BUILTIN_ENVIRONMENTS["terminal"]


def test_a_trainer_of_another_package_trains(importable: Path, tmp_path: Path) -> None:
    from clawrl_trl.trainers import AsyncGRPOConfig

    trainer_class = import_module("guessing.trainer").ShortReplyTrainer
    samples = make_samples(4)
    trainer = trainer_class(
        model=str(save_tiny_model(tmp_path / "tiny")),
        args=AsyncGRPOConfig(output_dir=str(tmp_path / "run"), use_cpu=True, disable_tqdm=True, num_train_epochs=1),
        source=samples,
    )
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    for sample, advantages in zip(samples, trainer.advantages(samples), strict=True):
        length = len(sample.completion_ids)
        np.testing.assert_allclose(advantages, np.full(length, sample.score / length**0.5))
    trainer.train()
    assert any(not torch.equal(*pair) for pair in zip(trainer.model.parameters(), before, strict=True))


def test_a_preset_of_the_page_is_read(tmp_path: Path) -> None:
    from clawrl_trl.config.presets import load_preset

    (preset,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine.yaml").write_text(preset)
    values = load_preset(str(tmp_path / "mine.yaml")).select_values("opd", with_env=True)
    assert values == load_preset("named").select_values("opd", with_env=True) | {
        "learning_rate": 1e-5,
        "opd_top_k": 64,
        "max_grad_norm": 1.0,
    }


@pytest.fixture
def engine_url(installed: Path) -> Iterator[str]:
    """The page's engine, which listens."""
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    process = subprocess.Popen([sys.executable, "-m", "guessing.engine", str(port)], env=environment)
    url = f"http://127.0.0.1:{port}"

    def is_healthy() -> bool:
        assert process.poll() is None
        try:
            return httpx.get(f"{url}/health", timeout=5, trust_env=False).is_success
        except httpx.TransportError:
            return False

    try:
        wait_until(is_healthy)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def test_the_doctor_misses_only_tokenize_in_an_engine_of_another_package(engine_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clawrl_trl.cli.main", "doctor", "--engine", engine_url, "--json"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    findings = {finding["name"]: finding for finding in json.loads(process.stdout)}
    assert [name for name, finding in findings.items() if finding["status"] == "fail"] == ["prefix, as served"]
    assert {findings[name]["status"] for name in ("answers", "token ids", "log-prob mode")} == {"ok"}


@pytest.mark.parametrize("stream", [False, True])
def test_turns_of_an_engine_of_another_package_can_be_trained_on(
    engine_url: str, tmp_path: Path, stream: bool
) -> None:
    with running(tmp_path / "run", engine_url=engine_url) as rig, rig.client() as client:
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": stream}
        reply = client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200 and "hello" in reply.text
        turn = rig.turn()
    assert turn.response["content"] == "hello"
    assert list(turn.completion_ids) == [*b"hello", 0] and list(turn.logprobs) == [0.0] * 6
    assert turn.prompt_ids is not None and turn.trainable
