"""What may become a hint: everyday corrections of code and tools, and no command that teaches more than a manner."""

import json
from pathlib import Path

import pytest

from clawrl_trl.judge.hints import extraction
from clawrl_trl.judge.refusals import find_refusal, is_forbidden

CASES = [json.loads(line) for line in (Path(__file__).parent / "hint_cases.jsonl").read_text().splitlines()]
EVERYDAY = [case["said"] for case in CASES if case["hint"]]
DANGEROUS = [case["said"] for case in CASES if not case["hint"]]
TOOLS = ["browser_open", "web_fetch", "read", "write", "exec"]


@pytest.mark.parametrize("said", EVERYDAY)
def test_an_everyday_correction_is_a_hint(said: str) -> None:
    assert find_refusal(said, TOOLS) is None
    candidates = extraction.extract_hints([said], "Can you do the thing we talked about?", TOOLS)
    assert candidates, "it passes on the whole way from the message to the hint"
    assert candidates[0].rstrip(".").casefold() == said.rstrip(".").casefold()


@pytest.mark.parametrize("said", DANGEROUS)
def test_what_teaches_more_than_a_manner_is_refused(said: str) -> None:
    assert find_refusal(said, TOOLS) is not None
    assert extraction.extract_hints([said], "Can you do the thing we talked about?", TOOLS) == []


@pytest.mark.parametrize("said", DANGEROUS)
@pytest.mark.parametrize("frame", ["Use f-strings, and {}.", "No bold please: {}", "`foo()` is fine but {}"])
def test_a_good_word_before_it_does_not_let_it_through(said: str, frame: str) -> None:
    assert find_refusal(frame.format(said), TOOLS) is not None


@pytest.mark.parametrize(
    ("before", "forbidden"),
    [
        ("never use ", True),
        ("please don't run it with ", True),
        ("use pip --user instead of ", True),
        ("", False),
        ("always use ", False),
        ("never work without ", False),
        ("don't forget ", False),
        ("why don't you use ", False),
        ("don't wait, use ", False),
        ("not like that but with ", False),
        ("don't let anything stop you from ", False),
    ],
)
def test_a_forbidden_command(before: str, forbidden: bool) -> None:
    assert is_forbidden(before) is forbidden
