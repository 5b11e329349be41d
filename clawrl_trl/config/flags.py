"""Reading flags into dataclasses so that a mistake costs the user one line, not a traceback or a page of usage."""

import json
import math
import os
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

from clawrl_trl.errors import UserError

Values = dict[str, Any]
"""Values of flags, by their names."""
Default = TypeVar("Default", int, None)


class _ExplicitFlags(Namespace):
    """A namespace where every flag counts as set already, so that argparse fills in no default."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):  # argparse keeps what it doesn't know under a name of its own
            raise AttributeError(name)


def read_flags(parser: Any, argv: Sequence[str]) -> list[Any]:
    """Parse a command line with transformers' `HfArgumentParser`, or TRL's.

    Args:
        parser (`HfArgumentParser`): Knows the dataclasses.
        argv (`Sequence[str]`): The words after the command.

    Returns:
        `list`: One object for each dataclass, then the namespace of further arguments, if the parser has any.

    Raises:
        UserError: For a word that is no flag, a value of another type, and a value that a dataclass refuses.
    """
    parser.error = _refuse
    try:
        parsed: list[Any]
        # Unknown words are handed back and not refused by the parser, so that the nearest flag can be named.
        *parsed, unknown = parser.parse_args_into_dataclasses(list(argv), return_remaining_strings=True)
    except ValueError as error:
        raise UserError(" ".join(str(error).split())) from error  # some of TRL's have several lines
    _refuse_unknown(parser, unknown)
    return parsed


def read_explicit_flags(parser: Any, argv: Sequence[str]) -> Values:
    """Parse a command line; returns the values of the flags that are given, and no defaults.

    Raises:
        UserError: For a word that is no flag, and a value of another type.
    """
    parser.error = _refuse
    explicit = _ExplicitFlags()
    _, unknown = parser.parse_known_args(list(argv), explicit)
    _refuse_unknown(parser, unknown)
    return vars(explicit)


def read_file_values(parser: Any, values: Mapping[str, Any], source: str) -> Values:
    """Read a file's values of flags, text as on a command line; they become the defaults that `--help` shows.

    Args:
        parser (`HfArgumentParser`): Knows the dataclasses.
        values (`Mapping`): Values by the names of their flags.
        source (`str`): The file, as an error names it.

    Raises:
        UserError: If there is no such flag, or a text is no value of its flag.
    """
    parser.error = _refuse
    names = list_flags(parser.dataclass_types)
    if unknown := [f"--{name}" for name in values if name not in names]:
        raise UserError(f"{source} sets what there is not: {', '.join(unknown)}.")
    # argparse reads a default that is text as it reads a word of the command line.
    parser.set_defaults(**values)
    # With no words, because only defaults are to be read; they pass the same types and choices.
    converted = parser.parse_args([])
    return {name: getattr(converted, name) for name in values}


def build_arguments(kinds: Iterable[type], values: Mapping[str, Any]) -> list[Any]:
    """Return an object of each dataclass, made of those values that are its fields'.

    Raises:
        UserError: If a dataclass refuses a value.
    """
    try:
        return [kind(**{name: values[name] for name in list_flags([kind]) if name in values}) for kind in kinds]
    except ValueError as error:
        raise UserError(" ".join(str(error).split())) from error


def list_flags(kinds: Iterable[type]) -> list[str]:
    """Return the names of the flags that dataclasses have."""
    return [flag.name for kind in kinds for flag in fields(kind) if flag.init]


def read_number(variable: str, default: Default) -> int | Default:
    """Read a whole number from an environment variable, for a flag that is not given.

    Raises:
        UserError: If it is none.
    """
    value = os.environ.get(variable)
    try:
        return int(value) if value else default
    except ValueError:
        raise UserError(f"{variable}={value!r} is no whole number.") from None


def read_mapping(flag: str, value: object) -> dict[str, object]:
    """Read a flag that is a mapping in a YAML file, and JSON on a command line; `None` is an empty one.

    Raises:
        UserError: If it is neither.
    """
    try:
        mapping = json.loads(value) if isinstance(value, str) else value or {}
    except ValueError as error:
        raise UserError(f"--{flag} is no JSON: {error}.") from None
    if not isinstance(mapping, dict):
        raise UserError(f"--{flag} must be a mapping of names to values.")
    return mapping


def check_ranges(
    values: Mapping[str, Any],
    at_least: Mapping[str, float],
    at_most: Mapping[str, float] | None = None,
    above_zero: Iterable[str] = (),
) -> None:
    """Check values against their ranges; `None` and names without a value are left alone.

    Args:
        values (`Mapping`): Values by the names of their flags.
        at_least (`Mapping`): Smallest usable value, by name.
        at_most (`Mapping`, *optional*): Largest usable value, by name.
        above_zero (`Iterable`, *optional*): Names whose values must be positive.

    Raises:
        UserError: For the first value that is out of range or no finite number.
    """
    ranges = {name: f"at least {low}" for name, low in at_least.items()}
    ranges |= {name: f"{at_least[name]} to {high}" for name, high in (at_most or {}).items()}
    ranges |= dict.fromkeys(above_zero, "above 0")
    for name, usable in ranges.items():
        value = values.get(name)
        if value is None:
            continue
        high = (at_most or {}).get(name, math.inf)
        fits = value > 0 if usable == "above 0" else at_least[name] <= value <= high
        # An infinity is above any bound, and NaN fails every comparison.
        if not (fits and math.isfinite(value)):
            raise UserError(f"--{name} {value} is out of range: use a value {usable}.")


def _refuse(message: str) -> NoReturn:
    # In place of argparse's own, which prints the usage of all flags and exits.
    raise UserError(f"{message[:1].upper()}{message[1:].rstrip('.')}: --help lists what there is.")


def _refuse_unknown(parser: Any, words: Sequence[str]) -> None:
    if words:
        names = [f"--{name}" for name in list_flags(parser.dataclass_types)]
        # The first word alone: the others may be values of the flag that was misspelt.
        near = get_close_matches(words[0].split("=")[0], names, 1)
        remedy = f"did you mean {near[0]}?" if near else "--help lists them all."
        raise UserError(f"There is no flag for {' '.join(words)}: {remedy}")
