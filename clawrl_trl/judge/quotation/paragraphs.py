"""Paragraphs of a message that carry somebody else's text and have no mark of it.

Who pastes a page, a ticket or a banner between two of their own paragraphs seldom quotes it. It is told by what
introduces it ("comment by helpbot:", "this is in the notes:") and by where the owner asks about it: a question in the
last paragraph is about what stands above. Only messages of several paragraphs, and announced texts, lose anything.
"""

import re
from collections.abc import Sequence

_LIST_ITEM = re.compile(r"\s*(?:[-*•+]|\d{1,3}[.)])\s")
_ENDS_IN_COLON = re.compile(r"[:：]\s*\Z")
_HEADING_WORDS = 6
_OWN_WORDS = re.compile(r"\b(?:i|i'm|i've|you|your|me|my|we|it|that|this|not|no|wrong|please|thanks|why)\b", re.I)
_SOURCE = re.compile(
    r"\b(?:found|read|see|saw|seen|says?|said|got|sent|there's|here's|from|on|in|at)\b.{0,60}?"
    r"\b(?:pages?|sites?|websites?|forums?|read ?me|leaflets?|flyers?|banners?|notices?|newsletters?|pop-?ups?"
    r"|brochures?|tickets?|posts?|mails?|e-?mails?|letters?|templates?|signs?|boards?|apps?|screens?|groups?|chats?"
    r"|prints?|forms?|addend\w+|github|facebook|reddit|slack|wiki)\b",
    re.I,
)
"""What a head names whose list is that of a page, not the owner's."""
ANNOUNCED = re.compile(
    r"\b(?:has|had|have|shows?|showed|says?|said|reads?|states?|stated|contains?|carries|bears|goes|went|starts?|begins?"
    r"|there(?:'s| is| was)|here(?:'s| is)) "
    r"(?:this|the following|like this|like so|as follows|(?:something|words) like)\b"
    r"(?=(?: (?:in|on|at|under|below) [^.!?\n]{1,40})?[.!:]?\s*\Z)"
    r"|\b(?:statement|text|message|letter|mail|email|comment|note|entry|wording|transcript) (?:follows|is below)\b",
    re.I,
)
"""A sentence behind which somebody else's words stand."""
_OWN_TEXT = re.compile(
    r"\b(?:should|needs?|needed|want\w*|meant|expect\w*|rather|prefer|make|write|try|use|put|supposed"
    r"|i (?:said|asked|wrote|get|got)|as i|my (?:own|points?|list|wishes|notes)|points?|things?|problems?|issues?"
    r"|changes?)\b",
    re.I,
)
"""What a head says whose text is the owner's: a draft, a list of points, an error of the reply's."""
_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+")


def drop_pasted_paragraphs(lines: Sequence[str]) -> tuple[list[str], str]:
    """Lines without the paragraphs that the owner introduces or asks about, and the question about them."""
    *above, last = _split_paragraphs(lines) or [[]]
    asks = any("?" in line or "？" in line for line in last)
    kept: list[list[str]] = []
    introduced = False
    for paragraph in above:
        own = [] if introduced or (asks and _begins_with_heading(paragraph)) else list(paragraph)
        head = _find_head(own)
        own = own if head is None else own[: head + 1]
        # What is introduced goes on to the last paragraph, which is the owner's again.
        introduced = introduced or head is not None or bool(own and _introduces(own[-1]))
        kept.append(own)
    if kept == above:
        return list(lines), ""
    if asks:
        return _join_paragraphs(kept), " ".join(last)
    return _join_paragraphs([*kept, last]), ""


def drop_announced(line: str) -> str:
    """A line without what stands behind a sentence that announces somebody's words, questions excepted."""
    sentences = _SENTENCE_END.split(line)
    for number, sentence in enumerate(sentences[:-1]):
        if ANNOUNCED.search(sentence):
            return " ".join([*sentences[:number], *(part for part in sentences[number + 1 :] if part.endswith("?"))])
    return line


def _split_paragraphs(lines: Sequence[str]) -> list[list[str]]:
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return [paragraph for paragraph in paragraphs if paragraph]


def _join_paragraphs(paragraphs: Sequence[Sequence[str]]) -> list[str]:
    return [line for paragraph in paragraphs if paragraph for line in (*paragraph, "")]


def _introduces(line: str) -> bool:
    head = _SENTENCE_END.split(line)[-1]
    if _OWN_TEXT.search(head):
        return False
    return any(pattern.search(head) for pattern in (_ENDS_IN_COLON, ANNOUNCED, _SOURCE))


def _find_head(paragraph: Sequence[str]) -> int | None:
    """Position of the line that introduces what follows; a list is the owner's unless its head names a source."""
    for number, line in enumerate(paragraph):
        if _ENDS_IN_COLON.search(line):
            listed = number + 1 < len(paragraph) and _LIST_ITEM.match(paragraph[number + 1])
            if not _OWN_TEXT.search(line) and (not listed or _SOURCE.search(line)):
                return number
    return None


def _begins_with_heading(paragraph: Sequence[str]) -> bool:
    """Decide if several lines begin with one that is no sentence of the owner's."""
    first = paragraph[0].strip()
    is_short = len(first.split()) <= _HEADING_WORDS and first[-1:] not in ".!?"
    return len(paragraph) > 1 and is_short and not _OWN_WORDS.search(first)
