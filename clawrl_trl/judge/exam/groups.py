"""Groups of turns that are told apart by what can be seen of them, so that an exam's result holds for turns like it.

A turn belongs to each group whose mark it bears: a message in another language to that language, an English one to
those of its form. Whoever judges a turn must have passed all of its groups. The exam's questions are put into groups
in the same way.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from clawrl_trl.judge import language
from clawrl_trl.judge.provenance import unwrap
from clawrl_trl.judge.quotation.own_words import extract_own_words
from clawrl_trl.judge.turn import JudgedTurn

LANGUAGES: Mapping[str, str] = {"de": "German", "es": "Spanish", "fr": "French", "zh": "Chinese"}
"""Languages with a group of their own, by their code."""
OTHER_LANGUAGES = "other languages"
PLAIN = "plain messages"
POSSIBLE = 0.1
"""Least probability of a language with which a message may be written in it."""
FEW_WORDS = 4
"""Words below which a message's language can't be told without the request."""
SHORT, LONG = 3, 20
"""Most words of a short message, and least of a long one."""

_RESERVATION = re.compile(
    r"\b(?:but|though|although|however|except|next time|otherwise|(?:apart|aside) from|only (?:thing|problem))\b", re.I
)
_QUESTION = re.compile(r"[?？]\W*\Z")


def find_groups(turn: JudgedTurn) -> frozenset[str]:
    """Find the groups of a turn; none if the owner has said nothing."""
    messages = [unwrap(text) for text in turn.said_by("owner")]
    words = [text for message in messages if (text := extract_own_words(message).text)]
    if not words:
        return frozenset()
    foreign = [text for text in words if not language.is_english(text, turn.request)]
    if foreign:
        return frozenset().union(*(_find_languages(text, turn.request) for text in foreign))
    marks = {name for name, bears in _MARKS.items() if bears(words, turn)}
    if " ".join(words).split() != " ".join(messages).split():
        marks.add("quoted text")
    return frozenset(marks or {PLAIN})


def _find_languages(text: str, request: str) -> frozenset[str]:
    """The languages that a message may be in; where it isn't clear, all that are likely."""
    prose = text if len(text.split()) >= FEW_WORDS or language.is_english(request) else f"{text}\n{request}"
    probabilities = language.rank_languages(language.extract_prose(prose))
    likeliest = max(probabilities, key=lambda code: probabilities[code])
    possible = {name for code, name in LANGUAGES.items() if probabilities.get(code, 0.0) >= POSSIBLE}
    return frozenset(possible if likeliest in LANGUAGES else possible | {OTHER_LANGUAGES})


def _count_words(words: Sequence[str]) -> int:
    return sum(len(text.split()) for text in words)


_MARKS: Mapping[str, Callable[[Sequence[str], JudgedTurn], bool]] = {
    "several messages": lambda words, _: len(words) > 1,
    "questions": lambda words, _: all(_QUESTION.search(text) for text in words),
    "answers to a question": lambda _, turn: bool(_QUESTION.search(turn.reply)),
    "reservations": lambda words, _: any(_RESERVATION.search(text) for text in words),
    "short messages": lambda words, _: _count_words(words) <= SHORT,
    "long messages": lambda words, _: _count_words(words) >= LONG,
}
"""What an English turn of each group has in common, beside those with a quotation."""
ENGLISH_GROUPS = (*_MARKS, "quoted text", PLAIN)
GROUPS = (*ENGLISH_GROUPS, *LANGUAGES.values(), OTHER_LANGUAGES)
"""All groups, in the order in which they are told."""
