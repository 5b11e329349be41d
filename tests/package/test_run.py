"""The run folder: who announced itself, and who is gone."""

import json
import subprocess
import sys
from pathlib import Path

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
    path.write_text(json.dumps(content | {"started": content["started"] - 3600}))
    assert run.read_announced("gateway") is None
