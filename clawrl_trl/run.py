"""The run folder: where one run keeps everything it owns.

Every process of a run is given the folder alone and finds the rest here, so paths are spelled in one place.
Readiness files are written atomically and name the process that wrote them, so a reader can tell a live one
from one a crash left behind.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

CLOCK_SECONDS = 5.0
"""By how much two readings of a process's start may differ when the clock is set."""


@dataclass(frozen=True)
class RunFolder:
    """Paths and readiness files of a run.

    Args:
        path (`str` or `Path`): The folder; made when it is first written to.
    """

    path: Path

    def __init__(self, path: str | Path) -> None:
        object.__setattr__(self, "path", Path(path))

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.db"

    @property
    def policies(self) -> Path:
        return self.path / "policies"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def screenshots_of(self, session: str) -> Path:
        """Where the screenshots of an episode are kept, if they are."""
        name = quote(session, safe="").replace(".", "%2E")  # a client names its sessions, and may name one ".."
        return self.path / "screenshots" / (name or "%")

    def make(self) -> "RunFolder":
        """Create the folder and its sub-folders."""
        for folder in (self.path, self.policies, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        return self

    def announce(self, name: str, base_url: str, **extra: Any) -> None:
        """Write `<name>.json` with `base_url` and this process's id, readable by the owner alone."""
        path = self.path / f"{name}.json"
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        process = psutil.Process()
        content = {"base_url": base_url, "pid": process.pid, "started": process.create_time(), **extra}
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(content) + "\n")
        temporary.replace(path)

    def announced(self, name: str) -> dict[str, Any] | None:
        """What `<name>.json` says, or `None` when there is none or its process is gone."""
        try:
            content: dict[str, Any] = json.loads((self.path / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None
        return content if _lives(int(content["pid"]), content.get("started")) else None


def _lives(pid: int, started: float | None) -> bool:
    """Whether that process is still there, and not another that was given its id."""
    try:
        since = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return False
    return started is None or abs(since - started) < CLOCK_SECONDS
