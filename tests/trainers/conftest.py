"""What the trainers' tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from made_up import save_tiny_model

from clawrl_trl.ledger import Ledger

torch.set_num_threads(1)
settings.register_profile("shared cores", deadline=None)
settings.load_profile("shared cores")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(tmp_path / "ledger.db")
    yield opened
    opened.close()
