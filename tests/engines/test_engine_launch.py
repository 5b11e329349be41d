"""What the supervisor is told to run, and what it is told about it."""

import subprocess
import sys
from pathlib import Path

import pytest

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.config.serving_arguments import ENVIRONMENT
from clawrl_trl.engines import launch
from clawrl_trl.engines.devices import (
    ALL,
    ALLOCATOR,
    SEGMENTS,
    VISIBLE,
    Devices,
    assign_devices,
    narrow_trainer,
    set_allocator,
)
from clawrl_trl.engines.vllm import server as vllm
from clawrl_trl.engines.vllm.server_log import ServerLog
from clawrl_trl.errors import UserError


@pytest.fixture(autouse=True)
def _no_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("actor_gpus", "rollout_gpus", "prm_gpus"):
        for variable in ENVIRONMENT[name]:
            monkeypatch.delenv(variable, raising=False)


def options(command: list[str]) -> dict[str, str]:
    return dict(zip(command, [*command[1:], ""], strict=True))


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


def test_vllm_gets_what_the_loop_needs(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServeSettings(run=str(tmp_path), engine="vllm", keep_policies=3, max_staleness=6)
    server = vllm.Server.of_run(settings, str(model_folder / "base"))
    command = server.command(4321)
    given = options(command)
    assert given["--logprobs-mode"] == "processed_logprobs"
    assert given["--served-model-name"] == "base"
    assert given["--max-loras"] == "8"
    assert given["--scheduling-policy"] == "priority", "chats come before scoring calls"
    assert (given["--tool-call-parser"], given["--reasoning-parser"]) == ("hermes", "qwen3")
    assert (given["--host"], given["--port"]) == ("127.0.0.1", "4321")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    environment = server.environment("secret")
    assert environment["VLLM_API_KEY"] == "secret"
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert environment["VLLM_LOGGING_LEVEL"] == "INFO", "TRL asks for silence; a person who waits wants to know"
    assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert "secret" not in command


@pytest.mark.parametrize(
    ("asked", "found", "room"),
    [(None, [], 32), (None, [4], 8), (16, [], 16), (16, [20], 32), (0, [], 0), (0, [8], 8), (6, [], 8)],
)
def test_room_for_adapters_follows_the_trainer_and_the_run(
    tmp_path: Path, asked: int | None, found: list[int], room: int
) -> None:
    for rank in found:
        folder = tmp_path / "policies" / f"policy-v{rank}"
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text(f'{{"r": {rank}, "rank_pattern": {{"q_proj": 2}}}}')
    settings = ServeSettings(run=str(tmp_path), engine="vllm", vllm_max_lora_rank=asked)
    assert vllm.adapter_rank(settings) == room
    command = vllm.Server(settings, str(tmp_path)).command(1)
    assert ("--enable-lora" in command) == bool(room)


@pytest.mark.parametrize(
    ("counts", "visible", "expected"),
    [
        ((0, 0, 0), "0,1", Devices()),
        ((4, 2, 2), None, Devices("0,1,2,3", "4,5", "6,7")),
        ((1, 1, 0), "5,7", Devices("5", "7", None)),
        ((2, 0, 1), "0,1,2", Devices("0,1", "0,1", "2")),
    ],
)
def test_devices_are_dealt_in_order(counts: tuple[int, int, int], visible: str | None, expected: Devices) -> None:
    actor, rollout, prm = counts
    settings = ServeSettings(actor_gpus=actor, rollout_gpus=rollout, prm_gpus=prm)
    environment = {"WORLD_SIZE": str(actor or 1)} | ({VISIBLE: visible} if visible else {})
    assert assign_devices(settings, environment) == expected
    narrow_trainer(settings, environment)
    assert environment.get(VISIBLE) == (expected.trainer or visible)
    assert assign_devices(settings, environment) == expected, "what the trainer starts must be dealt the same"
    assert (ALL in environment) == (expected != Devices())


@pytest.mark.parametrize(("processes", "remedy"), [(None, "not 1: .* --num_processes 2"), ("3", "not 3")])
def test_a_process_for_each_device_that_trains(processes: str | None, remedy: str) -> None:
    environment = {VISIBLE: "0,1,2"} | ({"WORLD_SIZE": processes} if processes else {})
    with pytest.raises(UserError, match=f"ACTOR_GPUS=2 needs as many processes, {remedy}"):
        narrow_trainer(ServeSettings(actor_gpus=2, rollout_gpus=1), environment)
    assert environment[VISIBLE] == "0,1,2"


def test_the_trainers_allocator_is_the_trainers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = vllm.Server.of_run(ServeSettings(run=str(tmp_path), engine="vllm"), str(tmp_path))
    environment: dict[str, str] = {}
    set_allocator(environment)
    assert environment == {ALLOCATOR: SEGMENTS}
    monkeypatch.setenv(ALLOCATOR, SEGMENTS)
    assert ALLOCATOR not in server.environment("k"), "vLLM shares memory between processes"


@pytest.mark.parametrize("name", [ALLOCATOR, "PYTORCH_ALLOC_CONF"])
def test_a_users_allocator_stays(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {name: "max_split_size_mb:64"}
    set_allocator(environment)
    assert environment == {name: "max_split_size_mb:64"}
    monkeypatch.setenv(name, "max_split_size_mb:64")
    server = vllm.Server.of_run(ServeSettings(run=str(tmp_path), engine="vllm"), str(tmp_path))
    assert server.environment("k")[name] == "max_split_size_mb:64"


def test_devices_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_GPUS", "2")
    with pytest.raises(UserError, match="ACTOR_GPUS"):
        assign_devices(ServeSettings(), {})
    with pytest.raises(UserError, match="3 devices, 2 are visible"):
        assign_devices(ServeSettings(actor_gpus=1), {VISIBLE: "0,1"})
    with pytest.raises(UserError, match="vllm_tensor_parallel_size"):
        ServeSettings(actor_gpus=1, vllm_tensor_parallel_size=4)


def test_a_gpu_server_takes_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "is_cpu_build", lambda: False)
    beside = options(vllm.Server.of_run(ServeSettings(run=str(tmp_path), engine="vllm"), str(tmp_path)).command(1))
    assert (beside["--gpu-memory-utilization"], beside["--dtype"]) == ("0.45", "auto")
    settings = ServeSettings(
        run=str(tmp_path), engine="vllm", actor_gpus=1, rollout_gpus=4, prm_gpus=2, vllm_tensor_parallel_size=2
    )
    own = vllm.Server.of_run(settings, str(tmp_path))
    given = options(own.command(1))
    assert given["--gpu-memory-utilization"] == "0.9"
    assert (given["--tensor-parallel-size"], given["--data-parallel-size"]) == ("2", "2")
    assert own.environment("k")[VISIBLE] == "1,2,3,4"
    judge = vllm.Server.of_judge(settings, str(tmp_path))
    given = options(judge.command(1))
    assert given["--tensor-parallel-size"] == "2"
    assert "--enable-lora" not in given
    assert judge.environment("k")[VISIBLE] == "5,6"


START = """\
(APIServer pid=7) INFO 11-20 15:01:13 [weight_utils.py:1086] Loading weights took 0.01 seconds
Loading safetensors checkpoint shards: 100% Completed
"""
FAILURE = """\
(EngineCore pid=9) ERROR 11-20 15:02:40 [core.py:1435] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-20 15:02:40 [core.py:1435]     raise ValueError(
(EngineCore pid=9) ERROR 11-20 15:02:40 [core.py:1435] ValueError: No available memory for the cache blocks.
(APIServer pid=7)   File "/x/utils.py", line 1, in wait
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
resource_tracker: There appear to be 1 leaked semaphore objects to clean up at shutdown
"""


def test_a_servers_log_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("ValueError: of an earlier start\n")
    log = ServerLog(path)
    assert (log.newest_activity(), log.find_cause()) == ("", "")
    with path.open("a") as file:
        file.write(START)
    assert log.newest_activity() == "Loading weights took 0.01 seconds"
    with path.open("a") as file:
        file.write(FAILURE)
    assert log.find_cause() == "ValueError: No available memory for the cache blocks."
    with path.open("a") as file:
        file.write("api_server.py: error: unrecognized arguments: --nonsense\n")
    assert log.find_cause().endswith("--nonsense")
    with path.open("a") as file:
        file.write("pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, too long\n")
    assert log.find_cause() == "Value error, too long"
    path.write_text("RuntimeError: new one\n")
    assert log.find_cause() == "RuntimeError: new one"
    assert ServerLog(tmp_path / "none").find_cause() == ""


def test_launching_needs_no_torch() -> None:
    code = "import sys, clawrl_trl.engines.launch; print('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [(None, ["none.invalid"]), ("", ["none.invalid"]), ("B.example, a.example", ["a.example", "b.example"])],
)
def test_vllm_fetches_media_from_allowed_domains_alone(
    tmp_path: Path, setting: str | None, expected: list[str]
) -> None:
    settings = ServeSettings(run=str(tmp_path), engine="vllm", allowed_media_domains=setting)
    server = vllm.Server(settings, str(tmp_path))
    command = server.command(1)
    start = command.index("--allowed-media-domains") + 1
    assert command[start : start + len(expected)] == expected and command[start + len(expected)].startswith("--")
    assert "--allowed-local-media-path" not in command and "--trust-request-chat-template" not in command
    assert server.environment("k")["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"


@pytest.mark.parametrize("setting", ["https://a.example", "a.example b.example", "*.example", "-"])
def test_what_is_no_domain_is_refused(setting: str) -> None:
    with pytest.raises(UserError, match="is no domain"):
        ServeSettings(allowed_media_domains=setting)
