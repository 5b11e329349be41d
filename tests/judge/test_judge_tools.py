"""Tool results: every shape of success and failure in the cases, and none that words alone decide."""

import json
from pathlib import Path

import pytest

from clawrl_trl.judge import tools

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases.jsonl").read_text().splitlines()]
TOOL_CASES = [case for case in CASES if set(case["provenance"]) == {"tool"}]


@pytest.mark.parametrize("case", TOOL_CASES, ids=lambda case: case["next_state"][0]["content"][:30])
def test_tool_cases(case: dict) -> None:
    assert (tools.verdict([message["content"] for message in case["next_state"]]) or 0) == case["score"]


def test_any_failure_among_parallel_results_decides_wherever_it_stands() -> None:
    good, bad = "ok (Command exited with code 0)", "no (Command exited with code 3)"
    assert (
        tools.verdict([bad, good, good]) == tools.verdict([good, bad, good]) == tools.verdict([good, good, bad]) == -1
    )
    assert tools.verdict([good, ""]) == 1
    assert tools.verdict(["", " \n"]) is None
    assert tools.verdict([]) is None


def test_the_stated_exit_status_decides_over_what_was_printed() -> None:
    assert tools.of_result("Traceback (most recent call last):\n...\nexit code: 0") == 1
    assert tools.of_result("all 5 tests passed\nexit status 1") == -1


def test_a_very_long_result_is_judged_by_its_ends() -> None:
    assert tools.of_result("x" * 3_000_000 + "\n(Command exited with code 3)") == -1
