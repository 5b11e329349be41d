"""Scores of tool results: whether the step worked.

The sign comes from a structured status (fields of a JSON object; the header or the ending that a client itself writes
around an output), else from an anchored sign of what ran: its last line, a traceback at its end, a shell's error as
the whole of it. Words in the middle of what was printed or read decide nothing, and what a reading tool returned
decides nothing without a structured status.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from clawrl_trl.judge.steering.encoded import holds_encoded_text
from clawrl_trl.judge.steering.invisible import cut_invisible
from clawrl_trl.judge.steering.talk import cut_verdict_talk
from clawrl_trl.judge.tools import patterns
from clawrl_trl.judge.tools.doubts import is_doubtful, speaks_like_a_person
from clawrl_trl.judge.tools.effects import had_no_effect
from clawrl_trl.judge.tools.failure_causes import is_finding, is_infrastructure, opens_with_infrastructure
from clawrl_trl.messages import Json


class ToolResult(NamedTuple):
    """A tool's result as a judge sees it: its text, and the call it answers as far as that is known."""

    text: str
    name: str = ""
    arguments: str = ""


def score_results(results: Sequence[ToolResult]) -> int | None:
    """-1 if any of parallel tool results failed, +1 if all that say anything worked, else `None`.

    Nor does a success count beside the result of another call that should have done something and leaves it open.
    """
    scores = [score_result(result) for result in results]
    decided = [score for score in scores if score is not None]
    score = min(decided) if decided else None
    pairs = zip(results, scores, strict=True)
    return None if score == 1 and any(own is None and _should_tell(result) for result, own in pairs) else score


def score_result(result: ToolResult) -> int | None:
    """Score a result: -1 failed, +1 worked, `None` where that can't be told.

    It can't of an empty result, of what was read without a structured status, and of a failure that says nothing about
    the call (`failure_causes`).
    """
    text = result.text.strip()
    score = _score_text(result, text) if text else None
    if score == -1 and _is_wanted_finding(result, text):
        return None
    if score == -1:
        return None if is_infrastructure(text) else score
    # A line that only tells of a busy service has no status of its own, and would pass for an output.
    return None if score == 1 and (opens_with_infrastructure(text) or had_no_effect(text)) else score


def _should_tell(result: ToolResult) -> bool:
    """Decide if a result has something to tell of its call: it isn't empty, read from somewhere, or of a screen."""
    command = _find_command(result)
    reads = reads_by_name(result.name) or command in patterns.VIEWS or reads_by_command(command)
    return bool(result.text.strip()) and not reads and not _acts_on_screen(result.name)


def _is_wanted_finding(result: ToolResult, text: str) -> bool:
    """Decide if a program told by its exit code what it found; one that failed prints an error."""
    return is_finding(_find_command(result)) and not any(
        map(patterns.SHELL.match, text.splitlines()[-patterns.FEW_LINES :])
    )


def _score_text(result: ToolResult, text: str) -> int | None:
    command = _find_command(result)
    by_name, by_command = reads_by_name(result.name) or command in patterns.VIEWS, reads_by_command(command)
    value = _parse_json(text)
    if value is not None:
        return _score_json(value, by_name or by_command)
    is_tampered = _is_tampered(text)
    text = cut_verdict_talk(text).strip() or text
    # A status stands at one of the ends; what lies between may be megabytes.
    text = text if len(text) <= 2 * patterns.EDGE else f"{text[: patterns.EDGE]}\n{text[-patterns.EDGE :]}"
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    # What was read may hold anything, a traceback too: only the client's own error line counts.
    if by_name:
        return -1 if patterns.ERROR_HEADER.match(text) else None
    # A command that still runs has no outcome yet.
    if any(patterns.RUNNING.match(line) for line in lines[: patterns.FEW_LINES]):
        return None
    score = _score_frame(text, lines)
    # A status of 0 is that of "|| true" or of the end of a pipe where tests failed above it.
    if score == 1 and any(patterns.TESTS_FAILED.match(line.strip()) for line in lines[-patterns.SUMMARY_LINES :]):
        return None
    if score is not None or by_command or _acts_on_screen(result.name):
        return score
    score = _score_output(text, lines)
    return None if score == 1 and is_tampered else score


