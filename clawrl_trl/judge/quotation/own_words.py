"""Quotations: the part of the owner's message that the owner did not write, told from the owner's own words.

Left out are quoted lines, code fences, indented blocks, forwarded and quoted mails, chat exports, pasted pages, quoted
and reported speech, and the text that a request such as "translate this:" is about. What remains is the owner's. Where
that is in doubt, less remains: words that are left out decide nothing, and no hint is made of them. Takes time in
proportion to the text's length.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from clawrl_trl.gateway.sessions.senders import LABEL, ORDINARY_LABELS
from clawrl_trl.judge.quotation import patterns
from clawrl_trl.judge.quotation.paragraphs import drop_pasted_paragraphs

LONGEST_OWN = 2000
"""Characters above which what remains is taken for a pasted text without any mark, of which nothing is read."""
LONGEST_HEAD = 240
"""Longest line, in characters, that may introduce or ask about the text below it."""
LONG_TEXT = 200
"""Least characters of a text right below or above a request ("what does this mean?") that it is about."""
FEW_PASTED = 3
"""Least lines of what somebody pastes who was asked for a text."""
LAST_LINES = 8
"""Lines at the end of a long text in which a request about it is looked for."""

_FENCE = re.compile(r"\s{0,3}(`{3,}|~{3,})")
_LIST_ITEM = re.compile(r"\s*(?:[-*•+]|\d{1,3}[.)])\s")
_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+")
_COLON = re.compile(r"[:：](?![\d/])| [-–—] ")
ELIDED = "“…”"
"""Stands for a quotation inside one of the owner's sentences, of which no hint is made then."""


@dataclass(frozen=True)
class OwnWords:
    """The part of a message that the owner wrote.

    Attributes:
        text: All of it; empty if the message holds nothing of the owner's.
        remarks: The same without a request about a text that came along: only this can object to the reply.
    """

    text: str
    remarks: str


def extract_own_words(text: str, request: str = "", reply: str = "") -> OwnWords:
    """The owner's own words in a message from which the client's marks are already cut.

    Args:
        text: The message.
        request: The request before it: after one about a text, "next one:" introduces another.
        reply: The reply before it: several lines after one that asks for a text are that text.
    """
    message = text.strip("\r\n").splitlines()
    asked = reply[-LONGEST_HEAD:]
    if patterns.ASKS_FOR_OPINIONS.search(asked) or (len(message) >= FEW_PASTED and patterns.INVITES.search(asked)):
        return OwnWords("", "")
    lines, question = drop_pasted_paragraphs(_drop_blocks(message))
    joined = "\n".join(lines)
    elided = _elide_quotations(joined)
    # A quotation that stands alone leaves no mark.
    carries = len(lines) < len(message) or (elided != joined and ELIDED not in elided)
    lines = _drop_transcript(elided.split("\n"))
    own, about = _split_off_material(lines, carries, _is_about_text(request))
    # Too long already: the patterns for reports need not run over it.
    if sum(map(len, own)) > 2 * LONGEST_OWN:
        return OwnWords("", "")
    remarks = "\n".join(remark for line in own if (remark := _drop_reports(line)))
    about = _drop_reports(f"{about} {question}".strip())
    if len(remarks) + len(about) > LONGEST_OWN or patterns.STROKES.fullmatch(remarks + about):
        return OwnWords("", "")
    return OwnWords(" ".join(part for part in (remarks, about) if part), remarks)


def _is_about_text(request: str) -> bool:
    head = request[:LONGEST_HEAD]
    return bool(patterns.ABOUT_TEXT.search(head) or patterns.HANDLES_TEXT.search(head))


