"""What the database ended for the sake of another process is repeated, and not for ever."""

import asyncio
from itertools import count
from typing import Any
from unittest.mock import Mock

import pytest
from ledger_rows import turn
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from clawrl_trl.ledger import Ledger, LedgerWriter, history, turns
from clawrl_trl.ledger.schema import Turn


@pytest.mark.parametrize(("code", "tries"), [("40P01", history.TRIES), ("40001", history.TRIES), ("23505", 1)])
def test_only_so_many_tries(ledger: Ledger, home: str, code: str, tries: int) -> None:
    fail = Mock(side_effect=_make_failure(code))
    event.listen(ledger.writer_engine, "before_cursor_execute", fail)
    with pytest.raises(OperationalError, match="no luck"):
        history.compact(ledger)
    assert fail.call_count == tries


def _make_failure(code: str) -> OperationalError:
    failure = Exception("no luck")
    failure.sqlstate = code  # type: ignore[attr-defined]
    return OperationalError("SELECT", {}, failure)


@pytest.mark.parametrize(("fails", "is_kept"), [(1, True), (2, False)])
async def test_a_sampled_turn_outlives_a_deadlock(ledger: Ledger, home: str, fails: int, is_kept: bool) -> None:
    writer, starts = LedgerWriter(ledger), count(1)
    sampled, beside = turn(home), turn(home)

    def add(tx: Any) -> Turn:
        added = turns.add(tx, sampled)
        if next(starts) <= fails:
            raise _make_failure("40P01")
        return added

    jobs = (writer.run(lambda tx: turns.add(tx, beside)), writer.run(add))
    results = await asyncio.gather(*jobs, return_exceptions=True)
    writer.close()
    assert results[0] is beside and (results[1] is sampled) == is_kept
    with ledger.reader() as tx:
        ids = {each.id for each in turns.of_session(tx, home)}
    assert beside.id in ids and (sampled.id in ids) == is_kept
