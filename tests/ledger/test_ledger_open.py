"""Opening: fast when there is nothing to do, safe when many do it at once, plain words when it can't be done."""

import multiprocessing
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ledger_rows import session, turn
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger, LedgerWriteError, policies, turns

SPAWN = multiprocessing.get_context("spawn")
HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Another process holds the file's exclusive lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    try:
        yield
    finally:
        process.communicate()


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    text = str(error.value)
    assert "\n" not in text and text.endswith(".")
    return text


def _open(url: str, start: "multiprocessing.synchronize.Barrier", results: "multiprocessing.Queue[str]") -> None:
    start.wait()
    try:
        opened = Ledger.open(url)
        with opened.transaction() as tx:
            turns.add(tx, turn(session(tx, "shared").id, completion_id=str(os.getpid())))
        results.put("fine")
    except Exception as error:  # noqa: BLE001 - the parent shows it
        results.put(repr(error))


@pytest.mark.slow
def test_many_processes_may_open_a_new_ledger_at_once(url: str) -> None:
    count = 3
    start, results = SPAWN.Barrier(count), SPAWN.Queue()
    workers = [SPAWN.Process(target=_open, args=(url, start, results)) for _ in range(count)]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=60) for _ in workers] == ["fine"] * count
    for worker in workers:
        worker.join()
    with Ledger.open(url).reader() as tx:
        [row] = turns.sessions(tx)
        assert (row["session_id"], row["turns"]) == ("shared", count)


def test_opening_again_keeps_what_is_there(url: str) -> None:
    first = Ledger.open(url)
    with first.transaction() as tx:
        home = session(tx)
    first.close()
    with Ledger.open(url).reader() as tx:
        assert turns.find_session(tx, home.id) is not None


def test_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a run #1%20" / "ledger.db"
    assert Ledger.open(str(path)).path == path
    assert path.exists()


def test_an_up_to_date_ledger_opens_without_waiting_for_a_writer(sqlite_ledger: Ledger) -> None:
    assert sqlite_ledger.path is not None
    with held(sqlite_ledger.path):
        again = Ledger.open(sqlite_ledger.path, busy_timeout_s=0.05)
        with again.reader() as tx:
            assert policies.serving(tx).version == 0
        again.close()


def test_the_file_is_in_write_ahead_mode_and_synced_at_each_commit(sqlite_ledger: Ledger) -> None:
    with sqlite_ledger.writer_engine.connect() as connection:
        values = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "secure_delete", "busy_timeout")
        }
    assert values == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "secure_delete": 1,
        "busy_timeout": 10000,
    }


def test_readers_can_not_write(ledger: Ledger) -> None:
    with pytest.raises(Exception, match=r"read.?only|may not be written"), ledger.reader() as tx:
        session(tx)
        tx.flush()


def test_a_reader_sees_one_moment(ledger: Ledger) -> None:
    with ledger.reader() as tx:
        assert turns.sessions(tx) == []
        with ledger.transaction() as other:
            session(other)
        assert turns.sessions(tx) == []
    with ledger.reader() as tx:
        assert len(turns.sessions(tx)) == 1


def test_an_error_in_a_transaction_undoes_it(ledger: Ledger) -> None:
    with pytest.raises(ZeroDivisionError), ledger.transaction() as tx:
        session(tx)
        tx.flush()
        _ = 1 / 0
    with ledger.reader() as tx:
        assert turns.sessions(tx) == []


def test_an_error_of_the_program_passes_as_it_is(ledger: Ledger) -> None:
    for enter in (ledger.reader, ledger.transaction):
        with pytest.raises(DBAPIError) as caught, enter() as tx:
            tx.execute(text("SELECT no_such_column FROM turns"))
        # An error that is its own cause has whoever looks for the first cause look for ever.
        assert caught.value.__cause__ is caught.value.orig


def test_a_ledger_of_a_newer_version_is_refused(ledger: Ledger) -> None:
    with ledger.writer_engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(UserError, match=r"newer clawrl-trl.*upgrade") as error:
        Ledger.open(ledger.url.render_as_string(hide_password=False))
    one_line(error)


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_text("a diary, not a database " * 100)
    with pytest.raises(UserError, match="not a ledger") as error:
        Ledger.open(path)
    assert str(path) in one_line(error)
    assert path.read_text().startswith("a diary")


def test_another_programs_database_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    with pytest.raises(UserError, match="another program's database") as error:
        Ledger.open(path)
    one_line(error)


