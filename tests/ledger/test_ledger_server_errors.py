"""What PostgreSQL's errors are told as: a server that is gone, and a deadlock, which nobody can mend."""

import pytest
from psycopg import errors
from sqlalchemy.exc import OperationalError

from clawrl_trl.ledger.errors import explain, is_repeatable


@pytest.mark.parametrize("kind", ["ConnectionTimeout", "AdminShutdown", "OperationalError"])
def test_a_server_that_does_not_answer_can_not_be_reached(kind: str) -> None:
    failure = getattr(errors, kind)("connection timeout expired")
    assert "can't be reached" in str(explain(OperationalError("SELECT 1", {}, failure), "there"))


def test_a_deadlock_is_nothing_that_a_user_can_mend() -> None:
    failure = OperationalError("SELECT 1", {}, errors.DeadlockDetected("deadlock detected"))
    assert explain(failure, "there") is None
    assert is_repeatable(failure)
