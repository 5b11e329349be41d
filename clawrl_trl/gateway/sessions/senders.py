"""Senders of user messages: tells the owner from other people who write in the same conversation.

Clients name a sender in the message's `name` field, in metadata or an envelope in front of the text (`dialects`), or
by a label in front of every message ("Ann: ..."). A named other sender is never the owner. Names are compared
without case; a sender is the owner if any of its names, ids or user names is the owner's.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from clawrl_trl.gateway.sessions import clients

Names = frozenset[str]
_IDENTITY = ("id", "name", "username", "e164", "tag", "label")
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
        names: Its id, name and user name, case-folded.
        chat: The kind of chat.
        label: The text in front of the message that names it; no part of what was said.
    """

    names: Names
    chat: Chat = Chat.UNKNOWN
    label: str = ""


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


def choose_owner(senders: Sequence[Sender | None], *, whole: bool) -> Names:
    """The names of the owner in a conversation, oldest message first; empty where no named sender is the owner.

    That is the first sender of a direct chat. Otherwise nobody in a group chat, nobody where a message has no sender
    (that one is the owner's), else the first sender.

    Args:
        senders: One per message; `None` for a message that names nobody.
        whole: The messages begin with the conversation's first; else the first sender is only taken if there is no
            other.
    """
    direct = next((sender.names for sender in senders if sender and sender.chat is Chat.DIRECT), None)
    if direct is not None:
        return direct
    known_senders = [sender for sender in senders if sender is not None]
    if (
        len(known_senders) < len(senders)
        or not known_senders
        or any(sender.chat is Chat.GROUP for sender in known_senders)
    ):
        return frozenset()
    first = known_senders[0].names
    return first if whole or all(sender.names & first for sender in known_senders) else frozenset()


def _read_metadata(text: str) -> Sender | None:
    """The sender in JSON blocks that the client put in front of the text."""
    names: set[str] = set()
    group, begin = False, 0
    for _ in range(_BLOCKS):
        block = clients.METADATA.match(text, begin)
        stamp = block or clients.STAMP.match(text, begin)
        if stamp is None:
            break
        begin = stamp.end()
        if block is None:
            continue
        value = _parse(block["json"])
        sender = value.get("sender", value)
        if isinstance(sender, str):
            names.add(sender)
        elif isinstance(sender, dict):
            names |= {str(sender[key]) for key in _IDENTITY if isinstance(sender.get(key), (str, int))}
        group = group or any(value.get(key) for key in _GROUP)
    if not fold(names):
        return None
    return Sender(fold(names), Chat.GROUP if group else Chat.DIRECT)


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
        return Sender(fold(_split_names(trailer[1])), Chat.GROUP)
    name, label = envelope["name"], envelope["label"]
    if name is None:
        return None
    if name == _SELF:
        return Sender(fold([name]), Chat.DIRECT, label)
    display = name.partition(" (")[0]
    direct = f" {display} id:" in envelope["chat"] + " id:"
    return Sender(fold(_split_names(name)), Chat.DIRECT if direct else Chat.GROUP, label)


def _split_names(text: str) -> list[str]:
    """The names in a sender as envelopes write it: "name (id)"."""
    name, _, identity = text.partition(" (")
    return [text, name, identity.removesuffix(")")]
