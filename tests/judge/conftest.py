"""Fixtures of the judge's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from judge_helpers import Scripted, build, serving

from clawrl_trl.ledger import Ledger


@pytest.fixture
def script() -> Iterator[Scripted]:
    """A server on a free port; set what it answers on the object."""
    scripted = Scripted()
    with serving(build(scripted)) as base_url:
        scripted.base_url = base_url
        yield scripted


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(tmp_path / "ledger.db")
    yield opened
    opened.close()
