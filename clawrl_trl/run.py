"""The run folder: where one run keeps everything it owns.

Every process of a run is given the folder alone and finds the rest here, so paths are spelled in one place.
Readiness files are written atomically and name the process that wrote them, so a reader can tell a live one
from one a crash left behind. Folders are 0700 and files 0600 whatever the process's umask: a run holds people's chats.
"""

import json
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import psutil

logger = logging.getLogger(__name__)

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
PRIVATE_UMASK = 0o077
"""Umask of the processes that write nothing but a run's files."""

CLOCK_SECONDS = 5.0
"""By how much two readings of the time at which a process started may differ."""

_FOLDERS = ("logs", "policies", "screenshots", "runs", "checkpoint-*")
_FILES = (
    *("ledger.db*", "*.lock", "settings.json", "metrics.json", "evaluation_*.json", "judge_exam.json", "*.jsonl"),
    *("practice.json", "persona.json", "learning_curve.png", "engine_memory.json", "judge_engine_memory.json"),
    *("engine.json", "gateway.json", "judge.json", "judge_engine.json", "trainer.json", "training_args.bin"),
    "trainer.heartbeat",
)
"""What a run makes: all that is changed in a folder that holds other things too."""
_SAVED = (
    *("README.md", "config.json", "generation_config.json", "adapter_config.json", "trainer_state.json"),
    *("*_results.json", "*processor_config.json", "chat_template.*", "tokenizer*", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.*", "merges.txt", "*.safetensors", "*.safetensors.index.json", ".git*"),
    *("*.tmp", ".probe-*"),
)
"""What a run's own folder may hold besides: what transformers saves there, and files that are being written."""


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

    @property
    def heartbeat(self) -> Path:
        """The trainer's sign of life, see `clawrl_trl.heartbeat`."""
        return self.path / "trainer.heartbeat"

    def find_screenshots(self, session: str) -> Path:
        """Return the folder of an episode's screenshots, whether or not it exists."""
        name = quote(session, safe="").replace(".", "%2E")  # a client names its sessions, and may name one ".."
        return self.path / "screenshots" / (name or "%")

    def make(self) -> "RunFolder":
        """Create the folder and its sub-folders, and take from other users what they could read of an earlier run."""
        for folder in (self.path, self.policies, self.logs):
            make_private(folder)
        if changed := self.tighten():
            logger.warning(
                "%d files and folders of %s were open to other users and are private now", changed, self.path
            )
        return self

    def tighten(self) -> int:
        """Make the run's folders 0700 and its files 0600, links left alone; returns how many were not."""
        return sum(map(take_from_others, self._own_paths())) if self.path.is_dir() else 0

    def _own_paths(self) -> Iterator[Path]:
        ours = self._is_ours()
        if ours:
            yield self.path
        for entry in self.path.glob("*") if ours else (match for name in _FILES for match in self.path.glob(name)):
            if not entry.is_dir():
                yield entry
        for folder in (match for name in _FOLDERS for match in self.path.glob(name) if not match.is_symlink()):
            yield folder
            for parent, folders, files in os.walk(folder):  # which minds nothing that goes meanwhile
                yield from (Path(parent, name) for name in (*folders, *files))

    def _is_ours(self) -> bool:
        """Tell a run's own folder from one that is shared, such as /tmp, or is more than a run, such as a home."""
        status = self.path.stat()
        if status.st_uid != os.geteuid() or status.st_mode & stat.S_ISVTX:
            return False
        return all(
            any(entry.match(name) for name in (_FOLDERS if entry.is_dir() else (*_FILES, *_SAVED)))
            for entry in self.path.iterdir()
        )

    def announce(self, name: str, base_url: str, **extra: Any) -> None:
        """Write `<name>.json` with `base_url` and this process's id, readable by the owner alone."""
        process = psutil.Process()
        # The time is for processes of a release that knows no marks.
        born = {"started": process.create_time(), "mark": _read_mark(process.pid)}
        content = {"base_url": base_url, "pid": process.pid, **born, **extra}
        write_private(self.path / f"{name}.json", json.dumps(content) + "\n")

    def read_announced(self, name: str) -> dict[str, Any] | None:
        """Read `<name>.json`; `None` when there is none or its process is gone."""
        try:
            content: dict[str, Any] = json.loads((self.path / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None
        return content if _lives(int(content["pid"]), content.get("started"), content.get("mark")) else None


def make_private(folder: Path) -> None:
    """Create a folder that its owner alone may enter; one that exists, and its parents, stay as they are."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=PRIVATE_FOLDER)


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file to write to, readable by its owner alone, as it is made or found."""
    return open(path, mode, opener=_open_descriptor)


def write_private(path: Path, text: str) -> None:
    """Write a file at once or not at all, readable by its owner alone."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open_private(temporary, "w") as file:
        file.write(text)
    temporary.replace(path)


def take_from_others(path: Path) -> bool:
    """Take group's and others' rights from a file or folder of ours, but from no link; returns if there were any."""
    with suppress(OSError):  # one that is gone, another user's, or on a disk that can't be written
        mode = path.lstat().st_mode
        if mode & PRIVATE_UMASK and not stat.S_ISLNK(mode):
            path.chmod(stat.S_IMODE(mode) & PRIVATE_FOLDER)
            return True
    return False


def _open_descriptor(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, PRIVATE_FILE)
    take_from_others(Path(path))
    return descriptor


def _lives(pid: int, started: float | None, mark: str | None) -> bool:
    """Return whether that process is still there, and not another that was given its id."""
    now = _read_mark(pid) if mark is not None else None
    if now is not None:
        return now == mark
    try:
        since = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return False
    return started is None or abs(since - started) < CLOCK_SECONDS


def _read_mark(pid: int) -> str | None:
    """Boot of the machine and tick at which a process started; `None` where the system tells neither.

    Unlike the time of its start it stays the same when the clock is set.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses itself; the start is the 20th field behind it.
    return f"{boot} {status.rpartition(')')[2].split()[19]}"
