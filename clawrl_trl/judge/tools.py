"""Tool results: did the step work?

A result counts as failed only on a sign that tools themselves give (exit status, test verdict, error object,
traceback, a shell's or compiler's error line), never on words that merely occur in what was read. A stated exit
status decides over everything else in the same result.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

_EXIT = re.compile(
    r"\b(?:exit(?:ed)?|return(?:ed)?)[ _-]?(?:with )?(?:exit )?(?:code|status)\b\W{0,3}(?:of |was |is )?(-?\d+)"
    r"|\bexited with (-?\d+)\b|\breturncode\W{0,3}(-?\d+)",
    re.I,
)
_TESTS_FAILED = re.compile(
    r"\b[1-9]\d* (?:failed|failures?|failing|errors?)\b(?=[^\n]*\b(?:passed"
    r"|passing|total|in \d|warnings?)\b|\s*[=\n]|\s*$)"
    r"|\b(?:failures|errors|failed)\s*[=:]\s*[1-9]\d*|^test result: FAILED"
    r"|^--- FAIL\b|^FAIL\b|^not ok \d|\b[1-9]\d* tests? failed",
    re.I | re.M,
)
_TESTS_PASSED = re.compile(
    r"\b[1-9]\d* (?:passed|passing)\b|^OK\s*(?:\(|$)|^test result: ok|^(?:ok|PASS)\b|\ball (?:\d+ )?tests? passed",
    re.I | re.M,
)
_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):|^\s*(?:\w+\.)*\w*(?:Error"
    r"|Exception)\b: .*\Z|^panic: |^Exception in thread ",
    re.M,
)
_SHELL = re.compile(
    r"^(?:fatal|error|Error|ERROR|FATAL)\b(?:\[\w+\])?: "
    r"|^[\w./-]+: (?:line \d+: )?.*(?:command not found|No such file or directory"
    r"|Permission denied|Is a directory|cannot access)|^\S+:\d+(?::\d+)?: (?:fatal )?error: |^make(?:\[\d+\])?: \*\*\*"
    r"|^npm ERR!|^Segmentation fault|\bcommand timed out\b|\btimed out after \d+",
    re.M | re.I,
)
_EDGE = 4000


def verdict(results: Sequence[str]) -> int | None:
    """-1 if any of parallel tool results failed, +1 if all that say anything worked, `None` when none does."""
    scores = [score for result in results if (score := of_result(result)) is not None]
    return min(scores) if scores else None


def of_result(result: str) -> int | None:
    """-1 failed, +1 worked, `None` for an empty result."""
    text = result.strip()
    if not text:
        return None
    structured = _of_json(text)
    if structured is not None:
        return structured
    text = text if len(text) <= 2 * _EDGE else f"{text[:_EDGE]}\n{text[-_EDGE:]}"
    codes = [int(next(group for group in match.groups() if group)) for match in _EXIT.finditer(text)]
    if codes:
        return 1 if codes[-1] == 0 else -1
    if _TESTS_FAILED.search(text):
        return -1
    if _TESTS_PASSED.search(text):
        return 1
    return -1 if _TRACEBACK.search(text) or _SHELL.search(text) else 1


def _of_json(text: str) -> int | None:
    if text[:1] not in "{[":
        return None
    try:
        value: Any = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return 1
    lowered = {str(key).lower(): one for key, one in value.items()}
    for key in ("exit_code", "exitcode", "returncode", "exit_status"):
        if isinstance(lowered.get(key), int):
            return 1 if lowered[key] == 0 else -1
    if lowered.get("error") or lowered.get("errors") or lowered.get("iserror") or lowered.get("is_error"):
        return -1
    if lowered.get("success") is False or lowered.get("ok") is False:
        return -1
    if str(lowered.get("status", "")).lower() in ("error", "failed", "failure", "timeout"):
        return -1
    return 1
