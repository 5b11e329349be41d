"""Environment variables that a parsed command sets are not left to the next test."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml


@pytest.fixture(autouse=True)
def _restore_environment() -> Iterator[None]:
    with patch.dict(os.environ):
        yield


@pytest.fixture
def launch_processes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Make this process one of as many as a configuration has devices that train."""

    def launch(path: Path) -> None:
        monkeypatch.setenv("WORLD_SIZE", str(yaml.safe_load(path.read_text()).get("actor_gpus", 1)))

    return launch
