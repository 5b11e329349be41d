"""CUDA is asked for nothing before a training process was left its own devices."""

import subprocess
import sys

import pytest

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
