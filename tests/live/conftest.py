from collections.abc import Iterator
from pathlib import Path

import pytest
from live_run import LiveRun


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    """One served run with the bundled model, shared by a module's tests."""
    run = LiveRun(tmp_path_factory.mktemp("live"), "--port", "0").start()
    yield run
    assert run.stop() == 0
    assert "Stopping: waiting for replies under way" in (run.folder.logs / "serve.log").read_text()


@pytest.fixture
def free_folder(tmp_path: Path) -> Path:
    return tmp_path / "run"