def test_an_empty_file_becomes_a_ledger(path: Path) -> None:
    path.touch()
    with Ledger.open(path).reader() as tx:
        assert policies.serving(tx).version == 0


def test_a_damaged_file_is_refused(sqlite_ledger: Ledger, path: Path) -> None:
    sqlite_ledger.checkpoint()
    sqlite_ledger.close()
    content = bytearray(path.read_bytes())
    content[100:] = os.urandom(len(content) - 100)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged.*restore a backup") as error:
        Ledger.open(path)
    one_line(error)


def test_damage_that_shows_later_is_told_as_well(sqlite_ledger: Ledger, path: Path) -> None:
    with sqlite_ledger.transaction() as tx:
        home = session(tx).id
        for number in range(50):  # each with ids of its own, or they would be stored once
            turns.add(tx, turn(home, prompt_ids=list(range(number, number + 2000))))
    sqlite_ledger.checkpoint()
    sqlite_ledger.close()
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle:] = b"\xff" * (len(content) - middle)
    path.write_bytes(content)
    again = Ledger.open(path)
    with pytest.raises(UserError, match="damaged") as error, again.reader() as tx:
        turns.of_session(tx, home)
    one_line(error)


@pytest.mark.parametrize("place", ["/proc/clawrl/ledger.db", "/dev/null/ledger.db"])
def test_a_folder_that_can_not_be_written_is_named(place: str) -> None:
    with pytest.raises(UserError, match=r"can't be (written|opened)") as error:
        Ledger.open(place)
    assert place in one_line(error)


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't be opened"):
        Ledger.open(tmp_path)


def test_a_new_ledger_that_stays_locked_is_given_up(path: Path) -> None:
    sqlite3.connect(path).execute("PRAGMA user_version = 1").connection.close()
    with held(path), pytest.raises(UserError, match="stays locked") as error:
        Ledger.open(path, busy_timeout_s=0.05)
    one_line(error)


def test_a_write_that_waits_too_long_for_the_lock_fails(sqlite_ledger: Ledger, path: Path) -> None:
    impatient = Ledger.open(path, busy_timeout_s=0.05)
    with held(path), pytest.raises(LedgerWriteError, match="stays locked") as error, impatient.transaction() as tx:
        session(tx)
        tx.flush()
    one_line(error)
    with impatient.transaction() as tx:
        session(tx)
    impatient.close()


def test_a_full_disk_loses_nothing_but_the_transaction(sqlite_ledger: Ledger) -> None:
    with sqlite_ledger.transaction() as tx:
        home = session(tx).id
        turns.add(tx, turn(home))
    limit(sqlite_ledger, 5)
    with pytest.raises(LedgerWriteError, match="disk is full") as error, sqlite_ledger.transaction() as tx:
        for _ in range(100):
            turns.add(tx, turn(home, prompt_ids=list(range(2000))))
    one_line(error)
    limit(sqlite_ledger, 1_000_000)
    with sqlite_ledger.transaction() as tx:
        assert len(turns.of_session(tx, home)) == 1
        turns.add(tx, turn(home))


def test_a_full_disk_at_the_first_opening_is_told(path: Path) -> None:
    code = (
        "import resource, sys; from clawrl_trl.ledger import Ledger; from clawrl_trl.errors import UserError;"
        "import clawrl_trl.ledger.migrations; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try: Ledger.open(sys.argv[1])\n"
        "except UserError as error: print(error)"
    )
    told = subprocess.check_output([sys.executable, "-c", code, str(path)], text=True)
    assert "full disk" in told or "disk is full" in told
    with Ledger.open(path).reader() as tx:
        assert policies.serving(tx).version == 0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("nosuchbase://host/name", "not usable"),
        ("postgresql+nosuchdriver://host/name", "not usable"),
        ("://", "not usable"),
    ],
)
def test_urls_that_can_not_be_used_are_refused(url: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        Ledger.open(url)
    one_line(error)


def test_a_server_that_is_away_is_told_without_the_password() -> None:
    with pytest.raises(UserError, match="can't be reached") as error:
        Ledger.open("postgresql+psycopg://someone:secret@127.0.0.1:1/name")
    assert "secret" not in one_line(error)


def limit(ledger: Ledger, pages: int) -> None:
    """Let the SQLite file grow by at most `pages` pages, on every connection of the writer."""

    def set_limit(connection: sqlite3.Connection) -> None:
        size = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={size + pages}")

    ledger.writer_engine.dispose()
    event.listen(ledger.writer_engine, "connect", lambda connection, record: set_limit(connection))
