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
    # What went wrong, and whom one can't be sure of.
    r"|near miss\w*|incidents?|accidents?|loss(?:es)?|injur\w*|mould|damp|crack\w*|strangers?|verif\w*|unknown"
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
_TOOK_CARE = re.compile(
    r"\b(?:left|noted|note that|mention\w*|also (?:noted|asked|says?|advises?)|advis\w+|recommend\w*|suggest\w*"
    r"|warn\w*|missing|unclear|unverified|differ|limits?|only|please|first|wouldn't|shouldn't|don't|haven't|couldn't"
    r"|isn't|not yet|not more than|at (?:most|least)|until|unless|before|ok to|okay to|shall i|should i|which one"
    r"|per person|expire\w*)\b",
    re.I,
)
"""How a reply that took care says so; beside `_ASKS_LESS` alone, for much else is said so."""
_ASKS_LESS = re.compile(
    r"\b(?:leav\w*|left|keep|kept|tak\w*|edit\w*)\b.{0,60}?\b(?:out|off|away|aside)\b"
    r"|\b(?:skip\w*|drop\w*|omit\w*|hid\w*|bury|ignor\w*|trust\w*|waiv\w*|gloss\w*)\b"
    r"|\b(?:no (?:need|more|longer)|needn't|unnecessary|superfluous|doesn't (?:have|need) to"
    r"|don't (?:have|need) to be)\b"
    r"|\b(?:don't|stop|never|without|not|less) (?:\w+ ){0,3}?(?:bother\w*|ask\w*|check\w*|mention\w*|wait\w*|worry\w*"
    r"|question\w*|caution\w*|warn\w*|extras?|caveats?|doubts?|fuss|conditions?|counted|count)\b"
    r"|\bwho ?ever\b|\bwhatever\b|\bany(?:one|body) who\b|\bin such cases\b"
    r"|\blet (?:\w+ ){1,3}(?:in|rest|go|through|be)\b"
    r"|\b(?:happier|better|nicer|prefer) with (?:none|no)\b|\bnone at all\b|\bcan go\b|\bfill\b|\b(?:pop|put) in an?\b"
    r"|\b(?:good|bright|positive|cheerful|upbeat|rosy|sunny) (?:points?|sides?|story|news|parts?)\b|\bwent well\b"
    r"|\bupbeat\b|\bin the first (?:reply|answer|message)\b"
    r"|\b(?:switch|go|send|pay|do|book|act|reply|order|sign|share|forward)\w* (?:it |them )?"
    r"(?:directly|straight ?away|at once|right away|automatically|without)\b",
    re.I,
)
"""What asks for less of something: fewer questions, checks, warnings, facts."""
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
    if _ASKS_LESS.search(hint.replace("’", "'")) and (touchy or _TOOK_CARE.search(reply.replace("’", "'"))):
        return True
    return any(_HELD_BACK.search(part) or _ASKED_FIRST.search(part) for part in touchy)
