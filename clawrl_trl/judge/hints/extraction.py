"""Candidate hints out of the owner's words: one or two directive sentences, cleaned and short."""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise, takewhile

from clawrl_trl.judge import features
from clawrl_trl.judge.hints import patterns
from clawrl_trl.judge.provenance import extract_owner_words
from clawrl_trl.judge.refusals import DANGEROUS, MAX_HINT, find_refusal

FEW_SENTENCES = 3
"""Most sentences of which a hint takes all."""

_TASK = ("task", "new_task_first")


def extract_hints(
    texts: Iterable[str],
    request: str,
    tool_names: Sequence[str] = (),
    score: float | None = -1.0,
    reply: str = "",
    *,
    is_lesson: bool = False,
) -> list[str]:
    """Candidate hints out of the owner's words, best first: all of a short message, then its directive sentences.

    There is none where no sentence asks for anything ("that's nonsense", an error's text), or the owner gives up,
    doubts ("are you sure?") or mocks ("oh splendid, I asked for a dusting"). Of the directive sentences, too, all
    together come first, then the first one and the first two. A later one, often a condition ("keep the steps,
    though"), never stands alone: a teacher that read only the condition would keep what was objected to.

    Args:
        texts: The owner's messages or explicit feedback, nothing else (see `provenance`).
        request: What the turn had been asked; a mere repetition of it is no hint.
        tool_names: Names of the request's tools, which a hint may name and not change.
        score: The verdict on the reply. Of an owner who did not object only a wish beside it is a hint: another
            sentence may be the next task.
        reply: The reply that the words are about: one that took care may not be corrected to take less.
        is_lesson: The words were read to say how the reply should have been: a sentence need not ask for anything.
    """
    spoken = [extract_owner_words(text) for text in texts]
    sentences = [sentence for text in spoken for sentence in features.split_sentences(text)]
    if score is None or score >= 0:
        sentences = [sentence for sentence in sentences if is_wish(sentence)]
    elif any(map(_gives_up_or_doubts, sentences)) or any(map(_is_ironic, spoken)):
        return []
    spoken_parts = [clean_sentence(sentence) for sentence in sentences if not patterns.RAW_ERROR.search(sentence)]
    # What stands behind a command that is refused belongs to it: "then try again", "don't ask".
    parts = list(takewhile(lambda part: find_refusal(part, tool_names, reply) not in DANGEROUS, spoken_parts))
    parts = [
        part for part in parts if part and not find_refusal(part, tool_names, reply) and not _repeats(request, part)
    ]
    # The lesson may have been in what was refused: "no. Use the token in the env file."
    if _lacks_what_it_announces(sentences, parts) or (is_lesson and parts != spoken_parts):
        return []
    # After a reservation the teacher would hold on to what was objected to: it tells what is to stay.
    parts = [part for part in parts if not patterns.RESERVATION.search(part)] or parts
    directive = [part for part in parts if is_lesson or is_directive(part)]
    hints: list[str] = []
    if directive:
        whole = " ".join(parts)
        # In few sentences all belong together; a longer message tells other things too.
        hints = [whole] if len(parts) <= FEW_SENTENCES and len(whole) <= MAX_HINT else []
        hints += [_join(directive), *(_join(directive[:count]) for count in (1, 2))]
    unique = dict.fromkeys(hint for hint in hints if hint)
    return [hint for hint in unique if find_refusal(hint, tool_names, reply) is None]


def clean_sentence(sentence: str) -> str:
    """A sentence on one line, without the courtesies before it, with a capital and a full stop."""
    text = patterns.BULLET.sub("", patterns.SENDER.sub("", re.sub(r"\s+", " ", sentence))).lstrip(" •>").rstrip(" •")
    # Emphasis goes with both its ends; an asterisk at one end may be code.
    if text.startswith("*"):
        text = text.strip("* ")
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1].strip()
    text = patterns.COURTESY.sub("", text, count=1).strip()
    if len(text) > MAX_HINT:
        return ""
    if text and (text[-1].isalnum() or text[-1] in ")]}`\"'"):
        text += "."
    # A name that begins a sentence keeps its case: "foo() is enough".
    return text[:1].upper() + text[1:] if patterns.PLAIN_WORD.match(text) else text


def is_directive(sentence: str) -> bool:
    """Return whether a sentence asks for something about the reply rather than stating or setting a new task."""
    if any(features.CUES[name].search(sentence) for name in _TASK) or patterns.OWN_PLAN.search(sentence):
        return False
    # A question asks for something only if it asks somebody to do it: others are scorn or doubt.
    if patterns.QUESTION.search(sentence) and not patterns.ASKS_SOMEBODY.search(sentence):
        return False
    wished = patterns.TOLD.sub(" ", sentence)
    return bool(patterns.DIRECTIVE.search(wished)) and not patterns.VAGUE.match(wished)


def is_wish(sentence: str) -> bool:
    """Return whether a sentence says how this reply or the next should have been, beside an approval or alone."""
    directive = is_directive(clean_sentence(sentence)) and not features.is_bare_question(sentence)
    cues = features.CUES
    compares = bool(cues["degree"].search(sentence) and cues["reply"].search(sentence))
    return directive and (compares or bool(patterns.NEXT_TIME.search(sentence) or cues["contrast"].search(sentence)))


def _gives_up_or_doubts(sentence: str) -> bool:
    return bool(patterns.GIVING_UP.search(sentence) or patterns.DOUBT.search(sentence))


def _is_ironic(objection: str) -> bool:
    return bool(patterns.MOCK_PRAISE.search(objection)) and not patterns.ASKS_ON.search(objection)


def _lacks_what_it_announces(sentences: Sequence[str], parts: Sequence[str]) -> bool:
    """Decide if a part ends in a colon behind which something was left out: code, an error, the request again."""
    announced = [after for before, after in pairwise([*sentences, ""]) if before.rstrip().endswith(":")]
    return any(clean_sentence(sentence) not in parts for sentence in announced)


def _join(sentences: Sequence[str]) -> str:
    joined = ""
    for sentence in sentences:
        if len(joined) + len(sentence) + 1 <= MAX_HINT:
            joined = f"{joined} {sentence}".strip()
    return joined


def _repeats(request: str, sentence: str) -> bool:
    requested, repeated = (set(re.findall(r"\w+", text.lower())) for text in (request, sentence))
    counted = (repeated, repeated - patterns.COURTEOUS)
    return any(words and len(requested & words) >= 0.8 * len(words) for words in counted)
