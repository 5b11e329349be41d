"""A call that went through and had no effect is not approved of, alone or beside others that worked."""

import pytest

from clawrl_trl.judge.tools.effects import had_no_effect
from clawrl_trl.judge.tools.results import ToolResult, score_result, score_results

WITHOUT_EFFECT = [
    "UPDATE 0",
    "INSERT 0 0",
    "Wrote 0 bytes to notes/summary.md",
    "Total reclaimed space: 0B",
    "0 files changed",
    "0 rows affected (0.02 sec)",
    "updatedRows: 0",
    '{"ok": true, "files_changed": 0, "skipped": ["i18n/fr.json"]}',
    '{"deleted": 0, "matched": 118, "dry_run": true, "ok": true}',
    '{"success": true, "rows_written": 0}',
    '{"language": "fr", "duration": 1844.2, "text": ""}',
    "testing: warning: no tests to run\nPASS\nok  \tinternal/parser\t0.004s [no tests to run]",
    "NAME      READY   STATUS             RESTARTS   AGE\nledger-7  0/1     CrashLoopBackOff   5          4m",
    "#REF!",
    "Submitted batch job 771204",
    '{"status": "success", "hits": [], "warnings": ["query dropped"]}',
    "rj-18: RENDERING frame 118/900 (13 %), ETA 00:52:10",
    "Unknown SKU 'K20'. Did you mean 'K-20'?",
]
WITH_EFFECT = [
    "UPDATE 12",
    "INSERT 0 1",
    "Wrote 10 bytes to notes/summary.md",
    "3 files changed, 10 insertions(+), 0 deletions(-)",
    "Sent at 10:00",
    "Updated to version 2.0",
    "moved 1 of 1, 0 skipped",
    '{"ok": true, "updated": 3, "failed": 0}',
    '{"ok": true, "updated": "2026-01-05"}',
    "created 0f3c9a1",
    "12 passed in 0.41s",
    "Deleted 20 messages",
    "3 packages installed, 0 removed",
    "inserted: 12, updated: 0",
    '{"created": 4, "deleted": 0}',
    "saved 0.5 GB",
]


@pytest.mark.parametrize("text", WITHOUT_EFFECT)
def test_a_call_without_an_effect_is_not_approved_of(text: str) -> None:
    assert had_no_effect(text)
    assert score_result(ToolResult(text, "apply_patch")) is None


@pytest.mark.parametrize("text", WITH_EFFECT)
def test_a_call_with_an_effect_is(text: str) -> None:
    assert not had_no_effect(text)
    assert score_result(ToolResult(text, "apply_patch")) == 1


def test_no_effect_is_no_failure_and_hides_none() -> None:
    assert score_result(ToolResult('{"ok": false, "updated": 0}', "apply_patch")) == -1


@pytest.mark.parametrize("open_one", ["UPDATE 0", "price: unknown", "moved: false"])
def test_a_success_beside_a_result_that_leaves_it_open_leaves_it_open(open_one: str) -> None:
    assert score_results([ToolResult("UPDATE 3", "sql"), ToolResult("UPDATE 1", "sql")]) == 1
    assert score_results([ToolResult("UPDATE 3", "sql"), ToolResult(open_one, "sql")]) is None


def test_what_was_only_read_beside_a_success_takes_nothing_from_it() -> None:
    assert score_results([ToolResult("UPDATE 3", "sql"), ToolResult("nothing of note", "read")]) == 1
    assert score_results([ToolResult("UPDATE 3", "sql"), ToolResult("", "sql")]) == 1


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"kind": "job", "jobComplete": false}', None),
        ('{"id": "dpl_9Qx", "readyState": "INITIALIZING", "errorCode": null}', None),
        ('{"id": "dpl_9Qx", "readyState": "READY"}', 1),
        ("[]", None),
        ("moved: false", None),
        ("FAIL src/b.test.js\nTest Suites: 1 failed, 2 passed, 3 total\nTests:       22 passed, 22 total", -1),
        ("Test Files  1 failed | 3 passed (4)\n     Tests  12 passed (12)\n  Duration  1.2s", -1),
        ("Test Suites: 3 passed, 3 total\nTests:       22 passed, 22 total\nTime: 2 s", 1),
        ("3 of 5 FAIL 2207 unique_id\nDone. PASS=4 WARN=0 ERROR=1 SKIP=0 TOTAL=5", -1),
        ('HTTP 400 Bad Request\n{"reason": "timeRangeEmpty"}', -1),
        ('{"sid": "SM71", "status": "failed", "error_message": "Carrier network outage"}', None),
    ],
)
def test_states_of_further_tools(text: str, score: int | None) -> None:
    assert score_result(ToolResult(text, "apply_patch")) == score
