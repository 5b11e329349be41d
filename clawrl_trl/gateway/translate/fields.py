"""Reading a request of another API strictly: each value has the type its place asks for, and no field is lost.

A translation that skips what it does not know would answer another question than was asked. So every field of a
request is named in its API's `Fields`, as translated, passed on, without effect here, or refused with a reason;
and what is none of these is refused by name, as the APIs themselves do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clawrl_trl.gateway.errors import ApiError, invalid
from clawrl_trl.gateway.sessions.identity import OWN_FIELDS
from clawrl_trl.messages import Json

ENGINE_FIELDS = frozenset(
    {
        "bad_words",
        "cache_salt",
        "chat_template_kwargs",
        "frequency_penalty",
        "ignore_eos",
        "include_stop_str_in_output",
        "logit_bias",
        "min_p",
        "min_tokens",
        "presence_penalty",
        "priority",
        "repetition_penalty",
        "seed",
        "skip_special_tokens",
        "stop_token_ids",
        "top_k",
    }
)
"""Sampling fields of the engine that a client may add in any API; they mean the same in all of them."""

COMMON_FIELDS = frozenset({*OWN_FIELDS, *ENGINE_FIELDS, "metadata", "model", "stream", "temperature", "top_p"})
"""Fields that are called the same in a chat completion."""


@dataclass(frozen=True)
class Fields:
    """Table of an API's request fields and what becomes of each.

    Args:
        translated (`frozenset[str]`): Read by the translation.
        passed (`frozenset[str]`): Copied; beside `COMMON_FIELDS`.
        idle (`frozenset[str]`): Without effect on a reply: caching, billing, routing.
        refused (`Mapping[str, str]`): What can't be translated, each with the reason or the remedy.
    """

    translated: frozenset[str]
    passed: frozenset[str] = frozenset()
    idle: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)

    def copy_from(self, body: Mapping[str, Any]) -> Json:
        """The fields to copy.

        Raises:
            ApiError: 400 for a field that is refused or unknown, unless it is null (or, refused, false or empty).
        """
        passed = self.passed | COMMON_FIELDS
        for name, value in body.items():
            if name in self.refused and value:
                raise make_unsupported_error(name, self.refused[name])
            is_known = name in passed or name in self.translated or name in self.idle or name in self.refused
            if value is not None and not is_known:
                raise invalid(f"Unknown parameter: {name[:100]!r}.", param=name[:100], code="unknown_parameter")
        return {name: value for name, value in body.items() if name in passed and value is not None}


def make_unsupported_error(where: str, why: str) -> ApiError:
    """A refusal of what can't be translated."""
    return invalid(f"{where}: {why}", param=where, code="unsupported_value")


def require_text(value: Any, where: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise _make_type_error(where, "a string", value)
    return value


def read_optional_text(value: Any, where: str) -> str | None:
    """A string or nothing."""
    return None if value is None else require_text(value, where)


def require_object(value: Any, where: str) -> Json:
    """An object."""
    if not isinstance(value, dict):
        raise _make_type_error(where, "an object", value)
    return value


def require_objects(value: Any, where: str) -> list[tuple[str, Json]]:
    """A list of objects, each with its own place."""
    if not isinstance(value, list):
        raise _make_type_error(where, "a list", value)
    places = [f"{where}.{position}" for position in range(len(value))]
    return [(place, require_object(item, place)) for place, item in zip(places, value, strict=True)]


def require_filled_text(value: Mapping[str, Any], name: str, where: str) -> str:
    """A string that must be there and not be empty."""
    if not (value_text := require_text(value.get(name), f"{where}.{name}")):
        raise invalid(f"{where}.{name}: must not be empty", param=f"{where}.{name}", code="invalid_value")
    return value_text


def _make_type_error(where: str, expected: str, value: Any) -> ApiError:
    type_names = {type(None): "nothing", bool: "a boolean", dict: "an object", list: "a list", str: "a string"}
    code = "missing_required_parameter" if value is None else "invalid_type"
    actual = type_names.get(type(value), "a number")
    return invalid(f"{where}: expected {expected}, got {actual}", param=where, code=code)
