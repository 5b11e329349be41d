"""Reading flags into dataclasses so that a mistake costs the user one line, not a traceback or a page of usage."""

from collections.abc import Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, NoReturn

from clawrl_trl.errors import UserError


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

    def refuse(message: str) -> NoReturn:
        raise UserError(f"{message[:1].upper()}{message[1:].rstrip('.')}: --help lists what there is.")

    parser.error = refuse
    try:
        parsed: list[Any]
        *parsed, unknown = parser.parse_args_into_dataclasses(list(argv), return_remaining_strings=True)
    except ValueError as error:
        raise UserError(" ".join(str(error).split())) from error
    if unknown:
        names = [f"--{each.name}" for kind in parser.dataclass_types for each in fields(kind)]
        near = get_close_matches(unknown[0].split("=")[0], names, 1)
        remedy = f"did you mean {near[0]}?" if near else "--help lists them all."
        raise UserError(f"There is no flag for {' '.join(unknown)}: {remedy}")
    return parsed
