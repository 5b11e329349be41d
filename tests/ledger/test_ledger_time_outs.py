"""PostgreSQL holds up nobody for ever: not by a lock, a transaction that stands still or a server that is gone."""

from collections.abc import Iterator
from typing import Any

import pytest
from ledger_rows import session
from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError

from clawrl_trl.ledger import Ledger, LedgerWriteError
from clawrl_trl.ledger.errors import explain, is_repeatable
from clawrl_trl.ledger.schema import Session

errors = pytest.importorskip("psycopg.errors")


@pytest.fixture
def postgresql_ledger(ledger: Ledger) -> Ledger:
    if ledger.path is not None:
        pytest.skip("SQLite has a busy time-out of its own, and no connection")
    return ledger


@pytest.fixture
def impatient(postgresql_ledger: Ledger) -> Iterator[Ledger]:
    opened = Ledger(postgresql_ledger.url, busy_timeout_s=0.05)
    yield opened
    opened.close()


def show(tx: Any, *names: str) -> list[str]:
    return [str(tx.scalar(text(f"SHOW {name}"))) for name in names]


def test_connections_are_bounded(postgresql_ledger: Ledger) -> None:
    names = ("lock_timeout", "idle_in_transaction_session_timeout")
    with postgresql_ledger.transaction() as tx:
        assert show(tx, *names) == ["10s", "1min"]
        driver: Any = tx.connection().connection.driver_connection
        asked = driver.info.get_parameters()
    with postgresql_ledger.reader() as tx:
        assert show(tx, *names) == ["10s", "0"], "a reader may digest files meanwhile, and holds up nobody"
    assert (asked["connect_timeout"], asked["keepalives_idle"], asked["tcp_user_timeout"]) == ("10", "30", "30000")


def test_what_the_url_says_goes_before(postgresql_ledger: Ledger) -> None:
    own = Ledger(postgresql_ledger.url.update_query_dict({"connect_timeout": "3"}))
    with own.reader() as tx:
        driver: Any = tx.connection().connection.driver_connection
        assert driver.info.get_parameters()["connect_timeout"] == "3"
    own.close()


def test_a_lock_that_stays_is_told(postgresql_ledger: Ledger, impatient: Ledger) -> None:
    with postgresql_ledger.transaction() as tx:
        home = session(tx).id
    row = select(Session.id).where(Session.id == home).with_for_update()
    with postgresql_ledger.transaction() as holder:
        holder.scalar(row)
        with pytest.raises(LedgerWriteError, match="stays locked by another client"), impatient.transaction() as tx:
            tx.scalar(row)


def test_a_transaction_that_stands_still_gives_up_its_locks(
    postgresql_ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawrl_trl.ledger.store.IDLE_TIMEOUT_S", 0.05)
    stuck = Ledger(postgresql_ledger.url)
    with pytest.raises(LedgerWriteError, match=r"can't be reached|stood still"), stuck.transaction() as tx:
        backend = tx.scalar(text("SELECT pg_backend_pid()"))
        alive = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :backend")
        lives = 1
        while lives:
            with postgresql_ledger.reader() as other:
                lives = other.scalar(alive, {"backend": backend})
        tx.execute(text("SELECT 1"))
    with stuck.transaction() as tx:
        session(tx)
    stuck.close()


@pytest.mark.parametrize("kind", ["ConnectionTimeout", "AdminShutdown", "OperationalError"])
def test_a_server_that_does_not_answer_can_not_be_reached(kind: str) -> None:
    failure = getattr(errors, kind)("connection timeout expired")
    assert "can't be reached" in str(explain(OperationalError("SELECT 1", {}, failure), "there"))


def test_a_deadlock_is_nothing_that_a_user_can_mend() -> None:
    failure = OperationalError("SELECT 1", {}, errors.DeadlockDetected("deadlock detected"))
    assert explain(failure, "there") is None
    assert is_repeatable(failure)
