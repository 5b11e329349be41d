"""`examples/train.py` as a user runs it: Ctrl-C in a terminal, mistakes, a whole lesson."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from live_run import LiveRun, wait_for

from clawrl_trl.run import RunFolder

pytestmark = [pytest.mark.xdist_group("live"), pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parents[2] / "examples" / "train.py"
ACCELERATE = Path(sys.executable).parent / "accelerate"


def _train(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *flags], capture_output=True, text=True, timeout=600, check=False
    )


def test_ctrl_c_in_a_terminal_ends_everything_with_success(free_folder: Path) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [str(ACCELERATE), "launch", str(SCRIPT), "--output_dir", str(free_folder), "--port", "0"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        preexec_fn=lambda: (os.setsid(), os.login_tty(follower) if hasattr(os, "login_tty") else None),
    )
    os.close(follower)
    seen = b""

    def says(text: bytes) -> bool:
        nonlocal seen
        while text not in seen:
            seen += os.read(leader, 4096)
        return True

    assert says(b"Ctrl-C stops")
    assert b"openclaw.json" in seen and b"OpenAI(base_url=" in seen
    os.write(leader, b"\x03")
    try:
        while chunk := os.read(leader, 4096):
            seen += chunk
    except OSError:
        pass
    assert process.wait(90) == 0, seen[-2000:].decode()
    assert b"Traceback" not in seen
    assert all(RunFolder(free_folder).announced(name) is None for name in ("gateway", "engine", "judge", "trainer"))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--persona", "pirate"], "pirate"),
        (["--method", "ppo"], "ppo"),
        (["--custom_loss_function_path", "nowhere.py:loss"], "no file"),
        (["--model_name_or_path", "/no/such/model"], "/no/such/model"),
        (["--engine", "sglang"], "sglang"),
        (["--config", "/no/such.yaml"], "/no/such.yaml"),
        (["--host", "0.0.0.0"], "CLAWRL_API_KEY"),
    ],
)
def test_a_mistake_costs_one_line(free_folder: Path, flags: list[str], says: str) -> None:
    done = _train("--output_dir", str(free_folder), "--port", "0", *flags)
    assert done.returncode == 2, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert says in line


def test_a_port_in_use_is_named(free_folder: Path, live: LiveRun) -> None:
    port = live.base_url.split(":")[-1].split("/")[0]
    done = _train("--output_dir", str(free_folder), "--port", port)
    assert done.returncode == 2, done.stderr[-2000:]
    assert port in done.stderr and "Traceback" not in done.stderr


def test_a_second_trainer_is_refused(free_folder: Path) -> None:
    first = subprocess.Popen(
        [sys.executable, str(SCRIPT), "--output_dir", str(free_folder), "--port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: RunFolder(free_folder).announced("trainer"), 120, "the first trainer")
        done = _train("--output_dir", str(free_folder), "--port", "0")
        assert done.returncode == 2 and "trained already" in done.stderr
    finally:
        first.terminate()
        assert first.wait(90) == 0


def test_a_lesson_with_own_callables_is_measured(free_folder: Path) -> None:
    custom = SCRIPT.parent / "custom"
    done = _train(
        "--output_dir", str(free_folder), "--port", "0", "--persona", "student", "--interactions", "4",
        "--eval_problems", "6", "--think_time", "0", "--method", "binary", "--batch_timeout", "1",
        "--custom_rm_path", f"{custom / 'reward.py'}:short_replies",
        "--custom_loss_function_path", f"{custom / 'loss.py'}:brevity",
        "--rollout_function_path", f"{custom / 'rollout.py'}:one_verdict",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    metrics = json.loads((free_folder / "metrics.json").read_text())
    wanted = {
        "method", "persona", "seed", "interactions", "interactions_to_hold", "score_before", "score_after",
        "correct_before", "correct_after", "policy_versions", "requests", "failed_requests", "samples_trained",
        "wall_s",
    }  # fmt: skip
    assert wanted <= set(metrics)
    assert metrics["interactions"] == 4 and metrics["failed_requests"] == 0
    assert metrics["samples_trained"] > 0 and metrics["policy_versions"] > 0
    assert (free_folder / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert (free_folder / "adapter_config.json").exists()
