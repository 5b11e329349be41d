"""A model by its hub id where the Hub can't be reached: told at once, unless the model is on this machine."""

import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from clawrl_trl.engines.hub_access import require_model
from clawrl_trl.errors import UserError

MODEL = "some/model"
TRAIN = Path(__file__).parents[2] / "examples" / "train.py"


@pytest.fixture
def silent_hub() -> Iterator[str]:
    """The address of a Hub that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache of a machine whose Hub refuses connections."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_serving_without_a_network_ends_with_one_line(silent_hub: str, tmp_path: Path) -> None:
    # The loaders' own tries, of a second each, would end after this test's patience.
    environment = {**os.environ, "HF_ENDPOINT": silent_hub, "HF_HOME": str(tmp_path), "HF_HUB_ETAG_TIMEOUT": "1"}
    words = ["serve", "--port", "0", "--run", str(tmp_path / "run"), "--model_name_or_path", MODEL]
    command = [sys.executable, "-m", "clawrl_trl.cli.main", *words]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 2, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert MODEL in line and silent_hub in line and "--model_name_or_path the model's folder" in line


@pytest.mark.usefixtures("closed_hub")
def test_training_without_a_network_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(TRAIN), "--output_dir", str(tmp_path), "--model_name_or_path", MODEL])
    with pytest.raises(SystemExit) as ending:
        runpy.run_path(str(TRAIN), run_name="__main__")
    (line,) = capsys.readouterr().err.splitlines()
    assert ending.value.code == 2
    assert line.startswith(f"error: The model {MODEL} is not in the cache")


def test_a_hub_that_refuses_connections_is_told(closed_hub: Path) -> None:
    with pytest.raises(UserError, match=r"some/model is not in the cache.*ConnectError"):
        require_model(MODEL)


@pytest.mark.parametrize("revision", [None, "v2"])
def test_a_model_in_the_cache_needs_no_network(closed_hub: Path, revision: str | None) -> None:
    commit = "0" * 40
    folder = closed_hub / "models--some--model"
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / (revision or "main")).write_text(commit)
    require_model(MODEL, revision)


def test_a_folder_is_no_hub_id(closed_hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(closed_hub)
    (closed_hub / MODEL).mkdir(parents=True)
    require_model(MODEL)
