"""What `clawrl forget` erases is gone from the disk, or the user is told that it is not yet."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from clawrl_trl.cli.main import _command
from clawrl_trl.ledger import Ledger, store, turns
from clawrl_trl.ledger.schema import Turn
from clawrl_trl.run import RunFolder

SECRET = "the-user-called-it-this"
"""A session's name; a turn's text is compressed."""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """The open ledger of a run with one session."""
    opened = Ledger.open(RunFolder(tmp_path).ledger)
    with opened.transaction() as tx:
        home = turns.get_or_create_session(tx, owner="local", external_id=SECRET, identity_source="header", now=1.0)
        turns.add(tx, Turn(session_id=home.id, completion_id="one", messages=[], response={"role": "assistant"}))
    yield opened
    opened.close()


def on_disk(run: Path) -> bool:
    return any(SECRET.encode() in file.read_bytes() for file in run.glob("ledger.db*"))


def test_a_forgotten_session_leaves_nothing_in_an_open_ledger(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert on_disk(tmp_path)
    assert _command(["forget", SECRET, "--run", str(tmp_path), "--json"]) == 0
    assert not on_disk(tmp_path)
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"forgotten": SECRET, "turns": 1, "gone_from_disk": True}
    assert printed.err == ""


def test_the_user_is_told_what_another_process_keeps_on_the_disk(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CHECKPOINT_WAIT_S", 0.0)
    with ledger.reader() as tx:
        assert turns.find_session(tx, SECRET) is not None
        assert _command(["forget", SECRET, "--run", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "gone_from_disk: False" in printed.out
    assert f"{ledger.where}-wal" in printed.err
    assert on_disk(tmp_path)
    assert ledger.checkpoint() and not on_disk(tmp_path)
