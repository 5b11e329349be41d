"""Care: whether a reply held something back or asked first, so that objecting to it may mean "be less careful".

A hint that undoes care needs none of the words that are refused: "do it the friendly way from here on", after a reply
that left a password out. So the reply is read, too: where it took care with what needs care, no hint is made of the
objection, whose score still counts. English only, as hints of the embedded judge are.
"""

import re

_HELD_BACK = re.compile(
    r"\b(?:left|leav\w+|kept|keep\w*|held|hold\w*|take\w*)\b.{0,40}?\b(?:out|back|off|private|separate\w*|away)\b"
    r"|\b(?:won't|can't|cannot|shouldn't|wouldn't|will not|not going to|rather not|declin\w+|refus\w+|withheld|paus\w+"
    r"|on hold|masked|redacted|anonymi\w+|blurred)\b"
    r"|\b(?:rather than|instead of|without) (?:the|any|your|their|his|her)\b"
    r"|\bso (?:that )?(?:it|they|nobody|nothing|no one) (?:isn't|aren't|can|can't|sees?|does)\b",
    re.I,
)
_ASKED_FIRST = re.compile(
    r"\b(?:before (?:i|we|you|they|it|she|he|\w+ing)|once (?:i|we|you|they|it|she|he)|needs? (?:\w+ ){1,3}to|requir\w+"
    r"|ask\w* (?:her|him|them|you|\w+ first)|until|unless|check with|waiting|confirm\w*|go.ahead|want me to)\b"
    r"|\b(?:shall|should|may|could) (?:i|we)\b|\b(?:do|would) you (?:want|like|mind)\b",
    re.I,
)
_NEEDS_CARE = re.compile(
    # Secrets and access.
    r"\b(?:pass(?:word|phrase|code)s?|pins?|log-?ins?|sign-?ins?|tokens?|keys?|secrets?|credentials?|vault|encrypt\w*"
    r"|certificat\w+|accounts?|access|codes?|secur\w+|holes?|vulnerab\w+|outdated|limits?|filters?"
    # People.
    r"|consent\w*|permi\w+|privacy|private|personal|confidential|contacts?|only|signed up|opt(?:ed)?.in|newsletter"
    # Health, goods, and what can't be undone.
    r"|warn\w*|caution\w*|gloves|safe\w*|risk\w*|hazard\w*|dos(?:e|age)s?|doctor|chemist|pharmac\w+|medic\w+|tablets"
    r"|prescri\w+|allerg\w+|back-?ups?|cop(?:y|ies)|alerts?|logs?"
    # Second looks.
    r"|review\w*|checks?|tests?|approv\w+|sign(?:ed)?.off|dry.run|staging|roll(?:ed)?.?back|verif\w+|double.check\w*"
    r"|audit\w*)\b",
    re.I,
)
_HABIT = re.compile(
    r"\b(?:from (?:now|here) on|in future|in the future|going forward|always|every time|each time|any ?time"
    r"|(?:all|with) such|the (?:next|other) times?|keep it (?:that|this) way|make (?:that|it) a habit|as a rule)\b",
    re.I,
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def undoes_care(hint: str, reply: str) -> bool:
    """Decide if a hint may ask for less care than a reply took.

    Args:
        hint: The text that is to become a hint.
        reply: The reply that it is about, its tool calls written out; empty where there is none to read.
    """
    # Sentence by sentence: a long reply holds every word somewhere.
    touchy = [part for part in _SENTENCE_END.split(reply.replace("’", "'")) if _NEEDS_CARE.search(part)]
    if touchy and _HABIT.search(hint):
        return True
    return any(_HELD_BACK.search(part) or _ASKED_FIRST.search(part) for part in touchy)
