"""Language of the owner's words: decides which messages the English classifier may read.

Detection is py3langid's, offline from its wheel. Very short messages ("no", "ok", "super") belong to many languages
and detection can't tell them apart: they count as English in words of a list, and only where the request before them
isn't in another language; after such a request a message must be clearly English. What is undecided is not read.
Nothing is loaded before the first message with letters.
"""

import re
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Any

from clawrl_trl.judge import features

WORDS = Path(__file__).with_name("english_words.txt")
"""Words of which a message, however short, counts as English."""
LEAST = 0.1
"""Least P(English) of a message that is read; 139 languages share the rest."""
CLEAR = 0.7
"""The same after a request in another language."""
FOREIGN = 0.5
"""Least probability of one other language with which a text counts as written in it."""
KNOWN, FEW_WORDS = 0.6, 4
"""Share of listed words with which a text counts as English whatever the detector says, and the least words of it."""
MAX_CHARACTERS = 1000

_NO_PROSE = re.compile(
    r"""```.*?(?:```|\Z) | `[^`\n]*`                       # code
    | "[^"\n]*" | “[^”\n]*” | (?<!\w)'[^'\n]*'(?!\w)     # quotations
    | \w+://\S+ | \S*[\\/_=<>{}\[\]@\#$]\S*             # addresses, paths, identifiers""",
    re.S | re.X,
)
_WORD = re.compile(r"[^\W\d_]+")
_DRAWN_OUT = re.compile(r"([^\W\d_])\1{2,}")
"""A letter of a word such as "sooo", which no language has."""
_CLAUSE = re.compile(r"[.!?,;:\n()]+")


def is_english(text: str, request: str = "") -> bool:
    """Decide if a message is English, and nothing but English.

    Code, quotations, paths and addresses don't count unless there is nothing else; a message without letters (an
    emoji, a number) has no language and passes.

    Args:
        text: The message.
        request: What was asked before; it decides about words that several languages share.
    """
    prose = extract_prose(text)
    if _has_other_script(prose):
        return False
    words = _WORD.findall(prose)
    if not words:
        return True
    english = rank_languages(prose)["en"]
    if _is_foreign(extract_prose(request)):
        is_read = english >= CLEAR
    elif all(map(is_known, words)):
        return True
    else:
        is_read = english >= LEAST or _is_mostly_known(prose)
    # Clause by clause, too: one foreign clause in an English message could hold the objection, or say whose words the
    # English ones are.
    return is_read and not any(
        _is_foreign(clause) and not _is_mostly_known(clause) for clause in _split_clauses(prose)
    )


def extract_prose(text: str) -> str:
    """The prose of a text in lower case, or all of it where there is no prose; at most `MAX_CHARACTERS`.

    Words that are drawn out have their letter once: a detector goes by letters in a row.
    """
    # Cut again at the end, for normalising may lengthen a text.
    whole = unicodedata.normalize("NFKC", text[:MAX_CHARACTERS]).lower()[:MAX_CHARACTERS]
    whole = _DRAWN_OUT.sub(r"\1", whole)
    prose = _NO_PROSE.sub(" ", whole)
    return prose if _WORD.search(prose) else whole


def rank_languages(prose: str) -> dict[str, float]:
    """The probability of each language that a text may be written in, by its two or three letters."""
    return dict(_load_identifier().rank(prose))


def _split_clauses(prose: str) -> list[str]:
    return [clause for clause in _CLAUSE.split(prose) if len(_WORD.findall(clause)) > 1]


def _has_other_script(prose: str) -> bool:
    return any(not _is_latin(word) for word in _WORD.findall(prose))


def _is_latin(word: str) -> bool:
    """Decide if a word is written in Latin letters; a lone Greek letter is a symbol."""
    names = [unicodedata.name(letter, "") for letter in word]
    return all("LATIN" in name or "MODIFIER" in name for name in names) or (
        len(names) == 1 and names[0].startswith("GREEK")
    )


def _is_foreign(prose: str) -> bool:
    probabilities = rank_languages(prose)
    return probabilities["en"] < LEAST and max(probabilities.values()) >= FOREIGN


def _is_mostly_known(prose: str) -> bool:
    words = _WORD.findall(prose)
    return len(words) >= FEW_WORDS and sum(map(is_known, words)) >= KNOWN * len(words)


def is_known(word: str) -> bool:
    """Decide if a word in lower case is on the list of English words, or is one that approves or objects."""
    return word in _load_vocabulary() or any(
        features.CUES[name].fullmatch(word) for name in ("approval", "no_first", "wrong")
    )


@lru_cache(maxsize=1)
def _load_vocabulary() -> frozenset[str]:
    return frozenset(WORDS.read_text(encoding="utf-8").split())


@lru_cache(maxsize=1)
def _load_identifier() -> Any:
    # Imported where it is used: a run that sees only tool results needs none of it.
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
