"""`examples/train.py` as a user runs it: Ctrl-C in a terminal, mistakes, a whole lesson."""

import io
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from clawrl_trl.errors import run_main
from clawrl_trl.run import RunFolder

pytestmark = [pytest.mark.xdist_group("live"), pytest.mark.timeout(600), pytest.mark.slow]

SCRIPT = Path(__file__).parents[2] / "examples" / "train.py"
ACCELERATE = Path(sys.executable).parent / "accelerate"


def _train(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *flags], capture_output=True, text=True, timeout=600, check=False
    )


def test_a_run_in_a_terminal(free_folder: Path, tmp_path: Path) -> None:
    """Nobody else trains it or takes its port, and Ctrl-C ends all of it with success."""
    command = ["launch", str(SCRIPT), "--output_dir", str(free_folder), "--port", "0"]
    terminal = pexpect.spawn(str(ACCELERATE), command, timeout=120, encoding="utf-8", logfile=io.StringIO())
    terminal.expect_exact("OpenAI(base_url=")
    terminal.expect_exact("openclaw.json")
    terminal.expect_exact("Ctrl-C stops")
    assert RunFolder(free_folder).read_announced("trainer")
    second = _train("--output_dir", str(free_folder), "--port", "0")
    assert second.returncode == 2 and "trained already" in second.stderr
    gateway = RunFolder(free_folder).read_announced("gateway")
    assert gateway is not None
    port = gateway["base_url"].split(":")[-1].split("/")[0]
    other = _train("--output_dir", str(tmp_path / "other"), "--port", port)
    assert other.returncode == 2, other.stderr[-2000:]
    assert port in other.stderr and "Traceback" not in other.stderr
    terminal.sendcontrol("c")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0, terminal.logfile.getvalue()[-2000:]
    assert "Traceback" not in terminal.logfile.getvalue()
    assert all(
        RunFolder(free_folder).read_announced(name) is None for name in ("gateway", "engine", "judge", "trainer")
    )


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--persona", "pirate"], "pirate"),
        (["--env", "chat", "--tasks", "nobody.yaml"], "nobody.yaml"),
        (["--method", "ppo"], "ppo"),
        (["--custom_loss_function_path", "nowhere.py:loss"], "no file"),
        (["--engine", "sglang"], "sglang"),
        (["--config", "/no/such.yaml"], "/no/such.yaml"),
    ],
)
def test_a_mistake_costs_one_line(
    flags: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *flags])
    assert run_main(runpy.run_path(str(SCRIPT))["main"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and says in line


@pytest.mark.parametrize(
    ("flags", "says"),
    [(["--model_name_or_path", "/no/such/model"], "/no/such/model"), (["--host", "0.0.0.0"], "CLAWRL_API_KEY")],
)
def test_a_mistake_that_stops_serving_costs_one_line(free_folder: Path, flags: list[str], says: str) -> None:
    done = _train("--output_dir", str(free_folder), "--port", "0", *flags)
    assert done.returncode == 2, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert says in line


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
    names = {
        "method", "persona", "seed", "interactions", "interactions_to_hold", "score_before", "score_after",
        "correct_before", "correct_after", "policy_versions", "requests", "failed_requests", "samples_trained",
        "wall_s",
    }  # fmt: skip
    assert names <= set(metrics)
    assert metrics["interactions"] == 4 and metrics["failed_requests"] == 0
    assert metrics["episodes"] == 4 and metrics["dropped_episodes"] == 0 and metrics["wall_s"] > 0
    assert (metrics["success_before"], metrics["success_after"]) == (metrics["score_before"], metrics["score_after"])
    assert metrics["samples_trained"] > 0 and metrics["policy_versions"] > 0
    assert (free_folder / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert (free_folder / "adapter_config.json").exists()


def test_two_processes_teach_one_lesson(free_folder: Path) -> None:
    # accelerate starts several processes where it is told of several GPUs, whether there are any or not.
    command = [
        str(ACCELERATE),
        "launch",
        "--multi_gpu",
        "--num_processes",
        "2",
        "--main_process_port",
        "0",
        str(SCRIPT),
    ]
    flags = ["--persona", "student", "--interactions", "4", "--eval_problems", "6", "--think_time", "0"]
    own = ["--output_dir", str(free_folder), "--port", "0", "--method", "binary", "--batch_timeout", "1"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *flags, *own], env=environment, capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    metrics = json.loads((free_folder / "metrics.json").read_text())
    assert metrics["interactions"] == 4 and metrics["failed_requests"] == 0
    assert metrics["samples_trained"] > 0 and metrics["policy_versions"] > 0
    assert (free_folder / "adapter_config.json").exists()
    # Each process has random states of its own, so two took part. A slow lesson makes several versions, which don't
    # all keep theirs.
    newest = free_folder / "policies" / f"policy-v{metrics['policy_version']}"
    assert len(list(newest.glob("training_state/rng_state_*.pth"))) == 2
    assert done.stdout.count("Policy version ") == 1
