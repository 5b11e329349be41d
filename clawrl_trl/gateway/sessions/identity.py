"""Whose conversation a request says it belongs to, by the ids it carries.

The order is fixed: what is meant for us (a header, a body field, the URL) beats an id that a client happens to
write into its messages. An id counts only within its owner, and the ledger's id of a named session follows from
owner and name alone, so a session that left the index comes back as the same session.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from clawrl_trl.gateway.errors import invalid
from clawrl_trl.gateway.sessions import clients
from clawrl_trl.gateway.sessions.reading import Reading
from clawrl_trl.messages import Json

HEADERS = ("x-session-id", "x-session-affinity", "session_id", "session-id")
"""Headers that name a session, the strongest first."""

OWN_FIELDS = ("session_id", "turn_type", "session_done")
"""Body fields that are meant for the gateway and not for the engine."""

MAX_NAME = 512
"""Longest name of a session or a group, characters: databases index them."""

_COUNTED = re.compile(r"(?P<id>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}):\d{1,6}", re.IGNORECASE)
_TRUE = ("1", "true", "yes", "on")


@dataclass(frozen=True)
class Identity:
    """A session's name and where it was found.

    Attributes:
        external_id: The client's name for the session; `None` when the request names none.
        source: `header:...`, `body:...`, `url`, `message:<client>` or `inferred`.
        loose: The name may cover several conversations (a cache key, an agent with its subagents): what follows a
            reply must then be shown by the reply itself.
    """

    external_id: str | None
    source: str
    loose: bool = False


def identify(
    headers: Mapping[str, str], body: Mapping[str, object], path_session: str | None, reading: Reading
) -> Identity:
    """Find the session a request names.

    Raises:
        ApiError: 400 for a name that is too long.
    """
    client_session = reading.client_session
    for name in HEADERS:
        if value := _name(headers.get(name)):
            return Identity(_without_counter(value, client_session), f"header:{name}")
    if value := _name(body.get("session_id")):
        return Identity(_without_counter(value, client_session), "body:session_id")
    if value := _name(body.get("prompt_cache_key")):
        return Identity(_without_counter(value, client_session), "body:prompt_cache_key", loose=True)
    metadata = body.get("metadata")
    if isinstance(metadata, Mapping) and (value := _name(metadata.get("session_id"))):
        return Identity(_without_counter(value, client_session), "body:metadata.session_id")
    if value := _name(path_session):
        return Identity(value, "url")
    for name in clients.SESSION_HEADERS:
        if value := _name(headers.get(name)):
            return Identity(value, f"header:{name}", loose=True)
    if isinstance(metadata, Mapping) and isinstance(metadata.get("user_id"), str):
        for pattern in clients.USER_ID:
            if match := pattern.search(metadata["user_id"]):
                return Identity(match["id"], "body:metadata.user_id", loose=True)
    if client_session:
        return Identity(client_session, f"message:{reading.client_name}")
    return Identity(None, "inferred")


def turn_type(headers: Mapping[str, str], body: Mapping[str, object]) -> tuple[str, str] | None:
    """The kind the client states, with where it stands; `None` when it states none that we know."""
    for value, source in ((headers.get("x-turn-type"), "X-Turn-Type"), (body.get("turn_type"), "turn_type")):
        if isinstance(value, str) and value.strip().lower() in ("main", "side"):
            return value.strip().lower(), source
    return None


def says_session_done(headers: Mapping[str, str], body: Mapping[str, object]) -> bool:
    """Return whether the client says that the session ends with this request."""
    word = headers.get("x-session-done") or body.get("session_done")
    return str(word).strip().lower() in _TRUE


def named_session(owner: str, external_id: str) -> str:
    """The ledger's id of a session that the client named."""
    return "session_" + blake2b(f"{owner}\0{external_id}".encode("utf-8", "replace"), digest_size=14).hexdigest()


def strip_identity(body: Json) -> Json:
    """The body without the fields that are meant for the gateway: session_id, turn_type, session_done."""
    return {key: value for key, value in body.items() if key not in OWN_FIELDS}


def read_group(headers: Mapping[str, str]) -> str | None:
    """The group of rollouts that a request's session belongs to.

    Raises:
        ApiError: 400 for a name that is too long.
    """
    return _name(headers.get("x-group-id")) or None


def _name(value: object) -> str:
    # `True` is an int in Python, and no name.
    name = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if len(name) > MAX_NAME:
        raise invalid(f"The name of a session or a group has at most {MAX_NAME} characters, not {len(name):,}.")
    return name


def _without_counter(value: str, client_session: str | None) -> str:
    """A name without a counter of compactions at its end; other names may end in a number of their own."""
    if match := _COUNTED.fullmatch(value):
        return match["id"]
    if client_session and re.fullmatch(re.escape(client_session) + r":\d+", value):
        return client_session
    return value
