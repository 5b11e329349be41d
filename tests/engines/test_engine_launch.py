"""What the supervisor is told to run."""

import subprocess
import sys
from pathlib import Path

import pytest

from clawrl_trl.engines import launch
from clawrl_trl.errors import UserError
from clawrl_trl.settings import ServeSettings


def test_the_embedded_engine_is_one_command() -> None:
    command = launch.engine_command(ServeSettings(run="runs/x"))
    assert command[1:] == ["-m", "clawrl_trl.engines.embedded", "--run", "runs/x"]


def test_vllm_is_asked_for_by_its_extra_when_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"clawrl-trl\[vllm\]"):
        launch.engine_command(ServeSettings(engine="vllm"))


def test_a_remote_engine_is_not_started() -> None:
    with pytest.raises(UserError, match="nothing to start"):
        launch.engine_command(ServeSettings(engine="http://127.0.0.1:1"))


def test_vllm_gets_what_the_loop_needs(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServeSettings(engine="vllm", model_name_or_path=str(model_folder / "base"), keep_policies=3)
    command = launch.vllm_command(settings, 4321)
    options = dict(zip(command, [*command[1:], ""], strict=True))
    assert options["--logprobs-mode"] == "processed_logprobs"
    assert options["--served-model-name"] == "base"
    assert options["--max-loras"] == "5"
    assert (options["--tool-call-parser"], options["--reasoning-parser"]) == ("hermes", "qwen3")
    assert (options["--host"], options["--port"]) == ("127.0.0.1", "4321")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    environment = launch.vllm_environment("secret")
    assert environment["VLLM_API_KEY"] == "secret"
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert "secret" not in command


def test_launching_needs_no_torch() -> None:
    code = "import sys, clawrl_trl.engines.launch; print('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
