"""The one error a person is meant to read.

`UserError` carries one line that says what is wrong and what to do about it; entry points print it without
a traceback. Everything else is a programmer's error and propagates.
"""

import sys
from collections.abc import Callable

EXIT_USER_ERROR = 2
"""Exit code of a process that ended because of a `UserError`; a supervisor does not restart one that never came up."""


class UserError(Exception):
    """A mistake or a condition that the user can remedy; its text is one line with the remedy."""


def run_main(main: Callable[[], int | None]) -> int:
    """Run an entry point: a `UserError` becomes one line on stderr and exit code 2, Ctrl-C becomes 130."""
    try:
        return main() or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        return 130
