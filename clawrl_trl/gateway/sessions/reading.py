"""Reading of a request's messages: their writers, and their texts without what clients put around them.

`read` looks at each message once and returns a `Reading`: who wrote the message, what becomes of it in later
history, and the cleaned text. The habits themselves are data (`clients`); nothing here knows a client by name.
Who wrote a message matters beyond stitching: only the owner's words may ever become a hint.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile

from clawrl_trl.gateway.sessions import clients
from clawrl_trl.gateway.sessions.senders import Names, Sender, choose_owner, label_senders, read_sender
from clawrl_trl.messages import Message, other_parts, text_of

MOST_READ = 2**20
"""Characters of a user message in which a client's marks are looked for; a longer one is taken as it stands.
A search holds up every other request for some milliseconds per million characters, on whatever thread it runs."""
_HEAD, _TAIL = 8192, 200
"""Characters at the ends of a longer one in which its sender is looked for."""

_BLANK_LINE = re.compile(r"\n[ \t]*\n")
_OTHER_VERSIONS = 8
_NUDGE_PARAGRAPHS = 32
_ROLES = {"developer": "system", "function": "tool"}


class HistoryRole(Enum):
    """Roles of a message in later history."""

    KEPT = "kept"
    DROPPED = "dropped"  # system, transient, or a nudge: in no later history
    EVENT = "event"  # a next state, gone or rewritten in later history
    WAKE = "wake"  # opens, or belongs to, a run that the client started by itself


@dataclass(slots=True)
class MessageReading:
    """One message, read.

    `text` is the cleaned text; `is_cleaned` says whether it differs from the message's, `is_unread` that the message
    was too long to be cleaned.
    """

    provenance: str
    history_role: HistoryRole
    text: str = ""
    role: str = "user"
    is_cleaned: bool = False
    is_queued: bool = False
    is_nudge: bool = False
    is_summary: bool = False
    is_unread: bool = False
    reason: str = ""
    sender: Sender | None = None
    versions: tuple[str, ...] = ()


@dataclass(slots=True)
class Reading:
    """A request's messages, read; `notes` has one entry per message."""

    messages: Sequence[Message]
    notes: list[MessageReading] = field(default_factory=list)
    system: str = ""
    client_session: str | None = None
    client_key: str = ""
    client_name: str = ""

    @property
    def provenance(self) -> list[str]:
        """One word per message: who it comes from."""
        return [note.provenance for note in self.notes]

    def trigger(self) -> MessageReading | None:
        """The user message that made the client ask: the last one that is neither transient nor a nudge."""
        user_notes = (note for note in reversed(self.notes) if note.role == "user")
        return next((note for note in user_notes if note.history_role is not HistoryRole.DROPPED), None)

    def name_owner(self, listed: Names = frozenset(), earlier: Sender | None = None) -> Sender | None:
        """Give the messages of other named senders than the owner the provenance `other`.

        Args:
            listed: Names under which the owner writes. Default: found by `choose_owner`.
            earlier: What this returned for an earlier request of the conversation.

        Returns:
            The owner; `None` where no message names its sender.
        """
        owner_notes = [note for note in self.notes if note.provenance == "owner"]
        if owner_notes and all(note.sender is None for note in owner_notes):
            several = earlier is not None and bool(earlier.names)
            labelled = label_senders([note.text for note in owner_notes], several=several) or ()
            for note, sender in zip(owner_notes, labelled, strict=False):
                note.sender = sender
        if earlier is not None or any(note.sender for note in owner_notes):
            # Where senders are named, whoever can't be told in so long a message may be anybody.
            for note in owner_notes:
                note.provenance = "other" if note.is_unread and note.sender is None else "owner"
            owner_notes = [note for note in owner_notes if note.provenance == "owner"]
        senders = [note.sender for note in owner_notes]
        if not any(senders):
            return earlier
        known_ids = [sender.ids for sender in (*senders, earlier) if sender is not None]
        if listed:
            # Of the listed names those are ids that somebody here has as one.
            owner = Sender(listed, ids=listed & frozenset().union(*known_ids))
        elif earlier is not None:
            owner = earlier
        else:
            owner = choose_owner(senders, whole=not any(note.is_summary for note in self.notes))
        for note in owner_notes:
            if note.sender is not None and not note.sender.is_same(owner):
                note.provenance = "other"
        return owner

    def is_retry(self) -> bool:
        """Return whether the client says that it repeats something that got no answer."""
        newest = takewhile(lambda note: note.role != "assistant", reversed(self.notes))
        return any(note.is_nudge for note in newest)

    def after(self, index: int) -> tuple[list[Message], list[str]]:
        """Return what follows message `index` up to the next reply: cleaned messages and their provenance."""
        messages: list[Message] = []
        provenance: list[str] = []
        for message, note in zip(self.messages[index + 1 :], self.notes[index + 1 :], strict=True):
            # What a heartbeat left behind is not what the owner said to the reply before it.
            if note.history_role in (HistoryRole.DROPPED, HistoryRole.WAKE) or note.is_summary:
                continue
            if note.role == "assistant":
                break
            messages.append(_clean(message, note))
            provenance.append(note.provenance)
        return messages, provenance


def role_of(message: Message) -> str:
    """The message's role, `developer` and `function` under their current names."""
    role = message.get("role")
    return _ROLES.get(role, role) if isinstance(role, str) else ""


