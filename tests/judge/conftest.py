"""Fixtures of the judge's tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from judge_helpers import Scripted, build, serving

from clawrl_trl.judge.classifier import reader
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


@pytest.fixture
def every_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets what is loaded now read with every core, as a language model takes seconds a message with one."""
    monkeypatch.setattr(reader, "THREADS", os.cpu_count() or 1)
