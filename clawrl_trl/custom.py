"""Callables that users bring: `file.py:name` or `package.module:name`.

Everything is checked before anything starts, so a typo costs a line of text and not a run.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from clawrl_trl.errors import UserError


def load_callable(spec: str, *, parameters: Sequence[str]) -> Callable[..., Any]:
    """Load a user's callable and hold its signature against what it will be called with.

    Args:
        spec (`str`): `path/to/file.py:name` or `package.module:name`.
        parameters (`Sequence[str]`): Names of the arguments it is called with, in order; those it calls
            otherwise are fine, too few or too many required ones are not.

    Returns:
        The callable.

    Raises:
        UserError: If the file, module or name does not exist, is not callable, or can't be called so.
    """
    target = load_object(spec)
    if not callable(target):
        raise UserError(f"{spec!r} is a {type(target).__name__}, not a callable.")
    _check_signature(target, spec, parameters)
    return target


def load_object(spec: str) -> object:
    """Load what a user names, whatever it is.

    Raises:
        UserError: If the file, module or name does not exist.
    """
    place, separator, name = spec.rpartition(":")
    if not separator or not place or not name:
        raise UserError(f"{spec!r} names no callable: write file.py:name or package.module:name.")
    target: object = getattr(_module(place, spec), name, None)
    if target is None:
        raise UserError(f"{spec!r}: {place} has no {name!r}.")
    return target


def _module(place: str, spec: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        path = Path(place).expanduser().resolve()
        if not path.is_file():
            raise UserError(f"{spec!r}: there is no file {path}.")
        module_name = f"clawrl_custom_{path.stem}"
        module_spec = importlib.util.spec_from_file_location(module_name, path)
        assert module_spec is not None and module_spec.loader is not None
        module = importlib.util.module_from_spec(module_spec)
        sys.modules[module_name] = module
        module_spec.loader.exec_module(module)
        return module
    except (ImportError, SyntaxError) as error:
        raise UserError(f"{spec!r} can't be imported: {error}") from error


def _check_signature(target: Callable[..., Any], spec: str, parameters: Sequence[str]) -> None:
    try:
        signature = inspect.signature(target)
        signature.bind(*parameters)
    except TypeError as error:
        call = f"{target.__name__ if hasattr(target, '__name__') else 'callable'}({', '.join(parameters)})"
        raise UserError(f"{spec!r} must be callable as {call}: {error}.") from None
    except ValueError:
        return  # built-ins without a signature can't be checked
