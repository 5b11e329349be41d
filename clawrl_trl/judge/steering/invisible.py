"""Text that nobody sees: hidden markup, what a terminal conceals, and characters without a shape.

Such text can spell orders or split up words; of the owner's words, of a reply and of an output it is left out before
anything is read.
"""

import re

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u202a-\u202e\u2060-\u206f\u2800\u3164\ufeff\uffa0"
    "\ufff0-\ufffb\ue000-\uf8ff\U0001d173-\U0001d17a\U000e0000-\U000e01ef\b]"
    # Joiners, marks and selectors, which scripts and emoji need, next to nothing of the kind.
    "|(?<![^\\x00-\\x7f])[\u200c-\u200f\ufe00-\ufe0f]+(?!\u20e3)|(?<![\u200c-\u200f])[\u200c-\u200f]++(?![^\\x00-\\x7f])"
    "|(?<=[\ufe00-\ufe0f])[\ufe00-\ufe0f]+"
    # Of a terminal: what is concealed, light on light or dark on dark.
    "|\x1b\\[(?:[\\d;]*;)?(?:8|30;40|40;30|37;47|47;37|97;107|107;97)m.*?(?:\x1b\\[[\\d;]*m|\\Z)",
    re.S,
)
_UNSEEN = (
    r"display:\s?none|visibility:\s?(?:hidden|collapse)|opacity:\s?0(?:\.0\d*)?(?![.\d])|font-size:\s?[01](?:\.\d+)?(?![.\d])"
    r"|(?<![-\w])color:\s?(?:transparent|white|#f{3}(?:f{3})?\b|rgba?\([^)]{0,40},\s?0\))|(?:left|top|indent):\s?-\d{3,}"
    r"|(?<![-\w])(?:max-)?(?:height|width):\s?0|clip(?:-path)?:|\shidden\b|type=\W?hidden|aria-hidden"
)
"""How markup says that an element isn't seen."""
_HIDDEN = re.compile(
    r"<!--.*?(?:-->|\Z)|\[\]\([^)\n]{0,300}\)|^\s{0,3}\[(?:comment|//|_|\.|#)\]:[^\n]*$"
    r"|\\iffalse\b.*?(?:\\fi\b|\Z)|\\begin\{comment\}.*?(?:\\end\{comment\}|\Z)|\\[hv]?phantom\{[^}\n]{0,300}\}"
    r"|<(?P<unread>script|style|template|noscript)\b[^<>]{0,200}>.{0,1000}?</(?P=unread)>"
    rf"|<(?:input|meta|img|area|br|hr|link)\b[^<>]{{0,400}}(?:{_UNSEEN}|content=|alt=\W?\w+\W\w+\W\w)[^<>]{{0,400}}>"
    rf"|<(?P<unseen>\w{{1,12}})\b[^<>]{{0,200}}(?:{_UNSEEN})[^<>]{{0,200}}>.*?(?:</(?P=unseen)>|\Z)",
    re.I | re.S | re.M,
)
"""Markup that whoever sees the page doesn't read."""


def cut_invisible(text: str) -> str:
    """Text without hidden markup and the characters that nobody sees, which can spell orders or split up words."""
    return _HIDDEN.sub("", _INVISIBLE.sub("", text))
