"""What the first start of vLLM has taken, a restart asks for."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines import launch
from clawrl_trl.engines.vllm import cache_memory, compat
from clawrl_trl.engines.vllm import server as vllm
from clawrl_trl.engines.vllm.cache_memory import CacheMemory, ask_cache_bytes, digest_setting, make_memory_route
from clawrl_trl.run import RunFolder
from clawrl_trl.tiny import MODEL_PATH

BYTES = 9_876_543_210


@pytest.fixture(autouse=True)
def _gpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "is_cpu_build", lambda: False)
    for name in ("ACTOR_GPUS", "ROLLOUT_GPUS", "PRM_GPUS"):
        monkeypatch.delenv(name, raising=False)


def options(command: list[str]) -> dict[str, str]:
    return dict(zip(command, [*command[1:], ""], strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    ServeSettings(run=str(tmp_path), engine="vllm", model_name_or_path=str(MODEL_PATH)).save()
    return RunFolder(tmp_path)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[vllm.Server]:
    """The servers that the launcher starts; each ends when it has been made."""
    servers: list[vllm.Server] = []

    def run(server: vllm.Server, *arguments: Any) -> int:
        servers.append(server)
        return 0

    monkeypatch.setattr(launch, "_run_server", run)
    monkeypatch.setattr(launch, "_require_vllm", lambda: None)
    return servers


def test_the_first_start_takes_a_share_and_a_restart_its_bytes(folder: RunFolder, started: list[vllm.Server]) -> None:
    launch.serve(str(folder.path))
    words = options(started[0].command(1))
    assert words["--gpu-memory-utilization"] == "0.45" and "--kv-cache-memory-bytes" not in words
    CacheMemory(BYTES, fit_memory=True, setting=started[0].setting).save(folder, "engine")
    launch.serve(str(folder.path))
    words = options(started[1].command(1))
    assert words["--kv-cache-memory-bytes"] == str(BYTES)
    assert float(words["--gpu-memory-utilization"]) <= 0.01, "vLLM refuses to start with less than this share free"
    assert started[1].fit_memory, "the default context did not fit the first time either"
    assert started[1].setting == started[0].setting


@pytest.mark.parametrize(
    "change",
    [
        {"vllm_gpu_memory_utilization": 0.6},
        {"max_model_len": 8192},
        {"max_running": 3},
        {"keep_policies": 9},
        {"model_name_or_path": "org/larger"},
        {"vllm_args": "--quantization fp8"},
    ],
)
def test_other_settings_are_another_start(
    folder: RunFolder, started: list[vllm.Server], change: dict[str, Any]
) -> None:
    launch.serve(str(folder.path))
    CacheMemory(BYTES, fit_memory=False, setting=started[0].setting).save(folder, "engine")
    replace(ServeSettings.load(folder.path), **change).save()
    launch.serve(str(folder.path))
    assert started[1].cache_bytes is None


def test_what_has_nothing_to_do_with_memory_changes_nothing(folder: RunFolder, started: list[vllm.Server]) -> None:
    launch.serve(str(folder.path))
    replace(ServeSettings.load(folder.path), port=4321, temperature=0.5).save()
    policy = folder.policies / "policy-v1"
    policy.mkdir(parents=True)
    (policy / "adapter_config.json").write_text('{"r": 64}')
    launch.serve(str(folder.path))
    assert started[0].setting == started[1].setting


def test_other_cards_are_another_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_memory, "CARDS", tmp_path)
    before = digest_setting("model")
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: H200\n")
    assert digest_setting("model") != before


IDLE = "Model: \t\t H200\nIRQ:   \t\t 0\nGPU UUID: \t GPU-????\nBus Location: \t 0000:01:00.0\nGPU Firmware: N/A\n"
OPENED = "Model: \t\t H200\nIRQ:   \t\t 48\nGPU UUID: \t GPU-1f\nBus Location: \t 0000:01:00.0\nGPU Firmware: 570\n"


def test_an_opened_card_is_the_same_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_memory, "CARDS", tmp_path)
    information = tmp_path / "0000:01:00.0" / "information"
    information.parent.mkdir()
    digests = []
    for text in (IDLE, OPENED, IDLE.replace("H200", "H100"), IDLE.replace(" 0000:01", " 0000:02")):
        information.write_text(text)
        digests.append(digest_setting("model"))
    assert digests[0] == digests[1] and len(set(digests)) == 3


def test_a_card_that_can_not_be_read_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_memory, "CARDS", tmp_path)
    before = digest_setting("model")
    (tmp_path / "0000:01:00.0" / "information").mkdir(parents=True)  # reading a folder is an OSError
    assert digest_setting("model") == before


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"cache_bytes": "x", "fit_memory": false, "setting": "s"}'])
def test_a_damaged_file_is_none(folder: RunFolder, content: str) -> None:
    (folder.path / "engine_memory.json").write_text(content)
    assert CacheMemory.find(folder, "engine", "s") is None


@pytest.mark.parametrize("cache_bytes", [0, BYTES])
def test_what_a_healthy_server_says_is_written(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, cache_bytes: int
) -> None:
    monkeypatch.setattr(launch, "ask_cache_bytes", lambda base_url, key: cache_bytes)
    server = vllm.Server(ServeSettings.load(folder.path), "org/model")
    launch._remember_memory(server, folder, "engine", "http://nowhere", "k")
    path = folder.path / "engine_memory.json"
    assert path.exists() == bool(cache_bytes)
    if cache_bytes:
        assert path.stat().st_mode & 0o777 == 0o600
        assert json.loads(path.read_text())["cache_bytes"] == BYTES
        assert CacheMemory.find(folder, "engine", server.setting) is not None
        assert CacheMemory.find(folder, "judge_engine", server.setting) is None


def test_a_server_that_does_not_say_is_asked_without_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(status: int, content: Any) -> None:
        response = httpx.Response(status, json=content, request=httpx.Request("GET", "http://engine"))
        monkeypatch.setattr(httpx, "get", lambda *arguments, **keywords: response)

    answer(200, {"cache_bytes": BYTES})
    assert ask_cache_bytes("http://engine", "k") == BYTES
    for status, content in ((404, {}), (200, {}), (200, {"cache_bytes": "many"})):
        answer(status, content)
        assert ask_cache_bytes("http://engine", "k") == 0
    assert ask_cache_bytes("http://engine", "k") == 0


def test_shared_tensors_are_counted_once() -> None:
    own = torch.zeros(4, 3)
    worker = SimpleNamespace(model_runner=SimpleNamespace(kv_caches=[own, own[1:], [torch.zeros(5), own]]))
    assert compat.count_cache_bytes(worker) == 4 * (12 + 5)
    with pytest.raises(compat.VLLMVersionError, match="kv_caches"):
        compat.count_cache_bytes(SimpleNamespace(model_runner=SimpleNamespace()))


async def test_the_largest_of_the_workers_counts() -> None:
    async def call(method: str) -> list[int]:
        assert method == "count_cache_bytes"
        return [3, 5, 4]

    assert await make_memory_route(SimpleNamespace(call_workers=call))() == {"cache_bytes": 5}  # type: ignore[arg-type]
