"""Provenance of messages and hints: only the owner's words may become a hint, and not all of them.

A hint is put before the teacher as if the user had written it, and what the teacher then does is distilled into
the weights. So text of tools, web pages, events and clients never gets here, and of the owner's own words those
are refused that would teach more than a manner of answering: links, tools, secrets, instructions about
instructions, code, and the markers of chat templates.

An environment that practises for the operator has a checker, which may write hints on its own episodes and on nothing
else. They are known by their source (`clawrl_trl.ledger.episodes.HINT_SOURCE`), short and without markers.
"""

import re
from collections.abc import Iterable, Sequence

from clawrl_trl.gateway.sessions.reading import cut_inserts
from clawrl_trl.judge.quotation import ELIDED, extract_own_words
from clawrl_trl.judge.quotation_patterns import CHAT_LINE

MAX_HINT = 200
"""Longest hint, in characters."""

_REFUSED = {
    "quotation": re.compile(ELIDED),
    "link": re.compile(
        r"https?:|ftp:|www\.|\b\w[\w.-]*\.(com|org|net|io|dev|app|ru|cn|xyz)\b|\b[\w.+-]+@[\w-]+\.\w+", re.I
    ),
    "code": re.compile(
        r"```|~~~|[{}<>]|\$\(|`[^`]*`|(?:^|\s)(?:sudo|rm -|curl |wget |import \w|def \w+\()|&&|\|\|", re.I
    ),
    "tool": re.compile(
        r"\b(tool_?calls?|function_?call|<tool|call the \w+ tool|use the \w+ tool|run the command)\b", re.I
    ),
    "secret": re.compile(
        r"\b(api[_ -]?key|password|passwd|secret|token|credential"
        r"|private key|bearer)s?\b|\b(sk|pk|ghp|xox[bp])[-_]\w{8,}"
        r"|\bAKIA[0-9A-Z]{12,}|\b[A-Za-z0-9+/_-]{32,}={0,2}",
        re.I,
    ),
    "policy": re.compile(
        r"\b(system|developer) (prompt|message|role|instruction)s?\b"
        r"|\bjailbreak|\bguardrails?\b|\bpolic(y|ies)\b|\bfrom now on\b"
        r"|\b(ignore|disregard|forget|override|bypass|obey)\b.{0,40}\b(previous"
        r"|prior|above|earlier|all|any|instructions?|rules?"
        r"|prompts?|guidelines?|safety)\b|\byou are (now|no longer|dan"
        r"|an? (ai|assistant|model|unrestricted))\b|\bpretend\b"
        r"|\b(reward|score|rating|verdict|vote)\b",
        re.I,
    ),
    "template": re.compile(r"<\|.*?\|>|\[/?INST\]|</?s>|<<SYS>>|\[Hint from|<(start|end)_of_turn>|<think", re.I),
}

_MARKERS = re.compile(
    r"<\|[^|>]{0,40}\|>|</?(?:s|think|tool_call|tool_response"
    r"|start_of_turn|end_of_turn|eos|bos|pad|unk)>|\[/?INST\]|<<\/?SYS>>",
    re.I,
)
_STAMP = re.compile(r"^\s*\[[^\]\n]{0,24}\d{1,2}:\d{2}[^\]\n]{0,24}\]\s*")
_FRAMED = re.compile(r"<<<BEGIN_\w+>>>.*?(<<<END_\w+>>>|\Z)", re.S)
"""A text that some program put into a frame: never the owner's words, whichever program it was."""


def extract_owner_words(text: str) -> str:
    """The owner's remarks in a message: without a client's marks, text of others and requests about such text."""
    return extract_own_words(unwrap(text)).remarks


def unwrap(text: str) -> str:
    """A message without a client's time stamp and what it wraps around it."""
    text = _FRAMED.sub("", cut_inserts(text))
    # The stamp of a pasted chat stays: by it the lines are known to be somebody else's.
    text = text if CHAT_LINE.match(text) else _STAMP.sub("", text)
    return "\n".join(text.splitlines()).strip()


def neutralise(text: str) -> str:
    """Text in which no chat template's marker is left that could open or close a message."""
    # Again and again: what stood around a marker that was taken out may form another one.
    while _MARKERS.search(text):
        text = _MARKERS.sub(" ", text)
    return text


def clean_checker_words(text: str) -> str:
    """The words of an environment's checker as a hint: without markers and control characters, cut short."""
    printable = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in neutralise(text))
    lines = printable.splitlines()
    plain = "\n".join(line for line in (" ".join(line.split()) for line in lines) if line)
    return plain if len(plain) <= MAX_HINT else plain[: MAX_HINT - 1] + "…"


def find_refusal(hint: str, tool_names: Iterable[str] = ()) -> str | None:
    """Find the reason why a text may not become a hint; `None` when it may."""
    plain = hint.strip()
    if len(plain) < 3:
        return "too short"
    if len(plain) > MAX_HINT:
        return "too long"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in plain):
        return "control characters"
    for reason, pattern in _REFUSED.items():
        if pattern.search(plain):
            return reason
    if any(name and re.search(rf"\b{re.escape(name)}\b", plain, re.I) for name in tool_names):
        return "tool"
    return None


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
