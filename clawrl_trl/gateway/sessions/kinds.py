"""Main or side: whether a request is the conversation itself or a client's own business beside it.

What the client states wins. Else a request is main unless something speaks against it: its content (a dialect's
marks), or that it carries a conversation's history under another system prompt or with a fraction of its tools.
So a plain chat without any header is main, from its first request on. Each decision comes with a sentence.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from clawrl_trl.gateway.sessions import clients
from clawrl_trl.gateway.sessions.identity import turn_type
from clawrl_trl.gateway.sessions.reading import HistoryRole, Reading
from clawrl_trl.gateway.sessions.sketch import Sketch, are_alike, sketch

_ONE_SHOT_SYSTEM = 4000
_MANY_TOOLS = 4


@dataclass(frozen=True, slots=True)
class RequestSetting:
    """Setting of a request: a sketch of its system prompt and the names of its tools."""

    system: Sketch
    tools: frozenset[str]

    def is_prompted_like(self, other: "RequestSetting") -> bool:
        """Return whether the system prompt is the other's but for stamps and small changes."""
        return are_alike(self.system, other.system)

    def is_like(self, other: "RequestSetting") -> bool:
        """Return whether the tools, too, are the other's."""
        return self.tools == other.tools and self.is_prompted_like(other)


def find_setting(reading: Reading, tools: object) -> RequestSetting:
    """The setting of a request."""
    objects = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    functions = (tool["function"] if isinstance(tool.get("function"), dict) else tool for tool in objects)
    names = frozenset(str(function.get("name")) for function in functions)
    return RequestSetting(sketch(reading.system), names)


def find_kind(headers: Mapping[str, str], body: Mapping[str, object], reading: Reading) -> tuple[str, str]:
    """The kind of a request by itself, and the reason; a main request that nothing speaks against has none.

    Args:
        headers (`Mapping[str, str]`): Lower-case names.
        body (`Mapping[str, object]`): The request's body.
        reading (`Reading`): Its messages.
    """
    if stated := turn_type(headers, body):
        return stated[0], f"the client says so ({stated[1]})"
    # A text completion has no roles: nothing in it could be told to be the owner's next words.
    if "prompt" in body or "messages" not in body:
        return "side", "a raw completion, not a chat"
    if reason := _side_by_content(reading, body):
        return "side", reason
    return "main", ""


def why_side_beside(setting: RequestSetting, main: RequestSetting) -> str:
    """Why a request that extends a conversation is a side request by its setting; empty if it is not.

    Args:
        setting (`RequestSetting`): The request's.
        main (`RequestSetting`): That of the conversation's last main request.
    """
    # Both must differ: clients change tools from request to request, and system prompts too.
    if main.tools and not setting.tools and not setting.is_prompted_like(main):
        return "the conversation's history under another system prompt and without tools"
    # A memory flush of OpenClaw has two of a dozen tools; switching off a few of them is the user's own doing.
    few = 0 < len(setting.tools) <= len(main.tools) / 2
    if few and len(main.tools) >= _MANY_TOOLS and setting.tools < main.tools:
        return f"the conversation's history with {len(setting.tools)} of its {len(main.tools)} tools"
    return ""


def _side_by_content(reading: Reading, body: Mapping[str, object]) -> str:
    for pattern, reason in clients.SIDE_KEY:
        if reading.client_key and pattern.search(reading.client_key):
            return f"{reason}, by the client's session name"
    trigger = reading.trigger()
    if trigger is not None:
        if trigger.history_role is HistoryRole.WAKE:
            return f"{trigger.reason}, by its text"
        for pattern, reason in clients.SIDE_PROMPT:
            if pattern.match(trigger.text):
                return f"{reason}, by its text"
    # With tools it is an agent at work, whatever its prompt mentions.
    if body.get("tools"):
        return ""
    is_alone = not any(note.role == "assistant" for note in reading.notes)
    if is_alone and trigger is not None:
        for pattern, reason in clients.ONE_SHOT:
            if pattern.match(trigger.text):
                return f"{reason}, by its text"
    # Those of side requests have some hundred characters; that of an agent may mention titles among much else.
    for pattern, reason in clients.SIDE_SYSTEM if len(reading.system) <= _ONE_SHOT_SYSTEM else ():
        if (is_alone or "/btw" in reason) and pattern.search(reading.system):
            return f"{reason}, by its system prompt"
    return ""