def reads_by_name(name: str) -> bool:
    """Decide by the words of a tool's name if it only reads."""
    words = {word.lower() for word in patterns.NAME_PARTS.findall(name)}
    return bool(words & patterns.READING) and not words & patterns.DOING


def _acts_on_screen(name: str) -> bool:
    return any(word.lower() in patterns.SCREEN for word in patterns.NAME_PARTS.findall(name))


def reads_by_command(command: str) -> bool:
    """Decide if a shell command runs nothing but programs that read."""
    parts = (part.split() for part in re.split(r"[;&|\n]+", command[: patterns.EDGE]))
    programs = {part[0].rpartition("/")[2] for part in parts if part} - {"cd"}
    return bool(programs) and programs <= patterns.READERS


def _find_command(result: ToolResult) -> str:
    """The command in a call's arguments; empty if there is none."""
    value = _parse_json(result.arguments.strip())
    if not isinstance(value, dict):
        return ""
    # A shell's only argument is its command, whatever the client calls it.
    is_shell = any(word.lower() in patterns.SHELLS for word in patterns.NAME_PARTS.findall(result.name))
    only = next(iter(value.values())) if is_shell and len(value) == 1 else ""
    command = next((value[key] for key in patterns.COMMAND_FIELDS if value.get(key)), only)
    # Some clients send the words of an exec call, with the shell's script last.
    command = command[-1] if isinstance(command, list) else command
    return command if isinstance(command, str) else ""


def _parse_json(text: str) -> Json | list[object] | None:
    if text[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) else None


def _is_tampered(text: str) -> bool:
    """Decide if an output speaks to the judge or hides words: it isn't approved for want of a failure."""
    lines = "\n".join(text.splitlines())
    honest = cut_verdict_talk(lines)
    return honest != lines or cut_invisible(text) != text or holds_encoded_text(text) or speaks_like_a_person(text)


def _score_json(value: Json | list[object], reads: bool) -> int | None:
    if isinstance(value, list):
        return None if reads or not value or _is_spoken(value) else 1
    # Wrappers of a result state its status outside or inside; the outer one goes first.
    inner = [value[key] for key in patterns.INNER if isinstance(value.get(key), dict)]
    scores = [score for fields in (value, *inner) if (score := _score_fields(fields)) is not None]
    if scores:
        # A note that praises itself was saved, and says so.
        is_praise = scores[0] == 1 and _speaks_of_verdicts(value)
        return None if is_praise else scores[0]
    states = [entry for key, entry in value.items() if _last_word(key) in patterns.STATE_FIELDS]
    if any(isinstance(state, str) and _is_unfinished(state) for state in states):
        return None
    if not reads and (value.get("error") or value.get("errors")):
        return -1
    return None if reads or _is_spoken(value) else 1


def _last_word(field: str) -> str:
    """The last word of a field's name: `jobComplete` and `job_complete` tell the same as `complete`."""
    return next(reversed(patterns.NAME_PARTS.findall(field)), "").lower()


def _is_unfinished(state: str) -> bool:
    return state.lower() in patterns.PENDING or is_doubtful([re.sub(r"[_-]", " ", state)])


def _is_spoken(value: Json | list[object]) -> bool:
    """Decide if an object without a status tells of a failure, or speaks to the judge."""
    if isinstance(value, dict) and any(
        entry is False and _last_word(key) in patterns.DONE_FIELDS for key, entry in value.items()
    ):
        return True
    strings = list(_list_strings(value))
    return _is_tampered("\n".join(strings)) or is_doubtful(strings)


def _speaks_of_verdicts(value: Json) -> bool:
    text = "\n".join(_list_strings(value))
    return cut_verdict_talk(text) != text


