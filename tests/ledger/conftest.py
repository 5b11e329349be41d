"""Ledgers to test with: SQLite, and PostgreSQL too where CLAWRL_TEST_POSTGRESQL names a server's URL."""

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_rows import session, turn
from sqlalchemy import create_engine, make_url, text

from clawrl_trl.ledger import Ledger

SERVER = os.environ.get("CLAWRL_TEST_POSTGRESQL")
BACKENDS = ["sqlite", "postgresql"] if SERVER else ["sqlite"]

collect_ignore_glob = [] if SERVER else ["test_ledger_postgresql*.py"]
"""Not skipped, for a skipped test counts as a failure."""


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a ledger that does not exist yet."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.db"
        return
    assert SERVER is not None
    name = f"clawrl_{uuid.uuid4().hex}"
    server = create_engine(SERVER, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield make_url(SERVER).set(database=name).render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    """An empty open ledger."""
    opened = Ledger.open(url)
    yield opened
    opened.close()


@pytest.fixture
def home(ledger: Ledger) -> str:
    """A session with one turn of a release without pieces."""
    with ledger.transaction() as tx:
        name = session(tx).id
        tx.add(turn(name))
    return name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a SQLite ledger that does not exist yet."""
    return tmp_path / "ledger.db"


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an empty SQLite ledger, to be copied."""
    file = tmp_path_factory.mktemp("ledger") / "empty.db"
    opened = Ledger.open(file)
    opened.checkpoint()
    opened.close()
    return file


@pytest.fixture
def sqlite_ledger(path: Path, empty_ledger: Path) -> Iterator[Ledger]:
    """An empty open ledger in a SQLite file."""
    shutil.copy(empty_ledger, path)
    opened = Ledger.open(path)
    yield opened
    opened.close()