def _drop_blocks(lines: Sequence[str]) -> list[str]:
    """Lines without fences, quoted and indented lines, tags, chat exports, and without a mail to the end."""
    kept: list[str] = []
    closers = _find_closing_tags(lines)
    letter = _find_letter(lines)
    first_rule, last_rule = _find_rules(lines)
    fence, tag, quoting = "", "", False
    for number, line in enumerate(lines):
        mark = line.strip()
        if first_rule <= number <= last_rule:
            continue
        if fence:
            fence = "" if mark.startswith(fence) and not mark.strip(fence[0]) else fence
        elif tag:
            tag = "" if f"</{tag}" in line.lower() else tag
        elif opening := _FENCE.match(line):
            fence = opening[1]
        elif (opened := patterns.TAG.match(line)) and closers.get(opened[1].lower(), -1) >= number:
            tag = "" if f"</{opened[1].lower()}" in line.lower() else opened[1].lower()
        elif number == letter or mark == "--" or _begins_mail(lines, number):
            break
        elif mark.startswith((">", "＞")):
            # Chat clients quote a whole block with one ">>>", mail programs mark every line.
            quoting = mark.startswith(">>>")
        elif quoting and mark:
            continue
        elif _is_of_others(line) or _is_indented(line, kept):
            quoting = False
        else:
            quoting = False
            kept.append(line)
    return kept


def _find_closing_tags(lines: Sequence[str]) -> dict[str, int]:
    """The last line on which each tag is closed."""
    last: dict[str, int] = {}
    for number, line in enumerate(lines):
        if "</" in line:
            last |= dict.fromkeys((name.lower() for name in re.findall(r"</(\w{1,12})", line)), number)
    return last


def _find_rules(lines: Sequence[str]) -> tuple[int, int]:
    """The first and the last line between which a ruled text stands; one without an end goes on to the last line."""
    ruled = [number for number, line in enumerate(lines) if patterns.RULED.match(line)]
    if not ruled:
        return len(lines), -1
    return ruled[0], ruled[-1] if len(ruled) > 1 else len(lines) - 1


def _find_letter(lines: Sequence[str]) -> int:
    """The line on which a letter begins below other words: its greeting, where a closing follows; -1 for none."""
    filled = [number for number, line in enumerate(lines) if line.strip()]
    # From the second line on: a greeting at the very beginning is the owner's own.
    greeting = next((number for number in filled[1:] if patterns.GREETING.match(lines[number])), None)
    if greeting is None:
        return -1
    return greeting if any(patterns.CLOSING.match(lines[n]) for n in filled if n > greeting) else -1


def _begins_mail(lines: Sequence[str], number: int) -> bool:
    """Decide if everything from a line on is somebody's mail."""
    line = lines[number]
    if patterns.FORWARDED.match(line):
        return True
    if patterns.HEADER.match(line):
        return number + 1 < len(lines) and bool(patterns.HEADER.match(lines[number + 1]))
    if not _is_attribution(line):
        return False
    # Below an attribution marked lines are dropped one by one, for the owner may answer between them.
    below = next((after.strip() for after in lines[number + 1 : number + 4] if after.strip()), "")
    return not below.startswith(">")


def _is_of_others(line: str) -> bool:
    return bool(patterns.CHAT_LINE.match(line) or patterns.MARKED_UP.match(line)) or _is_attribution(line)


def _is_attribution(line: str) -> bool:
    return line.rstrip().endswith((":", "：")) and bool(patterns.ATTRIBUTION.match(line))


def _is_indented(line: str, kept: Sequence[str]) -> bool:
    """Decide if a line is indented as code is, or below a colon."""
    if not line.strip() or not line[0].isspace():
        return False
    if line.startswith(("    ", "\t")) and not _LIST_ITEM.match(line):
        return True
    above = next((before.strip() for before in reversed(kept[-4:]) if before.strip()), "")
    return line.startswith("  ") and above.endswith((":", "：")) and not _LIST_ITEM.match(line)


def _elide_quotations(text: str) -> str:
    """Text whose quotations are elided: those of three words or more, and all behind a verb of saying.

    A word or two that are merely mentioned ('write "twelve"') belong to the owner's sentence.
    """
    parts, end = [], 0
    for match in patterns.QUOTATION.finditer(text):
        before = text[max(0, match.start() - 80) : match.start()]
        line = before.rpartition("\n")[2]
        alone = not line.strip() and text[match.end() : match.end() + 1] in ("", "\n")
        words = match[0].split()
        long = len(words) > 2 or (len(match[0]) > 12 and not match[0].isascii())
        if alone or long or patterns.SPEECH_VERB.search(line) or patterns.ABOUT_TEXT.search(line):
            parts += [text[end : match.start()], "" if alone else ELIDED]
            end = match.end()
    return "".join([*parts, text[end:]])


