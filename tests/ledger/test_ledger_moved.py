"""A ledger that is moved away while it is open: nothing is written to a file that nobody finds again."""

import asyncio
from pathlib import Path

import pytest

from clawrl_trl.ledger import Ledger, LedgerWriter, events
from clawrl_trl.ledger.errors import LedgerError, LedgerWriteError
from clawrl_trl.ledger.schema import Event


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def note(ledger: Ledger, subject: str) -> None:
    with ledger.transaction() as tx:
        events.log(tx, "noted", subject)


def noted(ledger: Ledger, subject: str) -> int:
    with ledger.reader() as tx:
        return len(events.of(tx, subject))


def test_it_refuses_while_it_is_away_and_goes_on_when_it_is_back(path: Path) -> None:
    ledger = Ledger.open(path)
    note(ledger, "before")
    away = path.rename(path.with_name("away.db"))
    with pytest.raises(LedgerWriteError, match=r"ledger\.db was moved or deleted: put it back"):
        note(ledger, "meanwhile")
    with pytest.raises(LedgerError, match="moved or deleted"):
        noted(ledger, "before")
    assert not path.exists(), "an empty ledger in its place would hide the real one"
    away.rename(path)
    note(ledger, "after")
    assert [noted(ledger, subject) for subject in ("before", "meanwhile", "after")] == [1, 0, 1]
    ledger.close()


def test_it_is_noticed_before_the_commit(path: Path) -> None:
    ledger = Ledger.open(path)
    with pytest.raises(LedgerWriteError, match="moved or deleted"), ledger.transaction() as tx:
        events.log(tx, "noted", "torn")
        path.rename(path.with_name("away.db"))
    path.with_name("away.db").rename(path)
    assert noted(ledger, "torn") == 0
    ledger.close()


def test_another_file_in_its_place_is_not_written_to(path: Path, tmp_path: Path) -> None:
    ledger = Ledger.open(path)
    path.rename(tmp_path / "away.db")
    Ledger.open(tmp_path / "other.db").close()
    (tmp_path / "other.db").rename(path)
    with pytest.raises(LedgerWriteError, match="replaced by another file"):
        note(ledger, "lost")
    ledger.close()


def test_the_writer_says_so_to_each_and_goes_on(path: Path) -> None:
    ledger = Ledger.open(path)

    writer = LedgerWriter(ledger)

    async def write() -> list[object]:
        writes = (writer.run(lambda tx: events.log(tx, "noted", "each")) for _ in range(3))
        return [type(outcome) for outcome in await asyncio.gather(*writes, return_exceptions=True)]

    path.rename(path.with_name("away.db"))
    assert asyncio.run(write()) == [LedgerWriteError] * 3
    path.with_name("away.db").rename(path)
    assert asyncio.run(write()) == [Event] * 3
    writer.close()
    assert noted(ledger, "each") == 3
    ledger.close()
