"""Correctness of replies: the number a solution ends with, the verdict a grading comment gives.

Reported beside the style scores, so that a style learnt at the price of wrong answers shows.
"""

import re

NUMBER = r"(?<![\d.,])-?\$?\d+(?:,\d{3})*(?:\.\d+)?"

_ANSWER = re.compile(
    r"\b(?:answer|result)\b[\s*_:=]*(?:is|are|comes to|equals|would be|should be|must be)?[\s*_:=]*"
    r"(?=([^\n!?]*))",
    re.I,
)
_LABEL = re.compile(
    r"\b(?:grade|verdict|result|status|mark)\s*:\s*(incorrect|not correct|wrong|false|correct|right)", re.I
)

_THING = r"(?:mistakes?|errors?|slips?|problems?)"
_NEUTRAL = "|".join((
    rf"\b(?:no|not an?|not any|without an?|without any|zero|free of|aren't any)\s+(?:\w+\s+)?{_THING}\b",
    rf"\bavoid\w*[^.]*?{_THING}\b",
    r"\bnot(?:hing)? (?:is |was )?wrong\b",
    r"\b(?:error|mistake)-free\b",
    r"\b(?:correct|right) answers? (?:is|was|should be|would be|comes|:)",
    r"\bcorrect answer\b(?! *[!.])",
    r"\b(?:right|correct)\s+(?:track|path|idea|method|operation|numbers?|way|approach|plan|setup|first|equation)\b",
    r"\b(?:right|correct)\s+(?:start|place|direction|thing|until)\b",
    r"\b(?:correct|right)ly\b|\ball right\b",
    r"\bright (?:at|up|in|before|after|until|now|away)\b",
    r"\b(?:first|second|other) (?:\w+ )?(?:part|step|line|calculation) (?:is|was|looks) (?:right|correct)\b",
))  # fmt: skip
"""Words about right and wrong that give no verdict on the homework as a whole."""
_WRONG = "|".join((
    r"\bincorrect(?:ly)?\b|\bwrong(?:ly)?\b|\bfalse\b|[✗✘❌]",
    r"\bnot\s+(?:\w+\s+)?(?:correct|right|it|there yet)\b|\bnot (?:quite|yet|exactly)\b",
    r"\b(?:isn't|wasn't|aren't|doesn't look)\s+(?:\w+\s+)?(?:correct|right|it)\b",
    r"\bslip(?:s|ped)?\b|\bmistakes?\b|\berrors?\b|\bwent (?:astray|off)\b|\boff by\b",
    r"\bmis(?:s|sed|calculat\w*|count\w*|read|took|placed|added)\b",
    r"\bshould (?:have been|be|equal|give|come|read|become)\b|\binstead\b|\brather than\b",
    r"\b(?:so|very|really) close\b|\bclose,? but\b|\balmost\b|\bnearly\b",
    r"\btry (?:again|that|it|the|this)\b|\b(?:another|one more) (?:try|look|go)\b|\blook (?:at [^.]{1,40} )?again\b",
    r"\b(?:re)?check (?:again|the|your|that|this|it|how)\b|\bredo\b|\brevisit\b|\bfix\b",
    r"\btoo (?:high|low|many|few|big|small|much|little)\b",
    r"\bdoes(?:n't| not) (?:match|equal|add up)\b|\b(?:is|equals|gives|makes|leaves) \d+,? not \d+",
))  # fmt: skip
_RIGHT = "|".join((
    r"\bcorrect\b|\bright\b|\btrue\b|\baccurate\b|[✓✔✅]",
    r"\bexact(?:ly)?\b|\bperfect(?:ly)?\b|\bflawless\b|\bmatch(?:es)?\b|\bfull marks\b",
    r"\bwell done\b|\bspot on\b|\bnailed\b|\bgot it\b|\bbravo\b",
    r"\b(?:great|good|nice|excellent|wonderful|lovely|fantastic) (?:job|work|answer)\b",
))  # fmt: skip


def extract_numbers(text: str) -> list[float]:
    """All numbers of a text, in order; "1,200" and "$3" are numbers, a hyphen between digits is no sign."""
    return [float(figure.replace(",", "").replace("$", "")) for figure in re.findall(NUMBER, text)]


def extract_answer(reply: str) -> float | None:
    """The number a solution ends with: after its last "answer" if there is one, else its last number."""
    for marked in reversed(_ANSWER.findall(reply)):
        # A point before a digit belongs to a number.
        sentence = re.split(r"\.(?=\D|$)", marked)[0]
        # Of "the answer is 5 + 7 = 12" the result is meant.
        figures = extract_numbers(sentence.rpartition("=")[2])
        if figures:
            return figures[0]
    figures = extract_numbers(reply)
    return figures[-1] if figures else None


def extract_verdict(reply: str) -> bool | None:
    """Return whether a grading comment calls the homework right (`True`), wrong (`False`), or does not say.

    A label such as "Grade: incorrect" decides; else any word of a fault does, because a kind comment on wrong
    work praises too ("You added 5 and 7 correctly, but there is a small slip"); else a word of approval.
    """
    text = re.sub(r"[*_`#]+", "", reply).replace("’", "'")
    label = _LABEL.search(text)
    if label:
        return label[1].lower() in ("correct", "right")
    plain = re.sub(_NEUTRAL, " ", text, flags=re.I)
    if re.search(_WRONG, plain, re.I):
        return False
    return True if re.search(_RIGHT, plain, re.I) else None
