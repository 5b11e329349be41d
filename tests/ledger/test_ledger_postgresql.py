"""PostgreSQL holds up nobody for ever: not by a lock, a transaction that stands still or a server that is gone."""

from collections.abc import Iterator
from typing import Any

import pytest
from ledger_rows import session
from sqlalchemy import select, text

from clawrl_trl.ledger import Ledger, LedgerWriteError
from clawrl_trl.ledger.schema import Session

# Only collected where there is a server, see conftest.py: SQLite has a busy time-out of its own, and no connection.
pytestmark = pytest.mark.parametrize("url", ["postgresql"], indirect=True)


@pytest.fixture
def impatient(ledger: Ledger) -> Iterator[Ledger]:
    opened = Ledger(ledger.url, busy_timeout_s=0.05)
    yield opened
    opened.close()


def show(tx: Any, *names: str) -> list[str]:
    return [str(tx.scalar(text(f"SHOW {name}"))) for name in names]


def test_connections_are_bounded(ledger: Ledger) -> None:
    names = ("lock_timeout", "idle_in_transaction_session_timeout")
    with ledger.transaction() as tx:
        assert show(tx, *names) == ["10s", "1min"]
        driver: Any = tx.connection().connection.driver_connection
        asked = driver.info.get_parameters()
    with ledger.reader() as tx:
        assert show(tx, *names) == ["10s", "0"], "a reader may digest files meanwhile, and holds up nobody"
    assert (asked["connect_timeout"], asked["keepalives_idle"], asked["tcp_user_timeout"]) == ("10", "30", "30000")


def test_what_the_url_says_goes_before(ledger: Ledger) -> None:
    own = Ledger(ledger.url.update_query_dict({"connect_timeout": "3"}))
    with own.reader() as tx:
        driver: Any = tx.connection().connection.driver_connection
        assert driver.info.get_parameters()["connect_timeout"] == "3"
    own.close()


def test_a_lock_that_stays_is_told(ledger: Ledger, impatient: Ledger) -> None:
    with ledger.transaction() as tx:
        home = session(tx).id
    row = select(Session.id).where(Session.id == home).with_for_update()
    with ledger.transaction() as holder:
        holder.scalar(row)
        with pytest.raises(LedgerWriteError, match="stays locked by another client"), impatient.transaction() as tx:
            tx.scalar(row)


def test_a_transaction_that_stands_still_gives_up_its_locks(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may stand still for some while between two steps of the second transaction.
    monkeypatch.setattr("clawrl_trl.ledger.store.IDLE_TIMEOUT_S", 1.0)
    stuck = Ledger(ledger.url)
    with pytest.raises(LedgerWriteError, match=r"can't be reached|stood still"), stuck.transaction() as tx:
        backend = tx.scalar(text("SELECT pg_backend_pid()"))
        alive = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :backend")
        lives = 1
        while lives:
            with ledger.reader() as other:
                lives = other.scalar(alive, {"backend": backend})
        tx.execute(text("SELECT 1"))
    with stuck.transaction() as tx:
        session(tx)
    stuck.close()