def read(messages: Sequence[Message]) -> Reading:
    """Read a request's messages."""
    reading = Reading(messages)
    first, woken, agents = True, False, False
    for message in messages:
        role = role_of(message)
        if role == "user":
            follows_tool = bool(reading.notes) and reading.notes[-1].role == "tool"
            note = _read_user(message, first=first, follows_tool=follows_tool)
            # The line stands in the first user message; in a later one it is text that somebody pasted.
            if first:
                agents = _read_first_user(reading, message, note) or agents
                first = False
            text = text_of(message)
            note.is_unread = len(text) > MOST_READ
            note.sender = read_sender(message, text[:_HEAD] + text[-_TAIL:] if note.is_unread else text)
            if agents and note.provenance == "owner":
                note.provenance = "event"
            # A transient message behind a wake-up does not end the run that it opened.
            if note.history_role is not HistoryRole.DROPPED:
                woken = note.history_role is HistoryRole.WAKE
        elif role == "assistant":
            note = MessageReading("assistant", HistoryRole.WAKE if woken else HistoryRole.KEPT, role="assistant")
            woken = woken and bool(message.get("tool_calls"))
        elif role == "tool":
            note = MessageReading("tool", HistoryRole.WAKE if woken else HistoryRole.KEPT, role="tool")
        else:
            note = MessageReading("system", HistoryRole.DROPPED, role=role)
            if not reading.system:
                reading.system = text_of(message)
        reading.notes.append(note)
    return reading


def _read_first_user(reading: Reading, message: Message, note: MessageReading) -> bool:
    """Find the client's own session id; says whether the session's user is another agent."""
    text = text_of(message)
    for name, pattern in clients.SESSION_ID if len(text) <= MOST_READ else ():
        # The last line counts: the client appends it, and the text above may hold an older one.
        for match in pattern.finditer(text):
            reading.client_key = (match["key"] or "").strip()
            reading.client_session = None if clients.FORK_KEY.search(reading.client_key) else match["id"]
            reading.client_name = name
    by_key = bool(reading.client_key and clients.AGENT_KEY.search(reading.client_key))
    return by_key or bool(clients.AGENT.match(note.text))


def _read_user(message: Message, *, first: bool, follows_tool: bool) -> MessageReading:
    """Clean a user message step by step; each step is one habit of the dialect table."""
    raw = text_of(message)
    if len(raw) > MOST_READ:
        return MessageReading("owner", HistoryRole.KEPT, raw.strip())
    # Before anything is cut: an event may consist of nothing but internal context, which is cut below.
    if clients.EVENT.match(raw):
        return MessageReading("event", HistoryRole.EVENT, raw)
    text = cut_inserts(raw.strip())
    text, marked = _peel(text)
    note = MessageReading("owner", HistoryRole.KEPT, text, is_cleaned=text != raw.strip())
    if not text and not other_parts(message):
        note.history_role = HistoryRole.WAKE if marked else HistoryRole.DROPPED
        note.provenance = "event" if "cron" in marked.lower() else "client"
        note.reason = "a cron wake" if "cron" in marked.lower() else "a heartbeat" if marked else ""
        return note
    if clients.EVENT.match(text):
        note.provenance, note.history_role = "event", HistoryRole.EVENT
        return note
    if reason := _wake_reason(text):
        note.provenance, note.history_role = "event" if "cron" in reason else "client", HistoryRole.WAKE
        note.reason = reason
        return note
    if opening := clients.QUEUED.match(text):
        return _read_queued(note, _peel(text[opening.end() :].strip())[0])
    # Only there is it the client's: a person may say "Continue the current task" as well.
    if follows_tool and clients.NUDGE.match(text):
        note.provenance, note.history_role, note.is_nudge = "client", HistoryRole.DROPPED, True
    elif clients.CARRIED.match(text):
        note.provenance = "tool"
    # Only there does it replace history; further down a person may quote a summary.
    elif first and clients.SUMMARY.match(text):
        note.provenance, note.is_summary = "client", True
    return note


def cut_inserts(text: str) -> str:
    """Cut what clients insert anywhere into a user's text: status lines and internal context."""
    for needle, pattern in clients.CUTS:
        # Searched for first: most texts hold no mark, and a pattern on a long text holds up every other thread.
        if needle in text:
            text = pattern.sub("", text).strip()
    return text


def _peel(text: str) -> tuple[str, str]:
    """Cut stamps and wake marks from the start of a text; also returns the last mark found."""
    marked, begin = "", 0
    while True:
        if mark := clients.WAKE_MARK.match(text, begin):
            marked, begin = mark[0], mark.end()
        elif stamp := clients.STAMP.match(text, begin):
            begin = stamp.end()
        else:
            return text[begin:], marked


def _wake_reason(text: str) -> str:
    for pattern, reason in clients.WAKE:
        if pattern.match(text):
            return reason
    return next((reason for word, reason in clients.WAKE_WORDS if word in text), "")


def _read_queued(note: MessageReading, text: str) -> MessageReading:
    """A message that got no answer, repeated: alone (a nudge follows it) or in front of a newer one.

    Later history shows the repeated message in the first case and the newer one in the second; where the newer
    one starts is not marked, so every ending after a blank line is a version of this message.
    """
    note.is_queued, note.is_cleaned = True, True
    cuts = [match.end() for match in _BLANK_LINE.finditer(text)]
    for cut in reversed(cuts[-_NUDGE_PARAGRAPHS:]):
        if clients.NUDGE.match(_peel(text[cut:].strip())[0]):
            note.is_nudge = True
            note.text = text[:cut].strip()
            return note
    note.text = text
    endings = (_peel(text[cut:].strip())[0] for cut in cuts[-_OTHER_VERSIONS:])
    note.versions = tuple(ending for ending in endings if ending)
    return note


def _clean(message: Message, note: MessageReading) -> Message:
    label = note.sender.label if note.sender else ""
    if not (note.is_cleaned or label) or note.history_role is HistoryRole.EVENT:
        return message
    text = note.text.removeprefix(label)
    others = other_parts(message)
    content = [{"type": "text", "text": text}, *others] if others else text
    return {**message, "content": content}
