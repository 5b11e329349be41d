"""What turns of a session repeat is stored once, read whole, and goes with its last turn."""

from pathlib import Path
from typing import Any

import pytest
from alembic import command
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_rows import session, turn
from sqlalchemy import LargeBinary, create_engine, event, func, select, text, type_coerce

from clawrl_trl.ledger import Ledger, turns
from clawrl_trl.ledger.errors import LedgerError
from clawrl_trl.ledger.history import compact
from clawrl_trl.ledger.migrations import make_configuration
from clawrl_trl.ledger.pieces import read_reference
from clawrl_trl.ledger.schema import Piece, Turn

TOOLS = [{"type": "function", "function": {"name": "look", "description": "é \0 \ud83d"}}]


def messages(count: int) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": f"message {number}"} for number in range(count)]


def count_pieces(ledger: Ledger) -> int:
    with ledger.reader() as tx:
        return tx.scalar(select(func.count()).select_from(Piece)) or 0


def add_line(ledger: Ledger, name: str, count: int) -> list[str]:
    """Turns of a conversation, the n-th with 2n + 1 messages and 300 more ids than the one before."""
    with ledger.transaction() as tx:
        home = session(tx, name).id
        return [
            turns.add(
                tx,
                turn(home, messages=messages(2 * n + 1), tools=TOOLS, prompt_ids=list(range(300 * (n + 1)))),
            ).id
            for n in range(count)
        ]


def test_each_message_of_a_conversation_is_stored_once(ledger: Ledger) -> None:
    add_line(ledger, "a", 5)
    # 9 messages, a tool, and of 1,500 ids 11 full chunks and the last of each of the five turns.
    with ledger.reader() as tx:
        contents = tx.scalars(select(Piece.id)).all()
    assert len(contents) == 9 + 1 + (1500 // 128) + 5
    before = count_pieces(ledger)
    with ledger.transaction() as tx:
        turns.add(tx, turn(session(tx, "a").id, messages=messages(9), tools=TOOLS, prompt_ids=list(range(1500))))
    assert count_pieces(ledger) == before


def test_turns_are_read_whole_by_row_and_by_column(ledger: Ledger) -> None:
    ids = add_line(ledger, "a", 4)
    with ledger.reader() as tx:
        for n, row in enumerate(turns.of_session(tx, turns.get(tx, ids[0]).session_id)):  # type: ignore[union-attr]
            assert (row.messages, row.tools) == (messages(2 * n + 1), TOOLS)
            assert row.prompt_ids is not None and row.prompt_ids.tolist() == list(range(300 * (n + 1)))
            assert row.digest == row.compute_digest()
        columns = tx.execute(select(Turn.messages, Turn.tools, Turn.prompt_ids).order_by(Turn.seq)).all()
        assert columns[3].messages == messages(7) and len(columns[3].prompt_ids) == 1200
        stored = tx.execute(select(type_coerce(Turn.messages, LargeBinary))).scalars().all()
        assert all(read_reference(value) for value in stored)


def test_a_session_takes_its_pieces_along(ledger: Ledger) -> None:
    add_line(ledger, "a", 3)
    others = count_pieces(ledger)
    add_line(ledger, "b", 3)
    assert count_pieces(ledger) == 2 * others
    with ledger.transaction() as tx:
        turns.delete_session(tx, "a")
    assert count_pieces(ledger) == others


def test_a_deleted_turn_takes_what_it_alone_held(ledger: Ledger) -> None:
    ids = add_line(ledger, "a", 3)
    before = count_pieces(ledger)
    with ledger.transaction() as tx:
        assert turns.delete_turn(tx, ids[2])
    assert count_pieces(ledger) < before
    with ledger.reader() as tx:
        row = turns.get(tx, ids[1])
        assert row is not None and row.messages == messages(3) and row.digest == row.compute_digest()
    with ledger.transaction() as tx:
        for turn_id in ids[:2]:
            assert turns.delete_turn(tx, turn_id)
    assert count_pieces(ledger) == 0


@pytest.mark.parametrize("damage", ["DELETE FROM pieces WHERE parent_id = ''", "UPDATE pieces SET content = '!'"])
def test_damage_is_told(ledger: Ledger, damage: str) -> None:
    ids = add_line(ledger, "a", 2)
    with ledger.writer_engine.begin() as connection:
        connection.execute(text(damage))
    with pytest.raises(LedgerError, match=r"damaged.*restore a backup"), ledger.reader() as tx:
        turns.get(tx, ids[1])


def test_an_old_ledger_is_read_as_before_and_can_be_converted(tmp_path: Path) -> None:
    old = create_engine(f"sqlite:///{tmp_path}/ledger.db")

    @event.listens_for(old, "connect")
    def prepare(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")

    config = make_configuration()
    with old.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0003")
        connection.execute(text("INSERT INTO sessions VALUES ('s', NULL, 'local', 'header', 1, 1, 0, NULL)"))
        for n in range(20):
            made = turn("s", id=f"turn_{n}", messages=messages(2 * n + 1), prompt_ids=list(range(300 * (n + 1))))
            made.digest = made.compute_digest()
            values = {
                column.name: getattr(made, column.name) for column in Turn.__table__.columns if column.name != "seq"
            }
            connection.execute(Turn.__table__.insert().values(values))  # type: ignore[attr-defined]
    old.dispose()
    ledger = Ledger.open(tmp_path / "ledger.db")
    for converted in (20, 0):
        with ledger.reader() as tx:
            rows = turns.of_session(tx, "s")
            assert [len(row.messages) for row in rows] == [2 * n + 1 for n in range(20)]
            assert all(row.digest == row.compute_digest() for row in rows)
        assert compact(ledger) == converted
    assert count_pieces(ledger) > 39
    with ledger.reader() as tx:
        assert all(row.messages == messages(2 * n + 1) for n, row in enumerate(turns.of_session(tx, "s")))
    ledger.close()


VALUES = st.lists(st.sampled_from("abc"), min_size=1, max_size=5)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(VALUES, st.integers(0, 400)), min_size=1, max_size=8), st.data())
def test_whatever_is_added_and_deleted_is_read_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, added: list[tuple[list[str], int]], data: st.DataObject
) -> None:
    ledger = Ledger.open(tmp_path_factory.mktemp("ledger") / "ledger.db")
    with ledger.transaction() as tx:
        home = session(tx).id
        live = {
            turns.add(
                tx,
                turn(
                    home, messages=[{"role": "user", "content": word} for word in words], prompt_ids=list(range(size))
                ),
            ).id: (words, size)
            for words, size in added
        }
    while live:
        with ledger.reader() as tx:
            for turn_id, (words, size) in live.items():
                row = turns.get(tx, turn_id)
                assert row is not None and row.prompt_ids is not None
                assert [message["content"] for message in row.messages] == words
                assert row.prompt_ids.tolist() == list(range(size))
        gone = data.draw(st.sampled_from(sorted(live)))
        with ledger.transaction() as tx:
            turns.delete_turn(tx, gone)
        del live[gone]
    assert count_pieces(ledger) == 0
    ledger.close()
