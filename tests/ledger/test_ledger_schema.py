"""The migrated schema is the one the rows are mapped to, and it holds what it promises."""

import subprocess
import sys

import numpy as np
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from hypothesis import given
from hypothesis import strategies as st
from ledger_rows import judge, session, turn
from sqlalchemy import CheckConstraint, inspect, text, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import IntegrityError

from clawrl_trl.ledger import Ledger, events, policies, schema, turns
from clawrl_trl.ledger.columns import FloatArray, IdArray, LongJSON, StorableText, new_id
from clawrl_trl.ledger.migrations import make_configuration

SQLITE = sqlite.dialect()
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_migrations_make_the_mapped_schema(ledger: Ledger) -> None:
    with ledger.writer_engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.Base.metadata) == []


def test_migrations_make_the_mapped_check_constraints(sqlite_ledger: Ledger) -> None:
    inspector = inspect(sqlite_ledger.reader_engine)
    for table in schema.Base.metadata.sorted_tables:
        checks = [one for one in table.constraints if isinstance(one, CheckConstraint)]
        made = {check["name"]: check["sqltext"] for check in inspector.get_check_constraints(table.name)}
        assert made == {str(check.name): str(check.sqltext) for check in checks}


def test_the_code_knows_its_newest_migration() -> None:
    assert ScriptDirectory.from_config(make_configuration()).get_current_head() == schema.REVISION


def test_importing_the_ledger_imports_nothing_heavy() -> None:
    code = "import sys, clawrl_trl.ledger; print({'torch', 'transformers', 'alembic'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_a_new_ledger_serves_the_base_model(ledger: Ledger) -> None:
    with ledger.reader() as tx:
        base = policies.serving(tx)
        assert (base.version, base.kind, base.path, base.metrics) == (0, "base", None, {})
        assert policies.latest(tx) is base


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_ids_are_kept_as_four_bytes_each(ids: list[int]) -> None:
    stored = IdArray().process_bind_param(ids, SQLITE)
    assert stored is not None and len(stored) == 4 * len(ids)
    loaded = IdArray().process_result_value(stored, SQLITE)
    assert loaded is not None and loaded.dtype == np.int32 and loaded.tolist() == ids
    assert loaded.flags.writeable


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_log_probs_are_kept_exactly(values: list[float]) -> None:
    loaded = FloatArray().process_result_value(FloatArray().process_bind_param(values, SQLITE), SQLITE)
    assert loaded is not None and loaded.dtype == np.float32 and loaded.tolist() == values


@pytest.mark.parametrize("ids", [[2**31], [[1, 2], [3, 4]], ["a"]])
def test_what_is_no_list_of_token_ids_is_refused(ids: list[object]) -> None:
    with pytest.raises((ValueError, OverflowError)):
        IdArray().process_bind_param(ids, SQLITE)


@given(JSON_VALUES)
def test_long_json_comes_back_as_it_was(value: object) -> None:
    assert LongJSON().process_result_value(LongJSON().process_bind_param(value, SQLITE), SQLITE) == value


@given(st.text(st.characters() | st.characters(categories=["Cs"]) | st.just("\0")))
def test_any_text_can_be_stored(value: str) -> None:
    stored = StorableText().process_bind_param(value, SQLITE)
    assert stored is not None and "\0" not in stored
    stored.encode()
    if "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value):
        assert stored == value


def test_half_characters_in_messages_survive(ledger: Ledger) -> None:
    broken = [{"role": "user", "content": "half \ud83d and \0 zero"}]
    with ledger.transaction() as tx:
        made = turns.add(tx, turn(session(tx, "name \ud83d").id, messages=broken, kind_reason="\0"))
    with ledger.reader() as tx:
        found = turns.get(tx, made.id)
        assert found is not None and found.messages == broken
        assert turns.inspect(tx, "name \ud83d")[0]["turn_id"] == made.id


