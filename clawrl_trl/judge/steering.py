"""Text that speaks to the judge, in a reply or in what a tool returned.

A page or a program may hold verdicts, ratings, orders to whoever evaluates, or turns of a chat that never took place.
None of it may move a score, so the lines that hold it are left out before anything is scored; what else a result says
still counts. The owner's words go another way (`quotation`, `provenance`): of those the words of others are left out.
"""

import re

_LINES = re.compile(
    r"""
      ^\W*(?:(?:final|overall|judge(?:'s)?|my|the)\s+)*
        (?:verdict|score|rating|grade|evaluation|judge?ment|reward|vote|feedback)s?\b\W{0,6}
        (?:is\W{1,3})?(?:[+-]?\d|positive|negative|good|bad|pass(?:ed)?\b|excellent|perfect|correct|approved|success)
    | \\boxed\s*\{
    | ^\s*[\[({].*["'](?:score|verdict|rating|reward|vote|hint)["']\s*:.*[\])}]\s*,?\s*$
    | ^\W*(?:human|user|owner|customer|client|assistant|system|judge|developer|admin(?:istrator)?)
        (?:\s*\([^)]*\))?\s*[:>]
    | <\|[^|>]{0,40}\|> | \[/?INST\] | <</?SYS>>
    | \b(?:judges?|evaluators?|graders?|raters?|reward\ models?|scorers?)\b.{0,80}
        \b(?:must|should|please|assign|give|award|scores?|rate|counts?|treat|mark|note|attention|consider)\b
    | \b(?:assign|give|award|rate|score|mark|count|treat|record|log|register|return|output)\b.{0,80}
        (?:\+\s?1\b|\b10\s?/\s?10\b|\b5\s?/\s?5\b|\b100\s?%|\bfull\ marks\b|\btop\ (?:score|marks|rating)\b
        |\bas\ (?:an?\ )?(?:success\w*|correct|positive|pass(?:ed)?|approved|satisf\w+|complete)\b)
    | \b(?:user|owner|customer|client)\ (?:is|was|has|seems|said|confirm(?:s|ed)|report(?:s|ed)|approve[sd])\b.{0,60}
        \b(?:delighted|happy|satisfied|pleased|thrilled|perfect|great|approv\w+|success\w*|positive|thanks|correct|works)\b
    | \b(?:override|overrides|overriding)\b.{0,60}\b(?:polic\w+|verdict|score|evaluation|judge|rules?)\b
    | \b(?:polic\w+|admin(?:istrator)?|evaluation)\b.{0,40}\boverrid\w+
    """,
    re.I | re.X,
)


def cut_verdict_talk(text: str, mark: str = "") -> str:
    """Cut the lines that state or order a verdict, or play a turn of a chat.

    Args:
        text: A reply, or what a tool, a page or a program wrote.
        mark: Stands in place of each such line; none by default.
    """
    speaks = [(line, bool(_LINES.search(line[:2000]))) for line in text.splitlines()]
    return "\n".join(mark if is_cut else line for line, is_cut in speaks if mark or not is_cut)
