"""The one error a person is meant to read.

`UserError` carries one line that says what is wrong and what to do about it; entry points print it without
a traceback. Everything else is a programmer's error and propagates.
"""

import os
import sys
from collections.abc import Callable

from clawrl_trl.visible_text import make_visible

EXIT_BROKEN_PIPE = 141
EXIT_USER_ERROR = 2
"""Exit code of a process that ended because of a `UserError`; a supervisor does not restart one that never came up."""


class UserError(Exception):
    """A mistake or a condition that the user can remedy; its text is one line with the remedy."""


def run_main(main: Callable[[], int | None]) -> int:
    """Run an entry point: a `UserError` becomes one line on stderr and exit code 2, Ctrl-C becomes 130.

    A reader that closes the pipe early ends it quietly with 141, as a shell would report the signal.
    """
    try:
        code = main() or 0
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"error: {make_visible(str(error))}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of a pipe has left, as `head` does; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
