"""The session on a GPU: a part that fails or is late costs its own lines only, and nothing of it stays alive."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_session

    return gpu_session


def make_part(session, name: str, code: str, seconds: float = 60.0):
    return session.Part(name, [sys.executable, "-c", code], seconds)


@pytest.mark.slow
def test_each_part_ends_for_itself(session) -> None:
    parts = [
        make_part(session, "good", "print('some log'); print('{\"tokens/s\": 12.5}')"),
        make_part(session, "bad", "raise SystemExit('no such card')"),
        make_part(session, "odd", "print('not JSON')"),
        make_part(session, "late", "import signal; print('{\"first\": 1}', flush=True); signal.pause()", seconds=10.0),
        make_part(session, "last", "print('{\"learned\": true}')"),
    ]
    rows = dict(session.run_parts(parts, 120.0))
    assert rows["good"]["tokens/s"] == 12.5 and "outcome" not in rows["good"]
    assert rows["bad"]["outcome"] == "failed with status 1: no such card"
    assert rows["odd"]["outcome"] == "failed: its last line is no JSON"
    assert rows["late"]["outcome"] == "not measured: took more than 10 s" and rows["late"]["first"] == 1
    assert rows["last"]["learned"] is True


def test_a_late_part_leaves_no_process(session, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import subprocess, sys, pathlib, signal\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], process_group=0)\n"
        "print(child.pid, file=sys.stderr, flush=True)\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "signal.pause()"
    )
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    monkeypatch.setattr(session, "GRACE", 0.2)
    row = session.run_part(make_part(session, "late", code), 3.0)
    assert "took more than" in row["outcome"]
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def test_no_part_begins_when_the_time_is_over(session) -> None:
    rows = dict(session.run_parts([make_part(session, "first", "print('{}')")], 0.0))
    assert rows["first"]["outcome"] == "not measured: no time was left"


def test_the_page_says_what_was_not_measured(session) -> None:
    failed = {"outcome": "failed with status 1: no | vLLM", "seconds": 3.0}
    columns = {"cpu": {"step": {"tokens/s": 1234.5}, "engine": failed}, "gpu": None}
    page = session.make_page(columns)
    assert "| step | tokens/s | 1,234 | not measured |" in page
    assert "| engine | outcome | failed with status 1: no / vLLM | not measured |" in page
    columns["gpu"] = {"step": {"outcome": "not measured: took more than 9 s", "seconds": 9.0}}
    assert "| step | tokens/s | 1,234 | not measured: took more than 9 s |" in session.make_page(columns)


def test_every_part_of_the_session_is_a_command_that_exists(session, tmp_path: Path) -> None:
    for part in session.list_parts(tmp_path / "model", tmp_path / "out"):
        assert Path(part.command[1]).exists() and part.seconds > 0


def test_the_versions_are_those_installed(session) -> None:
    import torch

    figures = json.loads(json.dumps(session.tell_versions()))
    assert figures["torch"] == torch.__version__ and figures["clawrl-trl"] != "not installed"


def test_a_card_that_torch_can_not_use_gets_no_column(session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of the processor would stand in it."""
    assert session.find_column() == "cpu"
    monkeypatch.setattr(session, "tell_versions", lambda: {"card, memory, driver": "NVIDIA X, 24 GiB, 400.1"})
    with pytest.raises(SystemExit, match="can't use NVIDIA X"):
        session.find_column()


NO_MEMORY_TOLD = "17, [N/A]\n18, [Insufficient Permissions]\n"


@pytest.mark.parametrize(("printed", "told"), [("17, 1024\n18, 512\n99, 4\n", 1.5), (NO_MEMORY_TOLD, 0), ("error", 0)])
def test_memory_of_a_card_is_that_of_the_card(monkeypatch: pytest.MonkeyPatch, printed: str, told: float) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_colocate

    done = subprocess.CompletedProcess([], 0, printed)
    monkeypatch.setattr(gpu_colocate.subprocess, "run", lambda *_, **__: done)
    peak = gpu_colocate.Peak(True, engine=os.getpid())
    assert peak._measure_card({17, 18}) == told * 2**30
    assert peak._measure(os.getpid()) == 0, "not what is resident"
    peak.start()
    assert peak.stop() == {"engine": "not measured"}


def test_tokens_that_arrive_together_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from swap_under_load import Load, Reply, Stretch

    load = Load("http://127.0.0.1:1/v1", 1, 8)
    load.stretches.append(Stretch("alone", 0.0, 10.0))
    load.replies = [Reply(0.0, arrivals=[1.0, 2.0, 11.0], tokens=12), Reply(0.0, arrivals=[3.0, 4.0]), Reply(0.0)]
    assert load.rate("alone") == (8 + 2) / 10


@pytest.mark.slow
def test_a_pass_that_drops_a_sample_is_no_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from trainer import ByOurs, Workload, save_model

    save_model(tmp_path)
    method = ByOurs(tmp_path, Workload(0.02).make("ragged", 2))
    method.run()

    def no_memory(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(method._trainer, "compute_loss", no_memory)
    with pytest.raises(torch.OutOfMemoryError, match="dropped"):
        method.run()


def test_the_operations_of_a_pass_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a count by hand for a model of one layer and one matrix."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from device_step import count_operations

    from clawrl_trl.doctor.shape import Shape

    shape = Shape(linear=8, other=0, adapter_width=0, layers=1, hidden=2, kept={}, passing={}, vocab=5, kv_width=2)
    # Linear: 4 products a weight and token; head: 4 for 2 x 5 weights and each token of the reply; attention: scores
    # and their sum over half of 6 x 6 pairs with 2 numbers each, forward once and backward twice, two operations each.
    assert count_operations(shape, attention=2, tokens=6, reply=3) == 4 * 8 * 6 + 4 * 10 * 3 + 2 * 2 * 3 * 2 * 18
