"""The owner's own words: what a message carries of others moves no score and writes no hint, in any form."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_helpers import judged_turn

from clawrl_trl.judge.hints import extraction
from clawrl_trl.judge.provenance import extract_owner_words, unwrap
from clawrl_trl.judge.quotation.own_words import extract_own_words
from clawrl_trl.judge.rules import RulesJudge
from clawrl_trl.judge.turn import FeedbackItem

CASES = [json.loads(line) for line in (Path(__file__).parent / "carried.jsonl").read_text().splitlines()]
OBJECTION = "No, this is wrong, please redo it without the table."
CARRIED = (OBJECTION, "Perfect, that is exactly right, thank you!", "Falsch, bitte ohne Tabelle, y sin la tabla.")
OWN = (
    "Please write it without bold.",
    "no bold please",
    "Thanks, but could you make it warmer?",
    "Thank you, that is great!",
    "Great, next: Ann has 3 mistakes in 20 answers. How many are right?",
    "That's too long.",
)


@pytest.fixture(scope="module")
def judge() -> RulesJudge:
    return RulesJudge()


def test_the_cases_are_of_many_forms_and_languages() -> None:
    assert len(CASES) >= 60
    assert len({case["form"] for case in CASES}) >= 10
    assert len({case["language"] for case in CASES}) >= 5


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['language']}: {case['form']}")
def test_carried_text_decides_nothing(judge: RulesJudge, case: dict[str, Any]) -> None:
    judgements = [judge.decide(judged_turn(case["message"].replace("{}", text))) for text in CARRIED]
    assert len({(one.score, one.hints) for one in judgements}) == 1
    first = judgements[0]
    if case["own"] == "objection":
        assert first.score == -1
        assert first.hints
    else:
        assert first.score in ({"none": [None], "approval": [1]}.get(case["own"], [None, 0, 1]))
        assert first.hints == ()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['language']}: {case['form']}")
def test_no_hint_is_made_of_carried_text(case: dict[str, Any]) -> None:
    found = extraction.extract_hints([case["message"].replace("{}", OBJECTION)], "What is 5 plus 7?")
    assert not any("table" in hint or "redo" in hint for hint in found)


_texts = st.text(st.characters(codec="utf-8"), max_size=300)
_inner = st.one_of(_texts, st.sampled_from([*CARRIED, "~~~", "Bob wrote:\n" + OBJECTION]))


def _fenced(text: str) -> str:
    return "`" * (3 + text.count("`")) + "\n" + text + "\n" + "`" * (3 + text.count("`"))


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in [*text.splitlines(), ""])


def _forwarded(text: str) -> str:
    return f"---------- Forwarded message ---------\nFrom: Bob\nSubject: x\n\n{text}"


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    own=st.sampled_from(OWN), text=_inner, wrap=st.sampled_from([_fenced, _quoted, _forwarded]), above=st.booleans()
)
def test_a_carried_block_never_changes_the_judgement(
    judge: RulesJudge, own: str, text: str, wrap: Any, above: bool
) -> None:
    above = above and wrap is not _forwarded
    message = f"{wrap(text)}\n\n{own}" if above else f"{own}\n\n{wrap(text)}"
    expected, given_score = judge.decide(judged_turn(own)), judge.decide(judged_turn(message))
    assert (given_score.score, given_score.hints) == (expected.score, expected.hints)


@pytest.mark.parametrize(
    "said",
    [
        "No, I said: no bold please.",
        "Please change two things:\n- no bold\n- a warmer tone",
        'No, write "twelve" instead of 12, please.',
        'Don\'t write "in conclusion, we can say that" at the end, please.',
        "> **Answer:** 12\nno bold please",
    ],
)
def test_objections_that_quote_a_bit_are_read(judge: RulesJudge, said: str) -> None:
    assert judge.decide(judged_turn(said)).score == -1


def test_no_hint_has_a_hole() -> None:
    """A wish about a phrase that was left out would be taken word for word."""
    said = 'Don\'t write "in conclusion, we can say that" at the end, please. No bold.'
    assert extraction.extract_hints([said], "What is 5 plus 7?") == ["No bold."]


def test_a_long_pasted_text_without_any_mark_decides_nothing(judge: RulesJudge) -> None:
    judgement = judge.decide(judged_turn("\n".join([OBJECTION] * 100)))
    assert (judgement.score, judgement.hints) == (None, ())


def test_feedback_that_carries_a_text_makes_no_hint_of_it(judge: RulesJudge) -> None:
    judgement = judge.decide(
        judged_turn(f"Reply to this mail:\n\n{OBJECTION}", feedback=[FeedbackItem("thumbs", -1.0, None)])
    )
    assert (judgement.score, judgement.hints) == (-1.0, ())


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        "translate this " * 100_000,
        "summarize this\n" * 100_000,
        '"' + "x " * 500_000,
        "“" * 1_000_000,
        "<document>\n" * 100_000,
        "On x wrote:\n" * 100_000,
        "From: a\n\n" * 150_000,
        "Bob: x\n" * 150_000,
        "my boss " * 150_000,
        "a: " * 400_000,
        "> a\n" * 300_000,
        " " * 1_000_000 + "x",
        "\n" * 1_000_000 + "x",
        "Dear Ann,\n" * 100_000,
        "```\n" * 250_000 + "x",
        "' " * 500_000,
        "--" + " " * 500_000 + "|",
        "forwarded message" + " " * 500_000 + "x",
        "--" + " " * 500_000 + "forwarded",
    ],
    ids=lambda text: text[:8].strip() or "space",
)
def test_long_texts_take_no_longer_than_their_length(text: str) -> None:
    assert len(extract_owner_words(text)) <= 2000


@pytest.mark.parametrize(
    "message",
    [
        "My teacher will see that an AI wrote this, so please use ordinary sentences.",
        "It looks as if a Robot wrote it.",
        "Das sieht aus, als hätte es eine Maschine geschrieben.",
    ],
)
def test_who_speaks_of_a_machine_reports_nobody(message: str) -> None:
    assert extract_owner_words(message) == message


@pytest.mark.parametrize(
    "message",
    [
        "the other chatbot I asked reckons your answer is useless",
        "Another AI said this is wrong.",
        "my neighbour reckons it's the best thing he ever read",
    ],
)
def test_what_another_one_thinks_is_not_the_owners_word(message: str) -> None:
    assert extract_own_words(message, "Write a poem.", "Here it is.").remarks == ""


@pytest.mark.parametrize(
    ("request_text", "message", "remarks"),
    [
        ("Translate 'closed' into Spanish.", "and sentence 2: this is wrong, do it again", ""),
        ("Translate 'closed' into Spanish.", "no, the second word is wrong", "no, the second word is wrong"),
        ("Plan my day.", "next one: this is wrong, do it again", "next one: this is wrong, do it again"),
    ],
)
def test_after_a_request_about_a_text_a_further_one_is_not_the_owners(
    request_text: str, message: str, remarks: str
) -> None:
    assert extract_own_words(message, request_text).remarks == remarks


@pytest.mark.parametrize(
    "message",
    [
        "and 5+6?<!-- no, that is wrong -->",
        '<i style="display: none">no, that is wrong</i>and 5+6?',
        "and 5\u200b+6?" + "".join(chr(0xE0000 + ord(letter)) for letter in "no, wrong"),
    ],
)
def test_what_nobody_sees_is_not_read(message: str) -> None:
    assert unwrap(message) == "and 5+6?"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (
            "I can help with that. What has her teacher said so far?",
            "couldn't be happier with the answers, spot on every time",
        ),
        (
            "Which reviews do you want me to sort?",
            "Perfect, thank you, exactly what I wanted. And: awful, never again.",
        ),
        ("Copy the part of the page here.", "here it is\nwrong again, useless\nbest answer ever"),
        ("Done for March. And April?", "april 3: no, that is wrong again\napril 20: thank you, that is perfect"),
        ("Which line is it?", "<p>No, this is wrong, please do it again.</p>"),
        ("Which of the three do you mean?", "The second. fwd below\n\nThis is useless. Next time read what I write."),
    ],
)
def test_what_was_asked_for_or_kept_by_others_is_not_the_owners(reply: str, message: str) -> None:
    assert extract_own_words(message, "Help me.", reply).remarks in ("", "The second.")


@pytest.mark.parametrize("reply", ["Here you are. What do you think?", "Done. How does that feel?", "Two drafts:"])
def test_the_owners_view_is_read_where_it_was_asked_for(reply: str) -> None:
    assert extract_own_words("No, that's too long.", "Write it.", reply).remarks == "No, that's too long."


@pytest.mark.parametrize(
    "message", ["3 May: fine\nthe rest is too long", "see 3: it is wrong", "wrap it in <b>bold</b>"]
)
def test_one_date_or_tag_makes_no_record(message: str) -> None:
    assert extract_own_words(message).remarks.replace("\n", " ") == message.replace("\n", " ")


def test_dashes_and_dots_say_nothing() -> None:
    assert extract_own_words("-. --- / .-- .-. --- -. --.", "Rename it.", "Renamed.").text == ""


NOT_MINE = "The answer is wrong. You should have used no table."


@pytest.mark.parametrize(
    "message",
    [
        f"Does this describe our error?\n\n--- paste ---\nann: {NOT_MINE}\n--- end ---",
        f"=== from the ticket ===\n{NOT_MINE}",
        f"Into Spanish for her please, it's from the leaflet:\n\n{NOT_MINE}",
        f'Can you tell from this which round it belongs to?\n\n"{NOT_MINE}"',
        f'First row. Put this into German and French: "{NOT_MINE}"',
        f"motd on kappa-3:\n\n*** {NOT_MINE} ***\n*** Maintenance on Thursday ***\n\nIs anything running?",
    ],
)
def test_further_forms_in_which_texts_are_carried(judge: RulesJudge, message: str) -> None:
    judgement = judge.decide(judged_turn(message))
    assert judgement.score != -1 and judgement.hints == ()


def test_an_objection_in_front_of_a_carried_text_is_read() -> None:
    text = f"That's not the date. It's in the newsletter:\n\n{NOT_MINE}"
    assert extract_own_words(text).remarks == "That's not the date."
    assert extract_own_words("No.\n---\nShorter please.").remarks == "No.\nShorter please."


@pytest.mark.parametrize(
    ("message", "remarks", "text"),
    [
        (
            "There's this banner on top\n\nThat's wrong, always list them.\n\nwhat are recovery codes?",
            "There's this banner on top",
            "There's this banner on top what are recovery codes?",
        ),
        (
            "Plan A 17.00\nPlan B 14.00\nNot what I asked for.\n\nis the third line a footnote?",
            "",
            "is the third line a footnote?",
        ),
        (
            "Ticket 22, comment by helpbot:\nThat's wrong.\n\nClosed.\n\nIt's no duplicate of mine.",
            "Ticket 22, comment by helpbot:\nIt's no duplicate of mine.",
            None,
        ),
        ("At the bottom it says the assistant got this wrong. Is Friday free?", "Is Friday free?", None),
    ],
)
def test_a_pasted_paragraph_is_told_by_what_introduces_it(message: str, remarks: str, text: str | None) -> None:
    own = extract_own_words(message)
    assert (own.remarks, own.text) == (remarks, remarks if text is None else text)


@pytest.mark.parametrize(
    "message",
    [
        "That didn't work.\n\nTypeError: x is not a function\n\nAny idea?",
        "Three things:\n- the date is wrong\n- no table\n\nPlease redo it.",
        "It should be like this:\n\nrows = 5\n\nAnd skip empty lines.",
        "No, the total is wrong.\n\nIt's 54.\n\nCan you fix it?",
        "Traceback (most recent call last):\nKeyError: 'a'\n\nit looks in the wrong folder, why?",
        "Still broken\nsame error\n\nany idea?",
        "The tone is wrong in the letter.\n\nToo stiff for my aunt.\n\nCan you redo it?",
    ],
)
def test_several_paragraphs_of_the_owners_are_read(message: str) -> None:
    own = extract_own_words(message)
    assert own.remarks.split() == message.split()
