"""Senders of user messages: tells the owner from other people who write in the same conversation.

Clients name a sender in the message's `name` field, in metadata or an envelope in front of the text (`dialects`), or
by a label in front of every message ("Ann: ..."). A named other sender is never the owner. Names are compared
without case. Anybody may choose a display name: where both sides have ids, nothing else makes a sender the owner.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from clawrl_trl.gateway.sessions import clients

Names = frozenset[str]
_IDS = ("id", "e164")
_NAMES = ("name", "username", "tag", "label")
_GROUP = ("is_group_chat", "group_subject", "group_channel", "group_space", "group_members", "conversation_label")
_BLOCKS = 8
_SELF = "(self)"
_TRAILER = re.compile(r"\n\[from: ([^\]\n]{1,120})\]\s*\Z")
LABEL = re.compile(
    r"[*_]{0,2}(?P<name>@[\w.-]{1,40}|[^\W\d_a-z][\w.'’-]{0,30}(?: [^\W\d_a-z][\w.'’-]{0,30}){0,2})"
    r"(?:#\d{4}| \([^)\n]{1,40}\))?[*_]{0,2}:[*_]{0,2} "
)
ORDINARY_LABELS = frozenset(
    """
    again also answer answers bug code comment context correction data details edit error example fact feedback fix
    follow-up format hint idea important info input language length message next no note notes ok output problem ps
    question questions reminder reply request result solve style subject summary task text thanks tip title todo tone
    topic translate tldr update warning yes
    """.split()  # noqa: SIM905 - a list of words reads better as text
)


class Chat(Enum):
    """The kind of chat that a message came from, as far as its client says."""

    UNKNOWN = "unknown"
    DIRECT = "direct"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender that a message names.

    Attributes:
        names: Its ids, name and user name, case-folded.
        chat: The kind of chat.
        label: The text in front of the message that names it; no part of what was said.
        ids: Those of its names that nobody else can choose.
    """

    names: Names
    chat: Chat = Chat.UNKNOWN
    label: str = ""
    ids: Names = frozenset()

    def is_same(self, other: "Sender") -> bool:
        """Return whether both are one person: by their ids if both have some, else by any name."""
        if self.ids and other.ids:
            return bool(self.ids & other.ids)
        return bool(self.names & other.names)


NOBODY = Sender(frozenset())
"""The owner of a conversation in which no named sender is."""


def read_sender(message: Mapping[str, Any], text: str) -> Sender | None:
    """The sender that a user message names by its `name` field, its metadata or its envelope; `None` for none.

    Args:
        message: The message as it was sent.
        text: Its text, with everything that the client put in front of it.
    """
    name = message.get("name")
    if isinstance(name, str) and name.strip():
        return Sender(fold([name]))
    return _read_metadata(text) or _read_envelope(text)


def fold(names: Collection[str]) -> Names:
    """Names as they are compared; empty ones are left out."""
    return frozenset(name.strip().casefold() for name in names if name.strip())


def label_senders(texts: Sequence[str], *, several: bool = False) -> list[Sender] | None:
    """Senders by the labels in front of all messages; `None` unless each has one and they name several people.

    Args:
        texts: The messages' cleaned texts.
        several: The conversation is known to have several senders, whoever of them is left here.
    """
    labels = [LABEL.match(text) for text in texts]
    senders = [Sender(fold([label["name"]]), label=label[0]) for label in labels if label]
    # A client that labels senders labels every message; a label here and there is how a person writes.
    if len(senders) < len(texts) or any(sender.names & ORDINARY_LABELS for sender in senders):
        return None
    return senders if several or len({sender.names for sender in senders}) > 1 else None


def choose_owner(senders: Sequence[Sender | None], *, whole: bool) -> Sender:
    """The owner of a conversation, oldest message first; `NOBODY` where no named sender is.

    That is the first sender of a direct chat. Otherwise nobody in a group chat, nobody where a message has no sender
    (that one is the owner's), else the first sender.

    Args:
        senders: One per message; `None` for a message that names nobody.
        whole: The messages begin with the conversation's first; else the first sender is only taken if there is no
            other.
    """
    direct = next((sender for sender in senders if sender and sender.chat is Chat.DIRECT), None)
    if direct is not None:
        return direct
    known_senders = [sender for sender in senders if sender is not None]
    if (
        len(known_senders) < len(senders)
        or not known_senders
        or any(sender.chat is Chat.GROUP for sender in known_senders)
    ):
        return NOBODY
    first = known_senders[0]
    return first if whole or all(map(first.is_same, known_senders)) else NOBODY


def _read_metadata(text: str) -> Sender | None:
    """The sender in JSON blocks that the client put in front of the text.

    What follows the first that names one may be the person's own. Only a block right behind a sender's bare id, as
    earlier clients write both, may add names to it.
    """
    named: Sender | None = None
    group, begin = False, 0
    for _ in range(_BLOCKS):
        block = clients.METADATA.match(text, begin)
        if named is not None:
            more = _read_block(_parse(block["json"])) if block else None
            named = replace(named, names=named.names | more.names) if more and named.ids & more.ids else named
            break
        stamp = block or clients.STAMP.match(text, begin)
        if stamp is None:
            break
        begin = stamp.end()
        if block is None:
            continue
        value = _parse(block["json"])
        group = group or any(value.get(key) for key in _GROUP)
        named = _read_block(value)
        if named is not None and not isinstance(value.get("sender"), str):
            break
    return named and replace(named, chat=Chat.GROUP if group else Chat.DIRECT)


def _read_block(value: Mapping[str, Any]) -> Sender | None:
    sender = value.get("sender", value)
    if isinstance(sender, str):
        ids, names = fold([sender]), fold([])
    elif isinstance(sender, dict):
        ids, names = (
            fold([str(sender[key]) for key in keys if isinstance(sender.get(key), (str, int))])
            for keys in (_IDS, _NAMES)
        )
    else:
        return None
    # A display name that looks like an id may be the owner's.
    names = frozenset(name for name in names if not ids or any(map(str.isalpha, name)))
    return Sender(ids | names, ids=ids) if ids | names else None


def _parse(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_envelope(text: str) -> Sender | None:
    """The sender in an envelope: in a direct chat it is the one that the chat is named after."""
    envelope = clients.ENVELOPE.match(text)
    if envelope is None:
        return None
    if trailer := _TRAILER.search(text, max(0, len(text) - 200)):
        return _split_names(trailer[1], Chat.GROUP)
    name, label = envelope["name"], envelope["label"]
    if name is None:
        return None
    if name == _SELF:
        return Sender(fold([name]), Chat.DIRECT, label)
    display = name.partition(" (")[0]
    direct = f" {display} id:" in envelope["chat"] + " id:"
    return _split_names(name, Chat.DIRECT if direct else Chat.GROUP, label)


def _split_names(text: str, chat: Chat, label: str = "") -> Sender:
    """The sender as envelopes write it: "name (id)", of which the name may hold parentheses of its own."""
    name, _, identity = text.rpartition(" (")
    if not name or not identity.endswith(")"):
        return Sender(fold([text]), chat, label)
    ids = fold([identity.removesuffix(")")])
    return Sender(fold([text, name]) | ids, chat, label, ids)
