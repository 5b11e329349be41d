"""Fixtures of the gateway's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_rig import Rig, running


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(tmp_path / "run") as rig:
        yield rig
