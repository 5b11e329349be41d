"""CUDA is asked for nothing before a training process was left its own devices."""

import subprocess
import sys

import pytest
import torch

from clawrl_trl.engines.devices import place_weights

SCRIPT = """
import os, torch, torch._inductor.utils  # which ask for more of CUDA than is answered here
asked = []
def note(name, value):
    def function(*arguments, **options):
        asked.append((name, os.environ.get("CUDA_VISIBLE_DEVICES")))
        return value
    return function
answers = {"is_available": True, "is_bf16_supported": True, "set_device": None, "device_count": 1}
answers |= {"get_device_capability": (9, 0), "current_device": 0, "_is_compiled": True}
for name, value in answers.items():
    setattr(torch.cuda, name, note(name, value))
torch._C._cuda_getDeviceCount = note("driver", 1)
from clawrl_trl.script import parse
parse(["--model_name_or_path", "Qwen/Qwen3-4B", "--engine", "vllm"])
early = [name for name, visible in asked if visible != "3"]
assert not early, early
assert asked
"""


@pytest.mark.slow
def test_devices_are_narrowed_before_cuda_is_used() -> None:
    environment = {"ACTOR_GPUS": "1", "ROLLOUT_GPUS": "1", "CUDA_VISIBLE_DEVICES": "3,5", "PATH": ""}
    result = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.parametrize(
    ("gpus", "processes", "placed"),
    [(1, None, True), (1, "1", True), (1, "2", False), (2, None, False), (0, None, False)],
    ids=["one", "one process of a launcher", "several processes", "several GPUs", "none"],
)
def test_a_model_on_one_gpu_is_there_as_a_whole(
    gpus: int, processes: str | None, placed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    environment = {} if processes is None else {"WORLD_SIZE": processes}
    assert place_weights(environment) == ({"device_map": {"": 0}} if placed else {})
