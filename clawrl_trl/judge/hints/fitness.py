"""Which hints may be kept: none with somebody else's words, and none that asks for less care than the reply took."""

from dataclasses import replace

from clawrl_trl.judge import language
from clawrl_trl.judge.classifier.care_reader import asks_for_less_care
from clawrl_trl.judge.classifier.encoders import MINILM
from clawrl_trl.judge.classifier.quotation_reader import holds_sentence
from clawrl_trl.judge.heard import collect_remarks, hear_owner
from clawrl_trl.judge.provenance import extract_owner_words
from clawrl_trl.judge.turn import JudgedTurn, Judgement


def drop_unfit_hints(turn: JudgedTurn, judgement: Judgement, encoder: str = MINILM) -> Judgement:
    """The judgement without the hints that hold somebody else's words, and without any that ask for less care.

    Args:
        turn: What was judged.
        judgement: Its judgement.
        encoder: The encoder that corrections are read with, one of `ENCODERS`.
    """
    return drop_careless_hints(turn, drop_quoted_hints(turn, judgement), encoder)


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


def drop_careless_hints(turn: JudgedTurn, judgement: Judgement, encoder: str = MINILM) -> Judgement:
    """The judgement without its hints if the owner's English words ask for less care than the reply took."""
    if not judgement.hints or not turn.reply:
        return judgement
    said = [*collect_remarks(turn), *(extract_owner_words(item.text) for item in turn.feedback if item.text)]
    correction = " ".join(text for text in said if language.is_english(text, turn.request))
    if not correction or not asks_for_less_care(turn.request, turn.reply, correction, encoder):
        return judgement
    return replace(judgement, hints=(), hint_source=None, detail={**judgement.detail, "no hint": "asks for less care"})