def test_rows_do_not_show_what_people_wrote(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        made = turns.add(tx, turn(session(tx).id))
    assert repr(made) == f"<Turn {made.id}>"


def test_turns_are_numbered_in_order_and_numbers_are_not_used_again(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        first, second = (turns.add(tx, turn(session(tx, name).id)) for name in ("a", "b"))
        assert first.seq < second.seq
        turns.delete_session(tx, "b")
    with ledger.transaction() as tx:
        assert turns.add(tx, turn(session(tx, "c").id)).seq > second.seq


def test_ids_sort_by_time() -> None:
    ids = [new_id("turn") for _ in range(100)]
    assert ids == sorted(ids) and len(set(ids)) == 100


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": [-0.5]},
        {"logprobs": None},
        {"prompt_ids": None},
        {"completion_ids": [], "logprobs": []},
        {"policy_version": None},
        {"kind": "aside"},
    ],
)
def test_a_trainable_turn_without_its_tokens_is_refused(ledger: Ledger, fields: dict[str, object]) -> None:
    with pytest.raises(IntegrityError), ledger.transaction() as tx:
        turns.add(tx, turn(session(tx).id, **fields))


@pytest.mark.parametrize(
    ("table", "values"),
    [
        ("turns", "state = 'forgotten'"),
        ("turns", "kind = 'side'"),
        ("samples", "state = 'leased'"),
        ("samples", "state = 'lost'"),
        ("samples", "teacher_logprobs = plain_logprobs, plain_logprobs = NULL"),
        ("policies", "state = 'best'"),
        ("policies", "kind = 'other'"),
    ],
)
def test_the_database_refuses_states_that_make_no_sense(ledger: Ledger, table: str, values: str) -> None:
    with ledger.transaction() as tx:
        made = turns.add(tx, turn(session(tx).id))
        turns.set_next_state(tx, made.id, [{"role": "user", "content": "no"}], ["owner"], None, 2.0)
        assert judge(tx, made.id, teacher_logprobs=[-1, -2], plain_logprobs=[-1, -2])
    if "plain_logprobs = NULL" in values:
        values = "plain_logprobs = NULL"
    with pytest.raises(IntegrityError), ledger.transaction() as tx:
        tx.execute(text(f"UPDATE {table} SET {values}"))


def test_only_one_policy_serves(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        policies.add(tx, schema.Policy(version=1, parent=0, path="policy-v1"))
    with pytest.raises(IntegrityError), ledger.transaction() as tx:
        tx.execute(update(schema.Policy).values(state="serving"))


def test_a_turn_needs_its_session(ledger: Ledger) -> None:
    with pytest.raises(IntegrityError), ledger.transaction() as tx:
        turns.add(tx, turn("session_unknown"))


def test_the_digest_is_over_what_was_sampled() -> None:
    one = turn("session_1", completion_id="a")
    assert one.compute_digest() == turn("session_2", completion_id="b", messages=[]).compute_digest()
    for change in (
        {"prompt_ids": [1, 2]},
        {"completion_ids": [5, 4]},
        {"logprobs": [-0.25, -0.75]},
        {"policy_version": 1},
        {"response": {"role": "assistant", "content": "13"}},
        {"logprobs": None},
    ):
        assert turn("session_1", **change).compute_digest() != one.compute_digest()


@given(st.lists(st.integers(0, 9), max_size=6), st.lists(st.integers(0, 9), max_size=6))
def test_tokens_can_not_move_between_prompt_and_completion(prompt: list[int], completion: list[int]) -> None:
    whole = [*prompt, *completion]
    digests = {
        turn("s", prompt_ids=whole[:cut], completion_ids=whole[cut:]).compute_digest() for cut in range(len(whole) + 1)
    }
    assert len(digests) == len(whole) + 1


def test_the_diary_keeps_order(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        for number in range(5):
            events.log(tx, "tick", "clock", number=number)
        events.log(tx, "tock", "other")
    with ledger.reader() as tx:
        assert [one.data["number"] for one in events.of(tx, "clock")] == [0, 1, 2, 3, 4]
        assert [one.kind for one in events.recent(tx, 2)] == ["tick", "tock"]
