"""Paragraphs of a message that carry somebody else's text and have no mark of it.

Who pastes a page, a ticket or a banner between two of their own paragraphs seldom quotes it. It is told by what
introduces it ("comment by helpbot:", "found this on their forum") and, where the last paragraph asks something, by an
entry at its beginning: a table's row, a version. Only messages of several paragraphs lose anything.
"""

import re
from collections.abc import Sequence

_LIST_ITEM = re.compile(r"\s*(?:[-*•+]|\d{1,3}[.)])\s")
_ENDS_IN_COLON = re.compile(r"[:：]\s*\Z")
_ENTRY_WORDS = 6
_ENTRY = re.compile(r"[\d$#|=<>/\\]")
"""What a table's row, a version or a prompt holds, and a short line of the owner's ("still broken") does not."""
_PLACES = (
    r"(?:pages?|sites?|websites?|forums?|read ?me|leaflets?|flyers?|banners?|notices?|newsletters?|pop-?ups?"
    r"|brochures?|tickets?|posts?|mails?|e-?mails?|letters?|templates?|signs?|boards?|apps?|screens?|groups?|chats?"
    r"|prints?|forms?|addend\w+|github|facebook|reddit|slack|wiki)"
)
_SOURCED = re.compile(rf"\b(?:says?|said|from|on|in|at)\b.{{0,60}}?\b{_PLACES}\b", re.I)
"""What a head with a colon names whose list is that of a page, not the owner's."""
_FOUND = re.compile(rf"\b(?:found|read|saw|seen|got|sent|there's|here's)\b.{{0,60}}?\b{_PLACES}\b", re.I)
"""A sentence that says where the text below comes from; the place alone doesn't, it may be what the reply is about."""
_OWN_TEXT = re.compile(
    r"\b(?:should|needs?|needed|want\w*|meant|expect\w*|rather|prefer|make|write|try|use|put|supposed"
    r"|i (?:said|asked|wrote|get|got)|as i|my (?:own|points?|list|wishes|notes)|points?|things?|problems?|issues?"
    r"|changes?|trouble|traceback|errors?|now|next)\b",
    re.I,
)
"""What a head says whose text is the owner's: a draft, a list of points, an error, the next task."""
_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+")


def drop_pasted_paragraphs(lines: Sequence[str]) -> tuple[list[str], str]:
    """Lines without the paragraphs that the owner introduces or asks about, and the question about them."""
    *above, last = _split_paragraphs(lines) or [[]]
    asks = any("?" in line or "？" in line for line in last)
    kept: list[list[str]] = []
    introduced = False
    for paragraph in above:
        own = [] if introduced or (asks and _begins_with_entry(paragraph)) else list(paragraph)
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
    return any(pattern.search(head) for pattern in (_ENDS_IN_COLON, _FOUND))


def _find_head(paragraph: Sequence[str]) -> int | None:
    """Position of the line that introduces what follows; a list is the owner's unless its head names a source."""
    for number, line in enumerate(paragraph):
        if _ENDS_IN_COLON.search(line):
            listed = number + 1 < len(paragraph) and _LIST_ITEM.match(paragraph[number + 1])
            if not _OWN_TEXT.search(line) and (not listed or _SOURCED.search(line) or _FOUND.search(line)):
                return number
    return None


def _begins_with_entry(paragraph: Sequence[str]) -> bool:
    """Decide if several lines begin with an entry: no sentence of the owner's."""
    first = paragraph[0].strip()
    is_short = len(first.split()) <= _ENTRY_WORDS and first[-1:] not in ".!?"
    return len(paragraph) > 1 and is_short and bool(_ENTRY.search(first))
