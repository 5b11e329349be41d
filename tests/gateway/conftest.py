"""Fixtures of the gateway's tests: a gateway over a scripted engine, and one over the real embedded engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_fixtures import model_folder  # noqa: F401 - pytest finds it by its name
from gateway_rig import Rig, running
from real_engine import RealEngine

from clawrl_trl.tiny import MODEL_PATH


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(tmp_path / "run") as rig:
        yield rig


@pytest.fixture(scope="session")
def models(model_folder: Path) -> Path:  # noqa: F811 - the fixture of that name
    """The folder with the engine tests' small model and its policies."""
    return model_folder


@pytest.fixture(scope="session")
def real_engine(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """An engine with the engine tests' small model; whoever asks for it is of the group "real engine"."""
    with RealEngine(tmp_path_factory.mktemp("real-engine"), models / "base") as engine:
        yield engine


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """An engine with the bundled model; whoever asks for it is of the group "bundled model"."""
    with RealEngine(tmp_path_factory.mktemp("tiny-engine"), MODEL_PATH) as engine:
        yield engine


@pytest.fixture
def live(real_engine: RealEngine, models: Path, tmp_path: Path) -> Iterator[Rig]:
    """A gateway over the real engine."""
    with running(tmp_path / "run", engine_url=real_engine.url, max_model_len=512) as rig:
        yield rig
