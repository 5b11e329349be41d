"""States of rows and the transitions between them, as data, and their enforcement.

A table maps a state to the states that may follow it; `None` stands for a row that does not exist yet. The
schema attaches a table to each `state` column: setting the attribute to anything the table does not allow
raises `IllegalTransition`, and the column's CHECK constraint holds off states nobody knows. Statements that
move many rows at once go through `move`, which takes the states they may come from out of the same table.
"""

from collections.abc import Mapping

from sqlalchemy import ColumnElement, CursorResult, event, update
from sqlalchemy.orm import InstrumentedAttribute, Session

Table = Mapping[str | None, frozenset[str]]


class IllegalTransition(Exception):
    """A state was set that the transition table does not allow."""


def _table(**following: str) -> Table:
    """Build a table from `state="next other"`; `new` names the states a row may be born in."""
    return {(None if state == "new" else state): frozenset(text.split()) for state, text in following.items()}


TURN = _table(
    new="captured",
    captured="awaiting_next_state",
    awaiting_next_state="judging expired",
    expired="judging",
    judging="judged",
    judged="judging",
)
"""A reply's way to its verdict. Side turns stay captured. A late reply is still feedback, so expired turns
may be judged; a judged turn is judged again when explicit feedback arrives while its sample is free."""

SAMPLE = _table(new="ready", ready="leased dropped", leased="trained ready dropped", trained="", dropped="")
"""A training sample's way: it is in one batch at most, and trained once at most."""

BATCH = _table(new="leased", leased="trained released", trained="", released="")
"""A batch is written before it is trained; a released one gave its samples back."""

POLICY = _table(
    new="candidate",
    candidate="serving rejected",
    serving="retired",
    retired="serving rejected pruned",
    rejected="",
    pruned="",
)
"""A policy version's way; a rollback takes a retired version back into service, a damaged one is rejected, and one
that is old enough is pruned: its files go."""


def names(table: Table) -> tuple[str, ...]:
    """All states of a table, in the order they were written."""
    return tuple(state for state in table if state is not None)


def sources(table: Table, target: str) -> tuple[str, ...]:
    """The states from which `target` may be reached in one step."""
    return tuple(state for state in names(table) if target in table[state])


def check(table: Table, old: str | None, new: str) -> None:
    """Raise `IllegalTransition` unless `new` may follow `old` (`None`: a new row); staying is allowed."""
    if new != old and new not in table.get(old, frozenset()):
        raise IllegalTransition(f"{old or 'a new row'} -> {new} is not a transition")


def enforce(attribute: InstrumentedAttribute[str], table: Table) -> None:
    """Check every assignment to a mapped `state` attribute against its table."""

    def on_set(target: object, value: str, old: object, initiator: object) -> None:
        # Of a new row SQLAlchemy passes a symbol for "no value".
        check(table, old if isinstance(old, str) else None, value)

    # With the old value loaded first: of an expired attribute there would be none to check against.
    event.listen(attribute, "set", on_set, active_history=True)


def move(
    tx: Session,
    attribute: InstrumentedAttribute[str],
    table: Table,
    target: str,
    *where: ColumnElement[bool],
    **values: object,
) -> int:
    """Move the rows that match, and may move, to `target` in one UPDATE.

    Args:
        tx (`Session`): The open transaction.
        attribute (`InstrumentedAttribute`): The `state` attribute of the rows' class.
        table (`Table`): Its transition table.
        target (`str`): The state to reach.
        *where (`ColumnElement`): Which rows.
        **values: Other columns to set with it.

    Returns:
        `int`: How many rows moved; rows in a state that can't reach `target` are left as they are.
    """
    statement = (
        update(attribute.class_)
        .where(attribute.in_(sources(table, target)), *where)
        .values(state=target, **values)
        .execution_options(synchronize_session="fetch")
    )
    result = tx.execute(statement)
    assert isinstance(result, CursorResult)
    return result.rowcount
