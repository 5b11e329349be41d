"""Progress bars that can't stop a run.

A bar is written to the terminal, and terminals go away: a closed window, a full disk under a log, the other end of a
pipe. tqdm keeps its lock when a write fails, so every other thread with a bar would wait for ever.
"""

import sys
from contextlib import suppress
from typing import Any, TextIO

from tqdm.auto import tqdm


class _ForgivingStream:
    """Stream whose failed writes are ignored."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def open_progress_bar(**options: Any) -> "tqdm[Any]":
    """Open a tqdm bar on stderr whose failed writes are ignored; `options` are tqdm's."""
    return tqdm(file=_ForgivingStream(sys.stderr), **options)
