"""Features of a message that need no model: sentences, cues, and overlap with what was said before.

The classifier gets these numbers beside the sentence embeddings, because an embedding blurs exactly what decides
a verdict: a negation, a "but" after the thanks, whether the numbers in the message are new (the next problem) or
the old ones (the same request once more). Patterns, order and count of the cues (`CUES`) are part of the trained head:
changing one takes a new training.
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_FLAGS = re.IGNORECASE
_REPLY = (
    r"\b(it|that|this|these|those|the (answer|reply|response|comment|text|format(ting)?|style|tone|wording|layout"
    r"|steps?|result|last|list)|your)\b"
)
CUES: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern, _FLAGS)
    for name, pattern in {
        "approval": (
            r"\b(thanks?|thank you|thx|ta|cheers|great|perfect|(?<!not )good|nice|love(ly|d)?"
            r"|excellent|awesome|wonderful|brilliant|exactly|works?|worked|solved|fixed|correct|agreed"
            r"|yes|yep|super|cool|fine|neat|beautiful|tasty|delicious|better now|just (right|what)"
            r"|happy|satisfied|impressive|lgtm|well done)\b"
        ),
        "approval_first": (
            r"^\W*(thanks?|thank you|thx|ta|cheers|great|perfect|good|nice|love(ly)?|excellent|awesome"
            r"|ok(ay)?|wonderful|brilliant|exactly|yes|yep|super|cool|fine|neat|got it|alright"
            r"|right)\b"
        ),
        "change_first": (
            r"^\W*(please |pls |can (you|u) |could (you|u) |would you (mind )?|just |then "
            r"|let's )*(make|making|rewrite|redo|rephrase|reword|write (it|that|this)|change|remove"
            r"|drop|lose|skip|cut|shorten|simplify|add|include|mention|use|try|fix|undo|revert|replace"
            r"|rename|put|turn|take|leave|keep|get rid|give (it|me (only|less|more|something))"
            r"|be (more|less|a|kind|brief|nice|friendl)|say (it|that)|do (it|that) again|answer (in"
            r"|with)|explain (it|that|where|how|more)|stop|start with|list)\b"
        ),
        "please": r"\b(please|pls|can (you|u)|could (you|u)|would you|would you mind)\b",
        "wish": (
            r"\b(i('d| would)? (rather|prefer|like|want|need)|i wanted|i asked|i said|i meant"
            r"|should(n't)?|needs? to|has to|it needs|must|want it)\b"
        ),
        "contrast": r"\b(but|though|however|yet|although|except|only|still)\b",
        "negation": (
            r"(\b(not|no|never|without|none|nothing|nope|neither|don't|dont|cannot|can't|didn't"
            r"|doesn't)\b|n't\b)"
        ),
        "no_first": r"^\W*(no|nope|not|don't|never|without|wrong|incorrect|bad|hmm?)\b",
        "degree": r"\b(too|more|less|fewer|bit|enough|\w+er)\b",
        "redo": (
            r"\b(again|instead|once more|rather than|redo|another (version|one|try)|different|else"
            r"|change|undo)\b"
        ),
        "wrong": (
            r"\b(wrong|incorrect|mistake|error|broken|broke|fails?|failed|failing|crash(es|ed)?|bug"
            r"|misses|missing|missed|forgot|ignored|left out|useless|isn't|makes no sense"
            r"|misunderstood|misread)\b"
        ),
        "reply": _REPLY,
        "reply_first": r"^\W*" + _REPLY,
        "next_first": (
            r"^\W*((ok(ay)?|great|good|thanks?|thank you|perfect|nice|fine|cool|alright|right|got it"
            r"|done|yes|and)\W+)*(next|now|another:|another one:|one more:|here is|here's|and (this"
            r"|what|how|who|which|of|for|a|in|now)|problem \d|what about|on to|let's (move|talk"
            r"|do the next))\b"
        ),
        "task": (
            r"\b(problem|task|question|ticket|text|input|given)s?\b ?\d*:|\bhow (many|much)\b.*\?"
            r"|\b(solve|grade|calculate|translate|summari[sz]e)\b"
        ),
        "new_task_first": (
            r"^\W*((ok(ay)?|great|good|thanks?|thank you|perfect|nice|fine|cool|alright|now|then|and"
            r"|next)\W+)*(write (a|an|one|some|my)|show me how|how (do|would|can) i|translate|plan"
            r"|book|find|suggest|solve|merge|commit|ship|deploy|please (commit|grade|solve|merge)"
            r"|can you (help|do (this|the next)))\b"
        ),
        "question": r"\?",
        "why": (
            r"^\W*(why|what (is|does|do|are)|is|does|do|how (did|does|long|far|old|many|fast)|who"
            r"|which|where|can i)\b"
        ),
        "me": r"\bi('m| am|'ve| have| will|'ll)\b",
        "raw_error": r"\b\w+(Error|Exception)\b|command not found|permission denied|\berror:",
        "you": r"\b(you|u|your|yours|you're|ur)\b",
        "third_party": (
            r"\b(my|our|the|that|this|his|her|their) (\w+ )?(boss|manager|client|customer|colleague|landlord|bank"
            r"|airline|vendor|supplier|neighbou?rs?|team|office|company|people|guys?|train|agency|support|intern)\b"
            r"|\b(he|she|they)('s|'ve|'re)?\b"
        ),
        "own_fault": (
            r"\b(my (bad|fault|mistake|error|own)|sorry|oops|i (should(n't| not)? have|shouldve|forgot|misread"
            r"|mixed up|mistyped)|silly me|on me)\b"
        ),
        "pause": r"^\W*(brb|one (sec|moment|minute)|a (sec|moment|minute)|hang on|hold on|wait|back|later|let me)\b",
        "stop": r"\b(stop|abort|cancel|halt|undo|revert|don't|dont)\b",
        "surrender": (
            r"\b(forget (it|that|i)|never ?mind|give up|giving up|do it myself|by hand|someone else|drop it"
            r"|leave it|waste of time|no point)\b"
        ),
        "extension": (
            r"\b(also|another|one more|as well|too|in addition|same (for|with|again|thing))\b|^\W*(and|now)\b"
        ),
        "topic_change": r"\b(btw|by the way|unrelated|off.topic|different (thing|topic)|fyi|random)\b",
        "late": r"\b(yesterday|last (week|time|night|month)|the other day|this morning|weeks? ago|earlier)\b",
        "irony": (
            r"\b(bravo|congrat\w*|genius|masterpiece|slow clap|thanks for nothing|thanks to you|just brilliant"
            r"|well done|great job|oh (great|joy|wonderful|lovely|perfect)|impressive|fantastic|marvellous|splendid)\b"
        ),
        "quote": r"[\"“”«»]|\b(wrote|says|said|replied|told me)\b",
        "exclaims": r"!",
        "happy_emoji": (
            "[\U0001f44d\U0001f600-\U0001f60e\U0001f929\U0001f970\U0001f389\U0001f64f\u2764\u2705\U0001f44f\U0001f4af]"
        ),
        "sad_emoji": (
            "[\U0001f44e\U0001f612-\U0001f61f\U0001f620-\U0001f62d\U0001f641\U0001f644\u274c\U0001f926\U0001f928]"
        ),
    }.items()
}
"""Patterns counted in the first sentence and in the whole message; the order is the head's column order."""

