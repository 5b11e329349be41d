"""The limits that hold for all processes of a sandbox together: memory and the size of the work folder.

One thread looks after all running commands of the program and ends the one that is over its limits; it sleeps after
each look in proportion to what that cost, so that it takes turns with those who work, and ends when there is nothing
left to watch.
"""

import contextlib
import errno
import logging
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clawrl_trl.envs.sandbox.limits import MB, Limits

logger = logging.getLogger(__name__)

PERIOD = 0.1
"""Seconds between two looks at the same command, at least."""
REST = 20
"""How much longer than a look the sleep after it is."""
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Watched:
    """A running command.

    Attributes:
        pid (`int`): Its outermost process, on the host.
        folders (`Sequence[Path]`): The folders that it may write to, on the host.
        limits ([`Limits`]): What it may use.
        stop (`Callable[[str], None]`): Ends it, with the reason.
    """

    pid: int
    folders: Sequence[Path]
    limits: Limits
    stop: Callable[[str], None]


@dataclass(frozen=True)
class WatchedBrowser:
    """A running browser, each process of which has a limit of its own, so that one page costs no other.

    Attributes:
        pid (`int`): A process from which all of the browser's stem.
        memory_mb (`int`): Memory of a process of the browser.
        tell (`Callable[[str], None]`): Is told the reason before a process is ended.
    """

    pid: int
    memory_mb: int
    tell: Callable[[str], None]

    def look(self) -> None:
        """End the processes that are over their limit."""
        for pid in descendants(self.pid):
            if memory_of([pid], self.memory_mb * MB) > self.memory_mb * MB:
                self.tell(f"the page used more than {self.memory_mb} MB of memory")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class Watch:
    """Looks after running commands; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, Watched | WatchedBrowser] = {}
        self._thread: threading.Thread | None = None

    def add(self, watched: Watched | WatchedBrowser) -> None:
        """Look after a command or a browser from now on."""
        with self._lock:
            self._watched[watched.pid] = watched
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sandbox-watch", daemon=True)
                self._thread.start()

    def remove(self, pid: int) -> None:
        """Leave a command alone."""
        with self._lock:
            self._watched.pop(pid, None)

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            with self._lock:
                if not self._watched:
                    self._thread = None
                    return
                watched = list(self._watched.values())
            for one in watched:
                looked = time.monotonic()
                self._look(one)
                time.sleep(REST * (time.monotonic() - looked))
            time.sleep(max(0.0, PERIOD - (time.monotonic() - began)))

    def _look(self, watched: Watched | WatchedBrowser) -> None:
        try:
            if isinstance(watched, WatchedBrowser):
                watched.look()
                return
            reason = excess(watched)
            if reason:
                self.remove(watched.pid)
                watched.stop(reason)
        except Exception:  # the others need their watch
            logger.exception("A sandboxed command can't be looked after.")


WATCH = Watch()
os.register_at_fork(after_in_child=WATCH.__init__)  # type: ignore[misc]


def excess(watched: Watched) -> str:
    """Return the limit that a command is over, in words; empty when none."""
    limits = watched.limits
    family = list(descendants(watched.pid))
    if memory_of(family, limits.memory_mb * MB) > limits.memory_mb * MB:
        return f"more than {limits.memory_mb} MB of memory"
    disk = limits.disk_mb * MB - unnamed(family)
    for folder in watched.folders:
        disk -= size_of(folder, disk) if disk >= 0 else 0
    if disk < 0:
        return f"more than {limits.disk_mb} MB on disk"
    return ""


def memory_of(family: Sequence[int], enough: int) -> int:
    """Bytes of memory that processes hold together; exact only when they may be more than `enough`."""
    resident = sum(_resident(one) for one in family)
    return resident if resident <= enough else sum(_proportional(one) for one in family)


def unnamed(family: Sequence[int]) -> int:
    """Bytes in open files that have no name in any folder: removed ones, and those that live in memory."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in family:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    file = entry.stat()
                    if file.st_nlink == 0 and stat.S_ISREG(file.st_mode):
                        sizes[file.st_dev, file.st_ino] = 512 * file.st_blocks
    return sum(sizes.values())


def descendants(pid: int) -> Iterator[int]:
    """A process and all that stem from it."""
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += children(one)


def children(pid: int) -> list[int]:
    """The processes that a process has started; none when it has ended."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    """Memory of a process, with what it shares counted in parts."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def size_of(folder: Path, enough: int) -> int:
    """Bytes that a folder takes on disk, counted until they are more than `enough`."""
    total = 0
    waiting = [os.fspath(folder)]
    while waiting and total <= enough:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += 512 * entry.stat(follow_symlinks=False).st_blocks
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError as error:  # it was removed meanwhile; a name too long to look into hides what it holds
            if error.errno == errno.ENAMETOOLONG:
                return enough + 1
    return total
