"""Hints: what the owner's later words would have asked for, had they come in time.

A hint is one or two of the owner's directive sentences, cleaned and short. It is appended to the last user message
of the teacher's prompt with `HINT_TEMPLATE`; one that an environment's checker wrote for its own episode, with
`ENVIRONMENT_TEMPLATE`. Which of several candidates is used is not a matter of length but of
what the teacher gains by it (`choose`).
"""

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clawrl_trl.judge import words
from clawrl_trl.judge.provenance import MAX_HINT, neutralised, owner_words, refusal
from clawrl_trl.ledger.episodes import HINT_SOURCE

HINT_TEMPLATE = "\n\n[Hint from the user's later message: {hint}]"
"""Appended to the last user message of the teacher's prompt."""

ENVIRONMENT_TEMPLATE = "\n{hint}"
"""The same for an environment, whose words say themselves what they are."""

OVERLAP_FLOOR = 0.1
"""Least overlap of the teacher's and the response's distributions with which a hint may be used."""

_COURTESY = re.compile(
    r"^\W*((thanks?( you)?( a lot| so much| very much)?|thank you"
    r"|thx|great|good|nice|ok(ay)?|fine|hmm*|well|yes|sorry|hi|hello)"
    r"\b[\s,.!:;–-]*)+(but\b|though\b|however\b|yet\b)?[\s,]*",
    re.I,
)
_DIRECTIVE = (
    "change_first", "please", "wish", "negation", "degree", "redo", "reply_first", "no_first"
)  # fmt: skip
_TASK = ("task", "new_task_first")


def from_owner(texts: Iterable[str], request: str, tool_names: Sequence[str] = ()) -> list[str]:
    """Candidate hints out of the owner's words, best first: the directive sentences together, then the first few.

    What comes first is what was wrong. A later sentence, often a condition ("keep the steps, though"), may join it but
    not stand alone: a teacher that read only the condition would keep what was objected to.

    Args:
        texts: The owner's messages or explicit feedback, nothing else (see `provenance`).
        request: What the turn had been asked; a mere repetition of it is no hint.
        tool_names: Names that a hint may not contain.
    """
    found: list[str] = []
    for text in texts:
        parts = [cleaned(part) for part in words.sentences(neutralised(owner_words(text)))]
        parts = [part for part in parts if part and not refusal(part, tool_names) and not _repeats(request, part)]
        directive = [part for part in parts if is_directive(part)] or parts[:2]
        found += [_joined(directive), *(_joined(directive[:count]) for count in (1, 2))]
    unique = dict.fromkeys(hint for hint in found if hint)
    return [hint for hint in unique if refusal(hint, tool_names) is None]


def cleaned(sentence: str) -> str:
    """A sentence on one line, without the courtesies before it, with a capital and a full stop."""
    text = re.sub(r"\s+", " ", sentence).strip(" -*•>\"'")
    text = _COURTESY.sub("", text, count=1).strip()
    if len(text) > MAX_HINT:
        return ""
    if text and text[-1].isalnum():
        text += "."
    return text[:1].upper() + text[1:]


def is_directive(sentence: str) -> bool:
    """Return whether a sentence asks for something about the reply rather than stating or setting a new task."""
    if any(words.CUES[name].search(sentence) for name in _TASK):
        return False
    return any(words.CUES[name].search(sentence) for name in _DIRECTIVE)


def _joined(sentences: Sequence[str]) -> str:
    joined = ""
    for sentence in sentences:
        if len(joined) + len(sentence) + 1 <= MAX_HINT:
            joined = f"{joined} {sentence}".strip()
    return joined


def _repeats(request: str, sentence: str) -> bool:
    asked, said = (set(re.findall(r"\w+", text.lower())) for text in (request, sentence))
    return bool(said) and len(asked & said) >= 0.8 * len(said)


def template_of(source: str | None) -> str:
    """The template for hints of that provenance."""
    return ENVIRONMENT_TEMPLATE if source == HINT_SOURCE else HINT_TEMPLATE


def hinted(messages: Sequence[Mapping[str, Any]], hint: str, template: str = HINT_TEMPLATE) -> list[dict[str, Any]]:
    """The messages with the hint at the end of the last user message; the originals stay as they are.

    Raises:
        ValueError: If there is no user message with text.
    """
    block = template.format(hint=neutralised(hint))
    result = [dict(copy.deepcopy(message)) for message in messages]
    for message in reversed(result):
        if message.get("role") != "user":
            continue
        content = message.get("content")
        if isinstance(content, str):
            message["content"] = content + block
            return result
        texts = [part for part in content or () if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if texts:
            texts[-1]["text"] += block
            return result
    raise ValueError("no user message to append the hint to")


def overlap(teacher: NDArray[np.float32], plain: NDArray[np.float32]) -> float:
    """Estimated overlap of two distributions from tokens sampled of the second.

    The overlap of T and S at a position, sum over tokens of min(T, S), is the mean of min(1, T(a)/S(a)) over
    tokens a drawn from S; here it is averaged over the response's tokens. In (0, 1], 1 when they agree.
    """
    return float(np.minimum(1.0, np.exp(np.clip(teacher - plain, -50.0, 0.0))).mean())


def gain(teacher: NDArray[np.float32], plain: NDArray[np.float32], score: float | None = None) -> float:
    """Gain of a hint: mean absolute log-prob gap over the response's tokens.

    Of a response that was turned down it is how much less likely the teacher finds it, below 0 if it likes it better.
    """
    gap = teacher - plain
    return float((np.abs(gap) if score is None or score >= 0 else -gap).mean())


def choose(
    teachers: Sequence[NDArray[np.float32]], plain: NDArray[np.float32], score: float | None = None
) -> int | None:
    """Choose the hint with the largest `gain` among those whose `overlap` is at least `OVERLAP_FLOOR`.

    A teacher that shares almost nothing with the response talks about something else: its gap is large on every
    token and says nothing about which of them to change. One that finds a response that was turned down no less likely
    would teach the opposite of the verdict: its hint is beside the point.

    Args:
        teachers: `[T]` log-probs of the response's tokens under each hint.
        plain: `[T]` the same without a hint.
        score: The verdict on the response, if there is one.

    Returns:
        Position in `teachers`, or `None` when none qualifies. Ties go to the earlier one.
    """
    allowed = [
        index
        for index, one in enumerate(teachers)
        if overlap(one, plain) >= OVERLAP_FLOOR and gain(one, plain, score) > 0
    ]
    return max(allowed, key=lambda index: gain(teachers[index], plain, score), default=None)
