"""The request as every part of the gateway is given it, and its prompts as the index looks them up.

An `IncomingRequest` is built once, when it is admitted, and handed on up to the ledger. A chat has one prompt; a text
completion may have several, and each is a conversation of its own.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from clawrl_trl.gateway.sessions.digest import (
    HistoryDigest,
    Link,
    digest_history,
    digest_text,
    root_link,
)
from clawrl_trl.gateway.sessions.identity import Identity, identify, read_group, says_session_done
from clawrl_trl.gateway.sessions.kinds import RequestSetting, find_setting
from clawrl_trl.gateway.sessions.reading import HistoryRole, Reading, read
from clawrl_trl.gateway.wire import Wire
from clawrl_trl.messages import Json


@dataclass(frozen=True)
class IncomingRequest:
    """An admitted request.

    Attributes:
        wire (`Wire`): The endpoint it came to.
        owner (`str`): Fingerprint of its API key; conversations of two owners never join.
        headers (`Mapping[str, str]`): Its headers, names in lower case.
        body (`dict`): Its body; one of another API is replaced by the chat completion it is translated to.
        path_session (`str | None`): The session in the URL (`/s/<session>/v1`).
        size (`int`): Length of the body as it came, bytes.
        at (`float`): Unix time of its arrival, seconds.
        api (`dict`): What to remember of a request that came in another API; empty for the others.
        follows (`str | None`): The ledger's id of the session of the reply that the request continues by naming it.
    """

    wire: Wire
    owner: str
    headers: Mapping[str, str]
    body: Json
    path_session: str | None = None
    size: int = 0
    at: float = field(default_factory=time.time)
    api: Json = field(default_factory=dict)
    follows: str | None = None

    @cached_property
    def prompts(self) -> "list[Prompt]":
        """Its prompts, read and digested: pure, and what costs time when they are long. Any thread may ask first.

        Raises:
            ApiError: 400 for a session's name that is too long.
        """
        return [self._read_prompt(messages) for messages in self.wire.conversations(self.body)]

    def read(self) -> None:
        """Compute `prompts` now: for a long request on a thread, so that placing it holds up nobody."""
        _ = self.prompts

    @property
    def is_streamed(self) -> bool:
        """True if the client wants a stream."""
        return bool(self.body.get("stream"))

    @property
    def is_session_done(self) -> bool:
        """True if the client says that this request ends its session."""
        return says_session_done(self.headers, self.body)

    @property
    def group(self) -> str | None:
        """The group of rollouts that its session belongs to.

        Raises:
            ApiError: 400 for a name that is too long.
        """
        return read_group(self.headers)

    def _read_prompt(self, messages: object) -> "Prompt":
        # Admission lets objects alone through; whoever places a request without it may hold anything.
        items = messages if isinstance(messages, list) else []
        reading = read([message if isinstance(message, dict) else {} for message in items])
        identity = identify(self.headers, self.body, self.path_session, reading)
        return Prompt(self.owner, reading, identity, find_setting(reading, self.body.get("tools")), self.at)


class Prompt:
    """A prompt prepared for the search in the index.

    Attributes:
        path: `(index of the message, link)` of what later history keeps.
        link: The link that the history ends with.
        before: The link up to the last user message.
        text: That message's cleaned text, if the prompt ends with it; `text_digest` is its digest.
        is_closed: The prompt ends with a message that history keeps and that a reply can't merge with.
        key: Tells requests of one conversation apart: the link and the internal events behind it.
        last_reply: Index of the assistant's last message that history keeps; -1 for none.
    """

    def __init__(self, owner: str, reading: Reading, identity: Identity, setting: RequestSetting, at: float) -> None:
        self.owner = owner
        self.reading = reading
        self.identity = identity
        self.setting = setting
        self.at = at
        self.path = digest_history(owner, reading)
        root = root_link(owner)
        self.link = self.path[-1][1] if self.path else root
        notes = reading.notes
        last_role = notes[self.path[-1][0]].role if self.path else ""
        self.before = self.path[-2][1] if len(self.path) > 1 else root
        self.text = notes[self.path[-1][0]].text if last_role == "user" else ""
        self.text_digest = digest_text(self.text)
        trigger = reading.trigger()
        self.is_closed = last_role in ("user", "tool") and (
            trigger is None or trigger.history_role is HistoryRole.KEPT
        )
        # Events stand in no later history, so no link tells two requests apart that differ by an event alone.
        events = (note.text for note in notes if note.history_role is HistoryRole.EVENT)
        self.key = self.link + digest_text("\0".join(events))
        replies = (index for index, _ in reversed(self.path) if notes[index].role == "assistant")
        self.last_reply = next(replies, -1)

    def links_of_versions(self, lost_length: int | None) -> tuple[Link, ...]:
        """The links it may end with in later history, when its last message holds an earlier one that was lost.

        Args:
            lost_length: Characters of the lost message in front of the last message's text; `None` for none.
        """
        if not self.text:
            return ()
        texts = list(self.reading.notes[self.path[-1][0]].versions)
        if lost_length is not None:
            # A killed client folds its lost message into the next one, and drops it from later history.
            texts.append(self.text[lost_length:].strip())
        return tuple(self._digest_up_to_last().add("user", {}, text) for text in dict.fromkeys(texts) if text)

    def _digest_up_to_last(self) -> HistoryDigest:
        """The history up to the last user message, ready to go on as its own run of messages does."""
        history = HistoryDigest(root_link(self.owner))
        for position, _ in self.path[:-1]:
            note = self.reading.notes[position]
            history.add(note.role, self.reading.messages[position], note.text)
        return history
