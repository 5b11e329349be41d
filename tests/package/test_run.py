"""The run folder: who announced itself, and who is gone."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from clawrl_trl.run import RunFolder


def test_what_a_living_process_announced_is_found(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.read_announced("gateway") is None
    run.announce("gateway", "http://127.0.0.1:1", key="k")
    announced = run.read_announced("gateway")
    assert announced is not None and (announced["base_url"], announced["key"]) == ("http://127.0.0.1:1", "k")
    assert (tmp_path / "gateway.json").stat().st_mode & 0o077 == 0


def test_a_process_that_is_gone_announces_nothing(tmp_path: Path) -> None:
    code = (
        f"from clawrl_trl.run import RunFolder; RunFolder({str(tmp_path)!r}).announce('engine', 'http://127.0.0.1:1')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert (tmp_path / "engine.json").exists() and RunFolder(tmp_path).read_announced("engine") is None


def test_another_process_with_its_id_is_not_taken_for_it(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.announce("gateway", "http://127.0.0.1:1")
    path = tmp_path / "gateway.json"
    content = json.loads(path.read_text())
    boot, ticks = content["mark"].split()
    path.write_text(json.dumps(content | {"mark": f"{boot} {int(ticks) - 1}"}))
    assert run.read_announced("gateway") is None


def test_a_clock_that_is_set_ends_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(tmp_path)
    run.announce("engine", "http://127.0.0.1:1")
    since = psutil.Process().create_time()
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: since + 3600)
    assert run.read_announced("engine") is not None


def test_the_name_of_a_process_does_not_hide_its_start(tmp_path: Path) -> None:
    run, name = RunFolder(tmp_path), Path("/proc/self/comm")
    run.announce("engine", "http://127.0.0.1:1")
    before = name.read_text()
    name.write_text("a) b (c 1 2")
    try:
        assert run.read_announced("engine") is not None
    finally:
        name.write_text(before)


@pytest.mark.parametrize(("error", "is_found"), [(0.0, True), (3600.0, False)])
def test_an_announcement_of_an_earlier_release_is_understood(tmp_path: Path, error: float, is_found: bool) -> None:
    run, process = RunFolder(tmp_path), psutil.Process()
    content = {"base_url": "http://127.0.0.1:1", "pid": process.pid, "started": process.create_time() - error}
    (tmp_path / "engine.json").write_text(json.dumps(content))
    assert (run.read_announced("engine") is not None) == is_found
