"""Provenance of messages and hints: only the owner's words may become a hint, and not all of them.

Text of tools, web pages, events and clients never becomes one. What is refused of the owner's own words is in
`refusals`.

An environment that practises for the operator has a checker, which may write hints on its own episodes and on nothing
else. They are known by their source (`clawrl_trl.ledger.episodes.HINT_SOURCE`), short and without markers.
"""

import re
from collections.abc import Iterable, Sequence

from clawrl_trl.gateway.sessions.reading import cut_inserts
from clawrl_trl.judge.quotation.own_words import extract_own_words
from clawrl_trl.judge.quotation.patterns import CHAT_LINE
from clawrl_trl.judge.refusals import MAX_HINT
from clawrl_trl.judge.steering.invisible import cut_invisible

_MARKERS = re.compile(
    r"<\|[^|>]{0,40}\|>|</?(?:s|think|tool_call|tool_response"
    r"|start_of_turn|end_of_turn|eos|bos|pad|unk)>|\[/?INST\]|<<\/?SYS>>",
    re.I,
)
_BRACKETS = str.maketrans("<>[]", "    ")
MOST_NESTED = 8
"""Markers inside each other that are taken out one by one; of a text with more all brackets go."""
_STAMP = re.compile(r"^\s*\[[^\]\n]{0,24}\d{1,2}:\d{2}[^\]\n]{0,24}\]\s*")
_FRAMED = re.compile(r"<<<BEGIN_\w+>>>.*?(<<<END_\w+>>>|\Z)", re.S)
"""A text that some program put into a frame: never the owner's words, whichever program it was."""


def extract_owner_words(text: str) -> str:
    """The owner's remarks in a message: without a client's marks, text of others and requests about such text."""
    return extract_own_words(unwrap(text)).remarks


def unwrap(text: str) -> str:
    """A message without a client's time stamp, what it wraps around it, and what nobody sees."""
    text = cut_invisible(_FRAMED.sub("", cut_inserts(text)))
    # The stamp of a pasted chat stays: by it the lines are known to be somebody else's.
    text = text if CHAT_LINE.match(text) else _STAMP.sub("", text)
    return "\n".join(text.splitlines()).strip()


def neutralise(text: str) -> str:
    """Text in which no chat template's marker is left that could open or close a message."""
    # Again and again: what stood around a marker that was taken out may form another one.
    for _ in range(MOST_NESTED):
        text, count = _MARKERS.subn(" ", text)
        if not count:
            return text
    return text.translate(_BRACKETS)


def clean_checker_words(text: str) -> str:
    """The words of an environment's checker as a hint: without markers and control characters, cut short."""
    printable = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in neutralise(text))
    lines = printable.splitlines()
    plain = "\n".join(line for line in (" ".join(line.split()) for line in lines) if line)
    return plain if len(plain) <= MAX_HINT else plain[: MAX_HINT - 1] + "…"


def list_tool_names(tools: Sequence[object] | None) -> list[str]:
    """Names of a request's tools."""
    names = []
    for tool in tools or ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            names.append(function["name"])
    return names


def is_grounded(hint: str, owner_texts: Iterable[str], share: float = 0.6) -> bool:
    """Return whether `share` of a hint's content words are the owner's own, compared by their first 4 letters."""
    stems = {word[:4] for text in owner_texts for word in _split_content_words(text)}
    words = _split_content_words(hint)
    return bool(words) and sum(word[:4] in stems for word in words) >= share * len(words)


def _split_content_words(text: str) -> list[str]:
    return [word for word in re.findall(r"[^\W\d_]{4,}", text.lower()) if word not in _GLUE]


_GLUE = frozenset(
    [
        "this",
        "that",
        "with",
        "your",
        "reply",
        "answer",
        "response",
        "user",
        "users",
        "wants",
        "want",
        "should",
        "please",
        "would",
        "could",
        "write",
        "make",
        "from",
        "have",
        "been",
        "instead",
        "into",
        "than",
        "when",
        "there",
        "their",
        "they",
        "them",
        "more",
        "rather",
        "include",
        "keep",
    ]
)
