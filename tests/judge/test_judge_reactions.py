"""Plain short reactions in many languages, none of them trained on: hardly ever the opposite of what was meant."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from judge_helpers import judged_turn

from clawrl_trl.judge.rules import RulesJudge
from clawrl_trl.judge.turn import FeedbackItem
from recipes.judge import examples

DATA = json.loads((Path(__file__).parent / "reactions.json").read_text())
REACTIONS: list[dict[str, Any]] = DATA["reactions"]
LANGUAGES = sorted({reaction["language"] for reaction in REACTIONS})
KINDS: dict[str, dict[str, Any]] = DATA["kinds"]
ABSTENTIONS = 0.3
MOST_WRONG = 0.03


@pytest.fixture(scope="module")
def judge() -> RulesJudge:
    return RulesJudge()


def score(judge: RulesJudge, reaction: dict[str, Any]) -> float | None:
    request, reply = DATA["contexts"][reaction["context"]]
    return judge.decide(judged_turn(reaction["message"], request=request, reply=reply)).score


def normalised(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower())) or text.strip()


def test_the_reactions_are_many_and_were_never_trained_on() -> None:
    trained = {normalised(example.message) for example in examples.load()}
    assert len(REACTIONS) >= 200 and len(LANGUAGES) >= 12
    assert all(count >= 10 for count in Counter(reaction["language"] for reaction in REACTIONS).values())
    assert set(KINDS) == {reaction["kind"] for reaction in REACTIONS}
    assert [reaction["message"] for reaction in REACTIONS if normalised(reaction["message"]) in trained] == []


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_sign_is_hardly_ever_the_opposite(judge: RulesJudge, language: str) -> None:
    said = [reaction for reaction in REACTIONS if reaction["language"] == language]
    wrong = [one["message"] for one in said if score(judge, one) in KINDS[one["kind"]]["wrong"]]
    assert len(wrong) <= MOST_WRONG * len(said), wrong


@pytest.mark.slow
@pytest.mark.parametrize("split", ["dev", "held-out"])
def test_english_is_read_and_not_merely_passed_over(judge: RulesJudge, split: str) -> None:
    said = [one for one in REACTIONS if (one["language"], one["split"]) == ("en", split) and one["kind"] != "question"]
    scores = [(score(judge, one), KINDS[one["kind"]]["right"]) for one in said]
    assert sum(given is None for given, _ in scores) <= ABSTENTIONS * len(said)
    assert sum(given == right for given, right in scores) >= (1 - ABSTENTIONS - MOST_WRONG) * len(said)


@pytest.mark.parametrize("language", [name for name in LANGUAGES if name not in ("en", "mixed")])
def test_other_languages_are_not_read(judge: RulesJudge, language: str) -> None:
    read = [one["message"] for one in REACTIONS if one["language"] == language and score(judge, one) is not None]
    assert read == []


@pytest.mark.parametrize(
    ("said", "allowed"),
    [
        ("no, that was wrong", {-1}),
        ("nope, wrong", {-1}),
        ("no, that was wrong: it is on Saturday", {-1}),
        ("hm, my friend got something else. can you check the sum?", {-1, None}),
        ("tl;dr?", {-1, None}),
        ("Now run `python3 check.py`", {1, None}),
        ("Das ist falsch.", {None}),
        ("Nein, das ist falsch.", {None}),
        ("错了", {None}),
        ("No hace falta poner títulos", {None}),
    ],
)
def test_plain_words_mean_what_they_say(judge: RulesJudge, said: str, allowed: set[float | None]) -> None:
    assert judge.decide(judged_turn(said)).score in allowed


@pytest.mark.parametrize(
    "said", ["And what is the second highest?", "is it in France or Italy?", "who climbed it first?"]
)
def test_a_question_after_gibberish_approves_of_nothing(judge: RulesJudge, said: str) -> None:
    request, reply = DATA["contexts"]["gibberish"]
    assert judge.decide(judged_turn(said, request=request, reply=reply)).score is None


GERMAN = "Bitte ohne fette Schrift. Und schreib ganze Sätze."


@pytest.mark.parametrize(
    "feedback",
    [
        [],
        [FeedbackItem("thumbs", -1.0, None)],
        [FeedbackItem("thumbs", -1.0, GERMAN)],
        [FeedbackItem("correction", None, GERMAN)],
        [FeedbackItem("text", None, GERMAN)],
    ],
)
def test_no_hint_is_made_of_what_was_not_understood(judge: RulesJudge, feedback: list[FeedbackItem]) -> None:
    judgement = judge.decide(judged_turn(GERMAN, feedback=feedback))
    explicit = any(one.value is not None or one.kind == "correction" for one in feedback)
    assert judgement.score == (-1 if explicit else None)
    assert judgement.hints == () and judgement.hint_source is None


def test_the_english_part_of_several_messages_is_judged_and_hinted_alone(judge: RulesJudge) -> None:
    english = "Please write it without bold."
    said = [("owner", {"role": "user", "content": text}) for text in (GERMAN, english)]
    judgement = judge.decide(judged_turn(said))
    assert judgement.score == -1 and judgement.hints == (english,)
    assert judgement.detail["reason"] == "not English"
