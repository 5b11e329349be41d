"""The machine's half of the doctor, with a machine that is not fit."""

import shutil
import socket
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from doctor_rig import run_one_check

from clawrl_trl.config.api_keys import KEY_ENVIRONMENT
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.doctor import machine
from clawrl_trl.doctor.command import MACHINE_CHECKS
from clawrl_trl.doctor.finding import Finding
from clawrl_trl.doctor.memory import QWEN3
from clawrl_trl.doctor.target import Target

CHECKS = {check.name: check for check in MACHINE_CHECKS}
Usage = namedtuple("Usage", "total used free")


async def _run_machine_check(name: str, **settings: Any) -> Finding:
    (finding,) = await run_one_check(CHECKS[name], None, **settings)
    return finding


@pytest.mark.parametrize(("free", "status"), [(10 * 2**20, "fail"), (200 * 2**20, "warn"), (50 * 2**30, "ok")])
async def test_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, status: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100 * 2**30, 0, free))
    finding = await _run_machine_check("disk", run=str(tmp_path / "not" / "there" / "yet"))
    assert finding.status == status and "GiB free" in finding.detail


@pytest.mark.parametrize(("total", "free", "status"), [(1, 1, "fail"), (8, 1, "warn"), (8, 8, "ok")])
async def test_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, total: int, free: int, status: str) -> None:
    memory = SimpleNamespace(total=total * 2**30, available=free * 2**30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(machine, "_find_gpu", lambda: None)
    finding = await _run_machine_check("memory", run=str(tmp_path))
    assert finding.status == status and "training" in finding.detail


@pytest.mark.parametrize(("engine", "status"), [("vllm", "warn"), ("transformers", "ok")])
async def test_only_vllm_takes_a_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str, status: str
) -> None:
    monkeypatch.setattr(machine, "_find_gpu", lambda: (24 * 2**30, 24 * 2**30, "a card"))
    settings = ServeSettings(run=str(tmp_path), engine=engine, vllm_gpu_memory_utilization=0.95)
    assert (await machine.check_memory(Target(settings))).status == status


@pytest.mark.parametrize(
    ("flags", "status"),
    [({"vllm_args": "--quantization bitsandbytes", "vllm_gpu_memory_utilization": 0.39}, "ok"), ({}, "fail")],
)
async def test_weights_of_four_bits_take_less_of_the_card(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: dict[str, Any], status: str
) -> None:
    """As in the preset qwen3-4b-24gb, which the doctor refused."""
    monkeypatch.setattr(machine, "_find_gpu", lambda: (24 * 2**30, 24 * 2**30, "a card"))
    settings = ServeSettings(run=str(tmp_path), engine="vllm", max_model_len=32768, **flags)
    target = Target(settings)
    monkeypatch.setattr(Target, "shape", QWEN3["Qwen3-4B"])
    assert (await machine.check_memory(target)).status == status


async def test_a_busy_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        number = busy.getsockname()[1]
        finding = await _run_machine_check("port", port=number, run=str(tmp_path))
    assert finding.status == "fail" and str(number) in finding.detail and "--port" in str(finding.fix)
    assert (await _run_machine_check("port", port=number, run=str(tmp_path))).status == "ok"


async def test_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in KEY_ENVIRONMENT["chat"]:
        monkeypatch.delenv(variable, raising=False)
    assert (await _run_machine_check("keys")).status == "ok"
    opened = await _run_machine_check("keys", host="0.0.0.0")
    assert opened.status == "fail" and "CLAWRL_API_KEY" in str(opened.fix)
    clear = await _run_machine_check("keys", judge_url="http://judge.example:8000/v1")
    assert clear.status == "warn" and "unencrypted" in clear.detail
    monkeypatch.setenv("CLAWRL_API_KEY", "secret")
    assert (await _run_machine_check("keys", host="0.0.0.0")).status == "ok"


async def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await _run_machine_check("versions")).status == "ok"
    declared = ["numpy>=99", "no-such-package-of-ours>=1", "vllm>=0.31; extra == 'vllm'", "httpx>=0.1"]
    monkeypatch.setattr(machine, "requires", lambda package: declared)
    finding = await _run_machine_check("versions")
    assert finding.status == "fail"
    assert "numpy" in finding.detail and "no-such-package-of-ours is missing" in finding.detail
    assert "vllm" not in finding.detail and "httpx" not in finding.detail
