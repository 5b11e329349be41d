"""What a judge hears of the owner in a turn: the owner's own words, without what others said or wrote in them."""

from collections.abc import Sequence
from typing import NamedTuple

from clawrl_trl.judge import language
from clawrl_trl.judge.classifier.quotation_reader import find_quoted
from clawrl_trl.judge.provenance import unwrap
from clawrl_trl.judge.quotation.own_words import OwnWords, extract_own_words
from clawrl_trl.judge.quotation.patterns import ABOUT_TEXT, EVERY_TEXT, STARTS_SERIES
from clawrl_trl.judge.steering.encoded import holds_encoded_text
from clawrl_trl.judge.turn import JudgedTurn, encodable_text

RULE_LENGTH = 4000
"""Characters of a message in which a rule for later ones is looked for."""


class Heard(NamedTuple):
    """What was heard of the owner in a message.

    Attributes:
        own: The owner's words.
        quoted: Sentences among them that somebody else seems to have said.
        is_all: Whether the message holds nothing else: no mark told of a quotation or a text that came along.
    """

    own: OwnWords
    quoted: tuple[str, ...]
    is_all: bool


def hear_owner(turn: JudgedTurn) -> list[Heard]:
    """What was heard of the owner in each message that holds their words."""
    heard = []
    for text in map(unwrap, turn.said_by("owner")):
        own = extract_own_words(text, turn.request, turn.reply)
        if own.text and not holds_encoded_text(own.text):
            is_all = text.split() == own.text.split()
            # What had a mark is left out already, and is no reason to doubt the words beside it.
            heard.append(Heard(own, _find_quoted(turn, text if is_all else own.text, own), is_all))
    return heard


def _find_quoted(turn: JudgedTurn, text: str, own: OwnWords) -> tuple[str, ...]:
    return find_quoted(turn.request, turn.reply, text) if language.is_english(own.text, turn.request) else ()


def join(rows: Sequence[Heard]) -> Heard:
    """Several messages in a row as one."""
    remarks = filter(None, (row.own.remarks for row in rows))
    own = OwnWords("\n".join(row.own.text for row in rows), "\n".join(remarks))
    quoted = tuple(sentence for row in rows for sentence in row.quoted)
    return Heard(own, quoted, all(row.is_all for row in rows))


def collect_remarks(turn: JudgedTurn) -> list[str]:
    """The owner's remarks on the reply, of which hints may be made: no text that came along, and none in a code."""
    if is_all_material(turn):
        return []
    own = [extract_own_words(unwrap(text), turn.request, turn.reply).remarks for text in turn.said_by("owner")]
    return [remarks for remarks in own if remarks and not holds_encoded_text(remarks)]


def is_all_material(turn: JudgedTurn) -> bool:
    """Decide if every message is a text to be worked on, by the client's system message or by the request."""
    rules = (message for message in turn.messages if message.get("role") in ("system", "developer"))
    if any(EVERY_TEXT.search(encodable_text(message)[:RULE_LENGTH]) for message in rules):
        return True
    request = unwrap(turn.request)[:RULE_LENGTH]
    return bool(EVERY_TEXT.search(request) or (STARTS_SERIES.search(request) and ABOUT_TEXT.search(request)))
