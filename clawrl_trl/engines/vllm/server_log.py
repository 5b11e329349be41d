"""Progress and failures of a vLLM server, read off its log, one line each.

vLLM writes hundreds of lines while it starts. A person who waits wants the newest, one whose server failed the first
error that is not merely the report of another process's failure. A restarted server appends; only what it wrote
itself counts.
"""

import re
from pathlib import Path

TAIL_BYTES = 400_000
LONGEST = 160

_INFO = re.compile(r"INFO \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]+\] (.*)")
_PREFIX = re.compile(r"^(\(\w+ pid=\d+\) )?((INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]+\] ?)?")
_ERROR = re.compile(r"^(?:[\w.]*(?:Error|Exception|Interrupt)|[\w.]+: error|error): \S")
_COUNTED = re.compile(r"\d+ validation errors? for ")
_CACHE_TOO_SMALL = "KV cache is needed, which is larger than the available KV cache"
_SECOND_HAND = ("Engine core initialization failed", "EngineCore encountered", "Worker failed with error",
                "WorkerProc initialization failed", "EngineDeadError", "Engine core proc")  # fmt: skip


class ServerLog:
    """The log of one start of a server.

    Args:
        path (`Path`): The file; what is in it already belongs to earlier starts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin = path.stat().st_size if path.exists() else 0

    def newest_activity(self) -> str:
        """Return the newest INFO message, cut to a line; empty before there is one."""
        messages = [match[1] for line in self._lines() if (match := _INFO.search(line))]
        return messages[-1].strip()[:LONGEST] if messages else ""

    def find_cause(self) -> str:
        """Find the error that ended the server; empty if the log holds none."""
        lines = [_PREFIX.sub("", line).strip() for line in self._lines()]
        errors = [place for place, line in enumerate(lines) if _ERROR.match(line)]
        first_hand = [place for place in errors if not any(words in lines[place] for words in _SECOND_HAND)]
        if not errors:
            return ""
        place = (first_hand or errors)[-1]
        # pydantic says in the next line what it is that is wrong
        message = lines[place + 1] if _COUNTED.search(lines[place]) and place + 1 < len(lines) else lines[place]
        return message[: 3 * LONGEST]

    def has_cache_too_small(self) -> bool:
        """Return whether the server ended because its KV cache can't hold one conversation of the longest context."""
        return any(_CACHE_TOO_SMALL in line for line in self._lines())

    def _lines(self) -> list[str]:
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._begin:  # it was cut meanwhile
                    self._begin = 0
                # The tail alone: it is read twice a second while the server starts.
                file.seek(max(self._begin, size - TAIL_BYTES))
                return file.read().decode(errors="replace").splitlines()
        except OSError:
            return []
