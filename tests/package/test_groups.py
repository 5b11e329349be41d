"""Tests that share what takes long to start are run by one process: pytest and pytest-xdist still agree on groups."""

import os

import pytest


@pytest.mark.xdist_group("groups")
def test_a_group_is_known_to_the_process_that_runs_it() -> None:
    """pytest 9.2 took the mark away from pytest-xdist 3.8 without a word, and all that is shared was started twice."""
    running = os.environ["PYTEST_CURRENT_TEST"]
    assert "PYTEST_XDIST_WORKER" not in os.environ or "@groups " in running