def _list_strings(value: object) -> Iterator[str]:
    """The strings in an object that was parsed, without its keys."""
    # No recursion: an object may be nested as deep as its writer likes.
    parts = [value]
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, (dict, list)):
            parts.extend(part.values() if isinstance(part, dict) else part)


def _score_fields(value: Mapping[str, object]) -> int | None:
    """The sign of the fields that state how a call went, the most exact first; `None` if there are none."""
    fields = {str(key).lower(): entry for key, entry in value.items()}
    for key in patterns.CODE_FIELDS:
        code = str(fields.get(key))
        if re.fullmatch(r"-?\d{1,10}", code):
            return 1 if int(code) == 0 else -1
    failed = fields.get("iserror", fields.get("is_error"))
    if isinstance(failed, bool):
        return -1 if failed else 1
    for key in ("success", "ok"):
        if isinstance(fields.get(key), bool):
            return 1 if fields[key] else -1
    status = fields.get("status")
    if isinstance(status, str) and status.lower() in patterns.BAD | patterns.GOOD:
        return -1 if status.lower() in patterns.BAD else 1
    return None


def _score_frame(text: str, lines: Sequence[str]) -> int | None:
    """The sign of what the client wrote around an output: its header, or its ending on the last line."""
    ending = next(
        (line for line in reversed(lines[-8:]) if not patterns.AFTER_ENDING.fullmatch(line.strip())), lines[-1]
    ).strip()
    stated = patterns.XML_ENDING.search(ending) or patterns.ENDING.search(ending[-200:])
    if header := patterns.HEADER.match(text):
        code = next(group for group in header.groups() if group)
    elif stated:
        code = stated[1]
    elif patterns.ERROR_HEADER.match(text) or any(patterns.ABORTED.match(line) for line in lines[-2:]):
        return -1
    else:
        return None
    # Not as a number: a very long one can't be read.
    return 1 if not code.strip("-0") else -1


def _score_output(text: str, lines: Sequence[str]) -> int | None:
    """The sign of an output that ran: its last telling line, a traceback at its end, a shell's error as a whole."""
    if _ends_in_traceback(text):
        return -1
    last = next(
        (line for line in reversed(lines[-patterns.SUMMARY_LINES :]) if not patterns.BELOW_SUMMARY.fullmatch(line)),
        lines[-1],
    ).strip()
    if patterns.TESTS_FAILED.match(last) or any(map(patterns.SUITES_FAILED.match, lines[-patterns.SUMMARY_LINES :])):
        return -1
    if patterns.TESTS_PASSED.match(last):
        return 1
    if patterns.SHELL.match(last) or patterns.EXCEPTION.match(last) or _ends_in_stack(lines):
        return -1
    if len(lines) <= patterns.FEW_LINES and (patterns.SHELL.match(lines[0]) or patterns.ERROR_LINE.match(lines[0])):
        return -1
    # A failure right above other lines: they may be the program's own or somebody's talk, in whatever language.
    if any(map(_tells_failure, lines[-patterns.FEW_LINES - 1 : -1])):
        return None
    return None if is_doubtful(lines) else 1


def _tells_failure(line: str) -> bool:
    return any(form.match(line.strip()) for form in (patterns.TESTS_FAILED, patterns.SHELL))


def _ends_in_traceback(text: str) -> bool:
    """Decide if a text ends with a Python traceback: indented lines, then the exception's own without a gap."""
    begin = text.rfind(patterns.TRACEBACK)
    if begin < 0 or (begin and text[begin - 1] != "\n"):
        return False
    lines = text[begin:].splitlines()[1:]
    message = next((number for number, line in enumerate(lines) if line[:1].strip()), None)
    if message is None:
        return True
    return bool(patterns.EXCEPTION.match(lines[message])) and all(line.strip() for line in lines[message:])


def _ends_in_stack(lines: Sequence[str]) -> bool:
    """Decide if an output ends with a stack trace below an error's line, as other languages print it."""
    above = next((line for line in reversed(lines) if not patterns.STACK.match(line)), "")
    return above != lines[-1] and bool(patterns.STACK_HEAD.match(above.strip()))