_SENTENCE_END = re.compile(
    r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)(?<!\bM[rs]\.)(?<!\bDr\.)(?<!\bno\.(?=\s+\d))\s+|\n+", re.I
)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)?")
_WORD = re.compile(r"[^\W\d_]{3,}")
_COMMON = frozenset(
    """
    the and for that this with you are was were has have had not but can could would please what how many much does
    did now then there them they from into about your our his her its who why when which will just one two more
    """.split()  # noqa: SIM905 - a list of words reads better as text
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a message, in order; a line break ends one too, the stop of "no. 5" or "e.g." none."""
    return [part.strip() for part in _SENTENCE_END.split(text) if part.strip(" \t*_#>-")]


def is_bare_question(message: str) -> bool:
    """Return whether a message only asks: no thanks, nothing approved, no announced or self-contained next problem."""
    parts = split_sentences(message)
    if not parts or not all(part.endswith("?") for part in parts) or len(_NUMBER.findall(message)) > 1:
        return False
    # A question with thanks, a wish or a new task in it does more than ask.
    more = ("approval", "task", "new_task_first", "please", "happy_emoji")
    return not any(CUES[name].search(message) for name in more)


def is_about_reply(message: str) -> bool:
    """Return whether a message speaks of the reply or to its author, or wants something different."""
    against = ("wish", "contrast", "negation", "degree", "redo", "wrong", "change_first", "please", "reply")
    return bool(re.search(r"\byou\b", message, _FLAGS)) or any(CUES[name].search(message) for name in against)


def compute_features(request: str, response: str, message: str) -> NDArray[np.float32]:
    """Compute the features of one message of the owner's: shape `(CUE_COUNT,)`, each in [0, 1]."""
    first = (split_sentences(message) or [""])[0]
    # The first sentence apart: what comes first tells praise from objection ("no", "thanks, but").
    values = [float(bool(pattern.search(first))) for pattern in CUES.values()]
    values += [float(bool(pattern.search(message))) for pattern in CUES.values()]
    values += [*_measure_overlap(request, response, message), min(len(message.split()), 40) / 40, len(message) < 4]
    return np.asarray(values, dtype=np.float32)


def _measure_overlap(request: str, response: str, message: str) -> Sequence[float]:
    earlier = set(_NUMBER.findall(request + " " + response))
    numbers = set(_NUMBER.findall(message))
    requested, words = _collect_words(request), _collect_words(message)
    shared = len(requested & words) / max(1, len(requested | words))
    return (
        len(numbers & earlier) / max(1, len(numbers)),
        min(1.0, len(numbers - earlier) / 3),
        shared,
        len(_collect_words(response) & words) / max(1, len(words)),
        # The same words and no new number: the request once more.
        float(shared > 0.4 and not numbers - earlier),
        float(response.rstrip(" *_)").endswith("?")),
    )


def _collect_words(text: str) -> set[str]:
    return {word for word in _WORD.findall(text.lower()) if word not in _COMMON}


FEATURE_COUNT = 2 * len(CUES) + 8
"""Length of what `compute_features` returns."""
