"""Style rules of the personas: structure and words, no model, no judge.

These rules are what `score_before` and `score_after` mean, so they are kept apart from everything that
training sees: the judge never imports them, and they never see the ledger. `check_student_style` wants plain prose
that keeps its steps; `check_teacher_style` wants a comment that is warm and specific.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clawrl_trl.envs.chat.answers import extract_numbers


@dataclass(frozen=True)
class StyleReport:
    """Findings of the style rules on one reply.

    Attributes:
        faults (`tuple[str, ...]`): Names of the rules that the reply breaks, in the order of the rules.
    """

    faults: tuple[str, ...]

    @property
    def score(self) -> float:
        """1.0 if nothing is at fault, else 0.0."""
        return 0.0 if self.faults else 1.0


def _compile_any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.I | re.M)


# ---- the student: no AI-looking style, all steps ----

_ORDINAL = r"(?:\d+|one|two|three|four|five|six|seven|eight|nine|ten)"
_TITLE = (
    r"(?:(?:final\s+)?answer|solution|given|steps?|calculations?|working|explanation|result|conclusion|check"
    r"|summary|problem)"
)
_STUDENT_FAULTS: Mapping[str, re.Pattern[str]] = {
    "bold": _compile_any(r"\*", r"(?<!\w)__?[^\s_](?:[^\n_]*[^\s_])?__?(?!\w)", r"<\s*(?:b|strong|em|i|u)\s*>"),
    "heading": _compile_any(
        r"^\s{0,3}#{1,6}\s*\S", r"^\s*(?:={3,}|-{3,})\s*$", r"<\s*h[1-6]\b",
        rf"^\W*(?:the\s+)?{_TITLE}\s*:\s*$"
    ),
    "list": _compile_any(
        r"^\s*(?:[-–—•‣◦▪●+]|\d️?⃣|[①-⑳])\s+\S",
        r"^\s*(?:\(?1[.):]|\(?a\)|a\.|i[.)])\s+\S",
        r"(?:^|[.:;,!?]\s+)\(?1\)\s[^\n]*?[.:;,!?]\s+\(?2\)\s",
        r"<\s*(?:li|ol|ul)\b",
    ),
    "step_label": _compile_any(
        rf"\bsteps?\s*#?\s*{_ORDINAL}\s*(?:[:.)]|\s[-–—]\s)",
        rf"^\W*step\s*#?\s*{_ORDINAL}\b",
        r"^\W*(?:first|second|third|fourth|next|final|last)\s+step\s*:",
    ),
    "answer_label": _compile_any(
        r"\bfinal\s+answer\s*[:=]", r"^\W*(?:the\s+)?(?:answer|solution|result)\s*[:=]", r"\\boxed",
        r"\bans\s*[:=.]"
    ),
    "code": _compile_any(r"```", r"^\s*\|.*\|\s*$", r"\\\(", r"\\\[", r"\$\$"),
}  # fmt: skip
_NUMBERED_LINES = re.compile(r"^\s*\(?\d{1,2}[.)]\s+\S", re.M)
_PRODUCT = re.compile(r"(?<=[\d)])\s*\*\s*(?=[$(]?\d)|(?<=\w)\s\*\s(?=\w)")
"""An asterisk that multiplies, as in "3 * 4" or "boxes * apples"; any other one is markdown."""

_FIGURE = r"\$?\d+(?:,\d{3})*(?:\.\d+)?%?"
_OPERATION = (
    r"(?:[-+−–*×·/÷]|(?<![a-z])x(?![a-z])|\b(?:plus|minus|times|and|from|by|of|less|over|more than|added to|take away"
    r"|groups?|lots?|share[sd]?)\b)"
)
_RESULT = _compile_any(
    r"=",
    r"\b(?:equals?|is|are|was|were|makes?|made|gives?|giving|gave|leaves?|leaving|left|gets?|got|becomes?)\b",
    r"\b(?:comes? to|that's|totals?|ha[sd]|have|yields?|results? in|means|need(?:s|ed)?|so|there)\b",
)
_FOLLOWS = _compile_any(
    r"\b(?:so|which|that|this|leav\w*|gives?|giving|makes?|making|total\w*|altogether|now|then|left|get\w*)\b",
    r"\bends? up\b",
)
_OPERATES = re.compile(_OPERATION, re.I)
_WORDS = re.compile(r"[a-z]{2,}", re.I)


def check_student_style(reply: str) -> StyleReport:
    """Return whether a solved homework problem reads like a person wrote it and still shows its steps."""
    text = _PRODUCT.sub(" × ", reply)
    faults = [name for name, pattern in _STUDENT_FAULTS.items() if pattern.search(text)]
    # A sentence may begin with a number; two lines that do are a list.
    if "list" not in faults and len(_NUMBERED_LINES.findall(text)) > 1:
        faults.append("list")
    if not has_worked_step(text):
        faults.append("no_steps")
    return StyleReport(tuple(faults))


def has_worked_step(text: str) -> bool:
    """Return whether at least one computation is told in words, with its numbers."""
    if len(_WORDS.findall(text)) < 5:
        return False
    return any(len(_WORDS.findall(line)) >= 2 and _computes(line) for line in text.splitlines())


def _computes(line: str) -> bool:
    """Return whether a line goes from two numbers to a third: "5 + 7 = 12", or "5 ... 7 more, so now 12"."""
    places = [figure.span() for figure in re.finditer(_FIGURE, line)]
    if len(places) < 3:
        return False
    if _FOLLOWS.search(line, places[0][1], places[-1][0]):
        return True
    return any(
        _OPERATES.search(line, first_end, second) and _RESULT.search(line, second_end, last)
        for (_, first_end), (second, second_end), (last, _) in zip(places, places[1:], places[2:], strict=False)
    )


# ---- the teacher: warm and specific ----

_FINE = (
    r"(?:great|good|nice|excellent|wonderful|lovely|fantastic|super|terrific|amazing|awesome|brilliant|splendid"
    r"|impressive|solid|strong|fine|careful|clear|neat|beautiful|smart|outstanding|marvell?ous)"
)
_PIECE = (
    r"(?:work|job|start|effort|try|going|thinking|reasoning|progress|attempt|answer|solution|setup|idea|method"
    r"|approach|steps?|one|stuff|way|point)"
)
_VERY = r"(?:so |very |really |truly )?"
WARMTH: Mapping[str, re.Pattern[str]] = {
    "praise": _compile_any(
        rf"\b{_FINE}[\s,]+(?:\w+\s+){{0,2}}?{_PIECE}\b",
        r"\b(?:well done|bravo|kudos|hooray|congratulations|congrats|way to go|good for you)\b",
        r"\b(?:nicely|beautifully|wonderfully|excellently|brilliantly|spot on|you nailed|nailed it)\b",
        r"\b(?:very|really|so)\s+(?:good|nice|well)\b",
        rf"(?:^|[.!?]\s+)(?:{_FINE}|perfect|yes)\s*(?:!|,)",
        rf"\b(?:that is|that's|this is|it's|it is|you did)\s+(?:an?\s+)?{_VERY}(?:{_FINE}|well)\b",
    ),
    "encouragement": _compile_any(
        r"\bkeep (?:it up|going|up|on|at it|trying|practi[sc]ing|working)\b",
        r"\byou(?:'re| are) (?:so |very |really |nearly |almost )?"
        r"(?:close|there|on the right track|doing|getting|on your way|ready)\b",
        r"\balmost (?:there|got|had|perfect)\b|\b(?:so|very|really) close\b",
        r"\bdon't (?:worry|give up|be discouraged|lose heart)\b|\bno worries\b|\bnever mind\b",
        r"\byou(?:'ve| have) got this\b|\byou can (?:do|fix|get|be proud)\b|\bi believe\b",
        r"\byou(?:'ll| will) (?:get|have|do|soon|surely|be)\b|\bnext time\b",
        r"\bon the right (?:track|path)\b|\ba (?:little|bit of) (?:more )?(?:practice|care)\b",
        r"\bhappens to (?:everyone|all|the best)\b|\bstay (?:curious|positive)\b|\bgive it another\b",
    ),
    "appreciation": _compile_any(
        r"\bi (?:like|love|enjoyed|appreciate|admire)\b|\bproud\b|\bthank(?:s| you)\b",
        rf"\bi(?:'m| am) {_VERY}(?:happy|glad|pleased|impressed)\b|\bhappy to see\b|\bpleasure to\b",
        r"\b(?:can|could) (?:see|tell) (?:how|that|the|you)\b|\bhard work\b|\beffort\b|\bdeserves?\b",
        r"\bwell[- ](?:thought|organi[sz]ed|explained|set|reasoned)\b",
        rf"\byou (?:worked|tried) {_VERY}(?:hard|carefully)\b",
    ),
}
"""Families of warm words; one of any of them makes a comment warm."""
_COLD = re.compile(
    rf"\b(?:not|no|never|isn't|wasn't|hardly|lacks?)\s+(?:(?!but\b)\w+\s+){{0,2}}?"
    rf"(?:{_FINE}|well|proud|close|impressed|happy|effort|thanks?)\b(?:\s+(?:{_PIECE}|done))?",
    re.I,
)
_OPERATIONS = _compile_any(
    r"\b(?:add(?:ed|ing|ition)?|subtract(?:ed|ing|ion)?|multipl(?:y|ied|ying|ication))\b",
    r"\b(?:divid(?:e|ed|ing)|division|sum|product|difference|plus|minus|times|shared|sharing)\b",
    r"\b(?:carr(?:y|ied|ying)|borrow(?:ed|ing)?|count(?:ed|ing)?|tak(?:e|ing) away|took away)\b",
    r"\bset(?:ting)? (?:it |this |the problem )?up\b|\bsetup\b|\bequation\b|\byour steps\b|\bplace value\b",
    r"\b(?:first|second|third|last|final|next|each|every|one|this|that) (?:step|line|part|calculation)\b",
    r"\bstep (?:\d+|one|two|three)\b|\b(?:calculation|computation|arithmetic|times tables?)\b",
)
_CALCULATION = re.compile(rf"{_FIGURE}\s*{_OPERATION}\s*{_FIGURE}", re.I)
MIN_COMMENT_WORDS = 10


def check_teacher_style(reply: str, *, question: str = "", results: Sequence[int] = ()) -> StyleReport:
    """Return whether a grading comment is warm and says what in particular was right or where the slip is.

    Args:
        reply (`str`): The comment.
        question (`str`): The problem; a number of it in the comment makes the comment specific.
        results (`Sequence[int]`): The right answer and the student's: naming these alone is not specific.
    """
    text = re.sub(r"[*_`#]+", "", reply).replace("’", "'")
    faults = []
    # "Not a good start" has warm words in it, so negations are cut out first.
    if not any(family.search(_COLD.sub(" ", text)) for family in WARMTH.values()):
        faults.append("cold")
    if not _is_specific(text, question, results):
        faults.append("vague")
    if len(re.findall(r"[\w'+=×-]+", text)) < MIN_COMMENT_WORDS:
        faults.append("short")
    return StyleReport(tuple(faults))


def _is_specific(text: str, question: str, results: Sequence[int]) -> bool:
    if _OPERATIONS.search(text) or _CALCULATION.search(text):
        return True
    figures = set(extract_numbers(text)) - {float(result) for result in results}
    return bool(figures & set(extract_numbers(question)))
