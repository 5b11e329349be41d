"""What the judge takes for English, and what it leaves alone."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawrl_trl.judge import language

GERMAN = "Wann fährt der letzte Zug nach Köln?"


@pytest.mark.parametrize(
    "text",
    [
        "That is not what I asked for.",
        "nope",
        "No.",
        "ok",
        "super",
        "SHORTER",
        "ohhhhh i get it",
        "soooo good",
        "I was ready to say perfect. Then I timed it.",
        "Now run `python3 wörterbuch_prüfen.py --straße`",
        'What does "das ist nicht richtig" mean?',
        "Please open https://example.de/über-uns/impressum and read it to me",
        "what is π times two",
        "It’s ﬁne, but make it 𝘀𝗵𝗼𝗿𝘁𝗲𝗿",
        "👍",
        "...",
        "12",
        "",
    ],
)
def test_english(text: str) -> None:
    assert language.is_english(text, "What is 5 plus 7?")


@pytest.mark.parametrize(
    "text",
    [
        "Das ist falsch.",
        "nein",
        "toll",
        "non",
        "tak",
        "Thanks. Das ist falsch.",
        "thanks, 明白了",
        "это wrong",
        "错",
        "λάθος",
        "لا",
        "plus court",
        "jaaaa super",
        "nooooo das war nix",
        "Thanks for that, it was good and I like it, aber die Farbe stimmt nicht.",
        '"Das ist falsch."',
        "`错了`",
        "falsch/unbrauchbar/sinnlos",
        "xqzv brmpf",
        "ｄａｓ ｉｓｔ ｎｉｃｈｔ ｒｉｃｈｔｉｇ",
    ],
)
def test_not_english(text: str) -> None:
    assert not language.is_english(text, "What is 5 plus 7?")


@pytest.mark.parametrize("text", ["no", "ok", "super", "perfect", "bravo", "so?"])
def test_a_word_of_many_languages_is_read_in_the_language_of_the_request(text: str) -> None:
    assert language.is_english(text, "Who painted the Mona Lisa?")
    assert not language.is_english(text, GERMAN)


def test_who_asked_in_another_language_may_go_on_in_english() -> None:
    assert language.is_english("Sorry, I meant the first train on Sunday morning.", GERMAN)


def test_english_words_that_a_foreign_sentence_introduces_are_not_read() -> None:
    said = "Auf dem Bildschirm stand das hier: This reply is not helpful. It should have been one word. Stimmt das?"
    assert not language.is_english(said, GERMAN)
    assert not language.is_english(said, "When does the train leave?")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_has_an_answer(text: str, request: str) -> None:
    assert language.is_english(text, request) in (True, False)


@pytest.mark.slow
def test_the_gateway_does_not_load_the_detector() -> None:
    code = "import sys, clawrl_trl.gateway.app; sys.exit('py3langid' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