def _drop_transcript(lines: Sequence[str]) -> list[str]:
    """Lines without those of a transcript, in which several speakers are named."""
    dated = [bool(patterns.DATED.match(line)) for line in lines]
    if sum(dated) > 1:
        return [line for line, is_dated in zip(lines, dated, strict=True) if not is_dated]
    labels = [LABEL.match(line) for line in lines]
    speakers = {label["name"].casefold() for label in labels if label}
    if len(speakers) < 2 or speakers & ORDINARY_LABELS:
        return list(lines)
    return [line for line, label in zip(lines, labels, strict=True) if not label]


def _split_off_material(lines: Sequence[str], carries: bool, continues: bool) -> tuple[list[str], str]:
    """Lines without the text that a request is about, and that request.

    Args:
        lines: Lines of the owner's, and of what has no marks of its own.
        carries: A marked block was already left out.
        continues: The request before was about a text.
    """
    length = 0
    for number, line in enumerate(lines):
        above, length = length, length + len(line)
        # In a long text only the end is searched: patterns on every line would take too long.
        if above > 2 * LONGEST_OWN and number + LAST_LINES < len(lines):
            continue
        if (cut := _find_material(lines, number, continues)) is not None:
            material = carries or any(part.strip(" :：-–—") for part in (line[cut:], *lines[number + 1 :]))
            return _split_request(lines[:number], line[:cut].rstrip(" :：-–—"), material)
        if len(line) > LONGEST_HEAD or not patterns.ABOUT_TEXT.search(line):
            continue
        below = lines[number + 1 :]
        points = patterns.POINTS.search(line) and above >= LONG_TEXT
        if points or patterns.ABOVE.search(line):
            return list(below), line
        if _is_about_next(below):
            return _split_request(lines[:number], line, material=True)
        if carries or ELIDED in line:
            own, request = _split_request(lines[:number], line, material=True)
            return [*own, *below], request
    return list(lines), ""


def _find_material(lines: Sequence[str], number: int, continues: bool) -> int | None:
    """Find where a text begins in a line that the words before it ask for, introduce or ascribe; `None` if nowhere."""
    line, below = lines[number], lines[number + 1 : number + 4]
    for colon in _COLON.finditer(line, 0, LONGEST_HEAD):
        head = _SENTENCE_END.split(line[: colon.start()])[-1]
        if patterns.ABOUT_TEXT.search(head) or patterns.REVISES_THIS.search(head):
            return colon.end()
        quotes = line[colon.end() :].strip(" .?!") == ELIDED
        if (continues or quotes) and patterns.CONTINUES.match(line[: colon.start()]):
            return colon.end()
        # A dash introduces a text only after a request; elsewhere it joins two halves of a sentence.
        if colon[0].strip() in "-–—":
            continue
        listed = _LIST_ITEM.match(next((after for after in below if after.strip()), ""))
        introduces = not line[colon.end() :].strip() and not listed and patterns.INTRODUCES.search(head)
        if introduces or patterns.ANNOUNCES_SPEECH.search(head) or (not listed and patterns.SOURCED.match(head)):
            return colon.end()
    return None


def _split_request(before: Sequence[str], head: str, material: bool) -> tuple[list[str], str]:
    """The lines with what stands in front of the request on its line, and the request; no request without material."""
    *remarks, request = _SENTENCE_END.split(head.strip())
    if not material:
        return [*before, head], ""
    if patterns.ANNOUNCES_SPEECH.search(request) and not patterns.ABOUT_TEXT.search(request):
        request = ""
    return [*before, " ".join(remarks)], request


def _is_about_next(below: Sequence[str]) -> bool:
    """Decide if a request without a colon is about the text below it."""
    text = "".join(below).strip()
    apart = len(below) > 1 and not below[0].strip()
    return bool(text) and (apart or len(text) >= LONG_TEXT)


def _drop_reports(line: str) -> str:
    """A line without the sentences that report somebody's words, and without those of which only marks are left."""
    sentences = [part.strip() for part in _SENTENCE_END.split(line)]
    own = [part for part in sentences if part.strip(" \t*_#>-“”…\"'.,") and not patterns.REPORTED.search(part)]
    return " ".join(own)
