"""Which hints may be kept: none with somebody else's words, without a lesson, for less care, or that is unsafe.

Nor any on a reply that speaks of its own reception, as it would be distilled into one that pleads.
"""

from dataclasses import replace

from clawrl_trl.judge import language
from clawrl_trl.judge.classifier.care_reader import asks_for_less_care
from clawrl_trl.judge.classifier.encoders import MINILM, QWEN
from clawrl_trl.judge.classifier.lesson_reader import holds_lesson
from clawrl_trl.judge.classifier.order_reader import orders_unsafe
from clawrl_trl.judge.classifier.quotation_reader import holds_sentence
from clawrl_trl.judge.classifier.reply_reader import speaks_of_reception
from clawrl_trl.judge.heard import collect_remarks, hear_owner
from clawrl_trl.judge.provenance import extract_owner_words
from clawrl_trl.judge.turn import JudgedTurn, Judgement


def drop_unfit_hints(turn: JudgedTurn, judgement: Judgement, encoder: str = MINILM) -> Judgement:
    """The judgement without the hints that hold somebody else's words, and without any if the owner's are unfit.

    That is if they ask for less care than the reply took, order something unsafe or, as the language model reads them,
    teach nothing; or if the reply speaks of its own reception.

    Args:
        turn: What was judged.
        judgement: Its judgement.
        encoder: The encoder that corrections are read with, one of `ENCODERS`.
    """
    judgement = drop_quoted_hints(turn, judgement)
    words = _collect_words(turn) if judgement.hints and turn.reply else ""
    reason = _find_unfit(turn, words, encoder) if words else ""
    if not reason:
        return judgement
    return replace(judgement, hints=(), hint_source=None, detail={**judgement.detail, "no hint": reason})


def drop_quoted_hints(turn: JudgedTurn, judgement: Judgement) -> Judgement:
    """The judgement without the hints that hold a sentence which somebody else said."""
    if not judgement.hints or not turn.said_by("owner"):
        return judgement
    quoted = [sentence for row in hear_owner(turn) for sentence in row.quoted]
    hints = tuple(hint for hint in judgement.hints if not holds_sentence(hint, quoted))
    if hints == judgement.hints:
        return judgement
    source = judgement.hint_source if hints else None
    return replace(judgement, hints=hints, hint_source=source, detail={**judgement.detail, "no hint": "quoted"})


def _find_unfit(turn: JudgedTurn, words: str, encoder: str) -> str:
    """Why no hint is made of the owner's words; empty if one may be."""
    # Who writes into a field for corrections means one.
    is_explicit = any(item.kind == "correction" for item in turn.feedback)
    if encoder == QWEN and not is_explicit and not holds_lesson(turn.request, turn.reply, words):
        return "teaches nothing"
    if asks_for_less_care(turn.request, turn.reply, words, encoder):
        return "asks for less care"
    if orders_unsafe(turn.request, turn.reply, words):
        return "orders something unsafe"
    return "the reply speaks of its own reception" if speaks_of_reception(turn.request, turn.reply) else ""


def _collect_words(turn: JudgedTurn) -> str:
    """The owner's English words on the reply, in messages and feedback."""
    said = [*collect_remarks(turn), *(extract_owner_words(item.text) for item in turn.feedback if item.text)]
    return " ".join(text for text in said if language.is_english(text, turn.request))
