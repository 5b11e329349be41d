"""Importing a file: how its conversations stand in the ledger, and what is held meanwhile."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.cli import importing
from clawrl_trl.gateway.sessions.identity import named_session
from clawrl_trl.ledger import Ledger, turns
from clawrl_trl.run import RunFolder


class ScriptedEngine:
    """An engine whose tokens are characters; notes how many readers are open when it is asked."""

    def __init__(self) -> None:
        self.readers = 0
        self.readers_seen: set[int] = set()

    def models(self) -> list[str]:
        return ["m"]

    def tokenize(self, body: dict[str, Any]) -> list[int]:
        self.readers_seen.add(self.readers)
        return list("".join(f"{each['role']}:{each['content']};" for each in body["messages"]).encode())

    def prompt_logprobs(self, *, scored: list[int], **_: Any) -> Any:
        self.readers_seen.add(self.readers)
        return SimpleNamespace(logprobs=[-1.0] * len(scored))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    scripted, reader = ScriptedEngine(), Ledger.reader

    @contextmanager
    def opened(*_: object) -> Iterator[ScriptedEngine]:
        yield scripted

    @contextmanager
    def counted(ledger: Ledger) -> Iterator[Transaction]:
        scripted.readers += 1
        with reader(ledger) as tx:
            yield tx
        scripted.readers -= 1

    monkeypatch.setattr(importing, "_open_engine", opened)
    monkeypatch.setattr(Ledger, "reader", counted)
    return scripted


def write_file(folder: Path) -> Path:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Hi."}]
    file = folder / "chats.jsonl"
    file.write_text(json.dumps({"session_id": "garden", "messages": messages}) + "\n")
    return file


def test_no_transaction_is_open_while_the_engine_scores(tmp_path: Path, engine: ScriptedEngine) -> None:
    assert importing.import_file(write_file(tmp_path), str(tmp_path / "run"))["turns"] == 1
    assert engine.readers_seen == {0}


@pytest.mark.usefixtures("engine")
def test_an_imported_session_has_the_id_under_which_the_gateway_looks_for_it(tmp_path: Path) -> None:
    importing.import_file(write_file(tmp_path), str(tmp_path / "run"))
    ledger = Ledger.open(RunFolder(tmp_path / "run").ledger)
    with ledger.reader() as tx:
        session = turns.find_session(tx, "garden")
    ledger.close()
    assert session is not None and session.id == named_session("local", "garden")
