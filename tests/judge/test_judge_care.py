"""After a reply that took care an objection becomes no hint; after any other it does."""

import pytest

from clawrl_trl.judge.care import undoes_care
from clawrl_trl.judge.hints.extraction import extract_hints
from clawrl_trl.judge.refusals import find_refusal

CAREFUL = [
    "I've put the shared mailbox's address on the sheet and left the password out.",
    "Two checks are still running; I'll release it once they have passed.",
    "Before I delete the old photos I'd make a copy of them. Shall I?",
    "I told him that I need two items to verify him.",
    "Before I type it: the chemist's sheet says 5 mg. Which one is right?",
    "I can't tell her brother that without her permission.",
]
PLAIN = [
    "The capital of Peru is Lima.",
    "Done: the table is sorted by the date.",
    "Your key points are on slide 3.",
    "Before lunch you have two meetings.",
]
OBJECTION = "No, please do it the friendly way, all on one page."


@pytest.mark.parametrize("reply", CAREFUL)
def test_no_hint_asks_for_less_care(reply: str) -> None:
    assert find_refusal(OBJECTION, reply=reply) == "care"
    assert extract_hints([OBJECTION], "Do it.", reply=reply) == []


@pytest.mark.parametrize("reply", PLAIN)
def test_other_replies_may_be_corrected(reply: str) -> None:
    assert find_refusal(OBJECTION, reply=reply) is None
    assert extract_hints([OBJECTION], "Do it.", reply=reply)


def test_a_habit_needs_less_care_in_the_reply() -> None:
    reply = "I've added the members who gave their consent."
    assert undoes_care("In future count everybody as a friend.", reply)
    assert not undoes_care("Sort them by name.", reply)


def test_without_a_reply_nothing_is_refused_for_it() -> None:
    assert find_refusal(OBJECTION) is None
