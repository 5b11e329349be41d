"""Reasons not to believe a sign that the classifier read: the message's form, or its place, says something else.

They hold whatever the probabilities are; with one of them the judge abstains. An owner who takes the blame is none of
them: such a message says nothing of the reply, which is a score of 0.
"""

import re

from clawrl_trl.judge import features

SURE = 0.95
"""Least P(-1) of an objection to a reply that did nothing but ask: most messages after one are its answer."""

_FLAGS = re.IGNORECASE
_CONCESSION = re.compile(
    r"\b(i stand corrected|you('re| are| were|r) (absolutely |quite |both )?right|you had it right)\b", _FLAGS
)
_NEAR_MISS = re.compile(
    r"^\W*((ok(ay)?|hm+|well|oh)\W+)?(almost|nearly|not (quite|yet|there)|still not|close,"
    r"|no[,.!] (?!(that|this|it|you|i|we|wait|really|honestly|seriously|need|problem|worries|complaints?|notes?"
    r"|thanks)\b)\w)",
    _FLAGS,
)
_MERE_ATTEMPT = re.compile(
    r"\b(?:thanks?|thank you|thx|cheers|ta|kind of you|good of you|sweet of you|nice of you|bless you)\b[^.!?\n]{0,12}"
    r"\b(?:for trying|for the (?:try|effort|attempt)|to try|for having tried)\b|\byou tried\b|\b(?:nice|good) try\b",
    _FLAGS,
)
"""Thanks for the attempt, which was none for the reply."""
_NEW_MIND = re.compile(
    r"\bchange of (plans?|mind)\b|\bchanged (my|our|their|his|her) minds?\b|\bscrap (that|this|it)\b|\brethink\b"
    r"|\b(on )?second thoughts?\b|\bplans? (have |has )?changed\b|^\W*cancel (that|this|it|please)\b"
    r"|\bactually,? (let['’]?s|make it|go (for|with))\b|\bafter all\b",
    _FLAGS,
)
"""Words of an owner who wants something else now than what was asked, which is no fault of the reply."""

_OWN_FAULT = re.compile(
    r"\b(?:that['’]?s|that (?:was|is)|that one['’]?s|it['’]?s|it (?:was|is)|this is|(?:all|entirely)) "
    r"(?:all |entirely |completely |really |probably )?on me\b"
    r"|\bthat (?:was|is) (?:entirely|all|purely|totally|completely|only|just) (?:me|my doing)\b(?! who\b)"
    # Not "find my mistake", nor "how is that my fault".
    r"|(?<!find )(?<!correct )(?<!not )(?<!n['’]t )(?<!hardly )(?<!that )(?<!is it )"
    r"\bmy (?:own )?(?:stupid |silly |dumb )?(?:fault|bad|mistake|error|doing)\b(?! was\b)",
    _FLAGS,
)

_NOT_SEEN = re.compile(
    r"(?<!\byou )\b(?:have|had|did)(?:n['’]?t| not) (?:actually |really |even |properly |yet )?"
    r"(?:had (?:a chance|time) to )?"
    r"(?:looked at|look at|read|seen|see|tried|try|opened|open|checked|check|tested|test|run|watched) "
    r"(?:it|this|that|them|any of it) ?(?:out |through |over )?(?:myself|yet)\b",
    _FLAGS,
)
"""Words of an owner who has not looked at the reply, and speaks of something else."""

_MARKUP = tuple(
    (re.compile(rf"\b(?:{named})\b", _FLAGS), re.compile(used, re.MULTILINE))
    for named, used in (
        (r"headings?", r"^#{1,6} "),
        (r"bullets?", r"^\s*[-*•] "),
        (r"bold|asterisks", r"\*\*\w"),
        (r"numbering|numbered", r"^\s*\d+[.)] "),
    )
)
"""Markup by the owner's name for it, and in a reply."""


def find_doubt(request: str, reply: str, message: str, score: int | None, objection: float) -> str:
    """Find a reason not to believe a sign; empty if there is none.

    Args:
        request: What the reply answered.
        reply: The reply.
        message: The owner's message after it.
        score: The sign that was read.
        objection: P(-1).
    """
    # Who asks on may be content or puzzled: only a question about the reply is an objection.
    if features.is_bare_question(message) and not (score == -1 and features.is_about_reply(message)):
        return "a question"
    if score == -1 and reply.rstrip(" *_)").endswith("?") and not features.is_about_reply(message):
        return "it may answer the question"
    if score and only_asks(reply) and not (score == -1 and objection >= SURE):
        return "it may answer the question"
    if contradicts(message, score) or (score == 1 and _speaks_of_markup(reply, message)):
        return "its words speak against the sign"
    return ""


def only_asks(reply: str) -> bool:
    """Return whether a reply is nothing but questions to the owner."""
    sentences = features.split_sentences(reply)
    return bool(sentences) and all(sentence.rstrip(" *_)\"'").endswith("?") for sentence in sentences)


def contradicts(message: str, score: int | None) -> bool:
    """Return whether a message's words speak against a sign.

    Who concedes doesn't object, "almost" and thanks for the attempt are no approval, and who wants something else now,
    or has not looked at it yet, says nothing of the reply.
    """
    if score and (_NEW_MIND.search(message) or _NOT_SEEN.search(message)):
        return True
    against = {-1: (_CONCESSION,), 1: (_NEAR_MISS, _MERE_ATTEMPT)}.get(score or 0, ())
    return any(pattern.search(message) for pattern in against)


def _speaks_of_markup(reply: str, message: str) -> bool:
    """Decide if a message without a word of approval names markup that the reply uses ("drop the headings")."""
    if features.CUES["approval"].search(message):
        return False
    return any(named.search(message) and used.search(reply) for named, used in _MARKUP)


def takes_blame(message: str) -> bool:
    """Return whether the owner says that what is wrong is no fault of the reply ("my bad, I meant Sunday")."""
    return bool(_OWN_FAULT.search(message))
