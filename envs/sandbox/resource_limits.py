"""Limits that hold for all processes of a sandbox together: memory and the size of the work folder.

One thread measures all running commands of the program and ends those that are over a limit. After each measurement it
sleeps in proportion to what that cost, so that it takes little of the processor, and it ends when no command runs.
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
"""Least seconds between two measurements of the same command."""
REST_RATIO = 20
"""How many times longer than a measurement the sleep after it is: the thread takes at most 1/21 of a core."""
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class RunningCommand:
    """A running command under limits.

    Attributes:
        pid (`int`): Its outermost process, on the host.
        folders (`Sequence[Path]`): The folders that it may write to, on the host.
        limits ([`Limits`]): What it may use.
        stop (`Callable[[str], None]`): Called with the reason to end it.
    """

    pid: int
    folders: Sequence[Path]
    limits: Limits
    stop: Callable[[str], None]


@dataclass(frozen=True)
class RunningBrowser:
    """A running browser, each process of which has a limit of its own, so that one page costs no other.

    Attributes:
        pid (`int`): A process that all of the browser's descend from.
        memory_mb (`int`): Memory of a process of the browser.
        report (`Callable[[str], None]`): Called with the reason before a process is ended.
    """

    pid: int
    memory_mb: int
    report: Callable[[str], None]

    def end_oversized_processes(self) -> None:
        """End the processes that are over their limit."""
        for pid in iterate_descendants(self.pid):
            if measure_memory([pid], self.memory_mb * MB) > self.memory_mb * MB:
                # Before the kill: whoever notices the dead page looks for the reason at once.
                self.report(f"the page used more than {self.memory_mb} MB of memory")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class ResourceMonitor:
    """Measures running commands and browsers; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, RunningCommand | RunningBrowser] = {}
        self._thread: threading.Thread | None = None

    def add(self, entry: RunningCommand | RunningBrowser) -> None:
        """Measure a command or a browser from now on."""
        with self._lock:
            self._entries[entry.pid] = entry
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sandbox-monitor", daemon=True)
                self._thread.start()

    def remove(self, pid: int) -> None:
        """Measure a command no more."""
        with self._lock:
            self._entries.pop(pid, None)

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            with self._lock:
                if not self._entries:
                    # Under the lock, so that a command added now finds either this thread running or none.
                    self._thread = None
                    return
                entries = list(self._entries.values())
            for entry in entries:
                # What it computes counts, not what it waits: on a busy machine a command would go unseen for long.
                check_began = time.thread_time()
                self._check(entry)
                time.sleep(REST_RATIO * (time.thread_time() - check_began))
            time.sleep(max(0.0, PERIOD - (time.monotonic() - began)))

    def _check(self, entry: RunningCommand | RunningBrowser) -> None:
        try:
            if isinstance(entry, RunningBrowser):
                entry.end_oversized_processes()
                return
            reason = find_excess(entry)
            if reason:
                self.remove(entry.pid)
                entry.stop(reason)
        except Exception:  # the other commands still need their limits
            logger.exception("A sandboxed command can't be measured.")


MONITOR = ResourceMonitor()
# No thread survives a fork, and the lock may have been held: a child starts with a monitor of its own.
os.register_at_fork(after_in_child=MONITOR.__init__)  # type: ignore[misc]


def find_excess(command: RunningCommand) -> str:
    """Return the limit that a command exceeds, in words; empty when none."""
    limits = command.limits
    pids = list(iterate_descendants(command.pid))
    if measure_memory(pids, limits.memory_mb * MB) > limits.memory_mb * MB:
        return f"more than {limits.memory_mb} MB of memory"
    available = limits.disk_mb * MB - measure_unnamed_files(pids)
    for folder in command.folders:
        available -= measure_folder(folder, available) if available >= 0 else 0
    if available < 0:
        return f"more than {limits.disk_mb} MB on disk"
    return ""


def measure_memory(pids: Sequence[int], limit: int) -> int:
    """Measure the bytes of memory that processes hold together; exact only when they may be more than `limit`."""
    # An upper bound that costs one short read a process; pages shared among them count several times.
    resident = sum(_read_resident(pid) for pid in pids)
    return resident if resident <= limit else sum(_read_proportional(pid) for pid in pids)


def measure_unnamed_files(pids: Sequence[int]) -> int:
    """Measure the bytes in open files without a name in any folder: deleted ones and memory files.

    A command could otherwise hide any amount of data from the measurement of its folders.
    """
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    file = entry.stat()
                    if file.st_nlink == 0 and stat.S_ISREG(file.st_mode):
                        sizes[file.st_dev, file.st_ino] = 512 * file.st_blocks
    return sum(sizes.values())


def iterate_descendants(pid: int) -> Iterator[int]:
    """Yield a process and its descendants, all by id."""
    waiting = [pid]
    while waiting:
        process = waiting.pop()
        yield process
        waiting += list_children(process)


def list_children(pid: int) -> list[int]:
    """List the children of a process; none when it has ended."""
    pids: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, (thread / "children").read_text().split())
    return pids


def _read_resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def _read_proportional(pid: int) -> int:
    """Read the memory of a process in bytes, with each shared page divided among those that share it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def measure_folder(folder: Path, limit: int) -> int:
    """Measure the bytes that a folder takes on disk, counted until they are more than `limit`."""
    total = 0
    waiting = [os.fspath(folder)]
    while waiting and total <= limit:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += 512 * entry.stat(follow_symlinks=False).st_blocks
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError as error:  # most likely it was removed meanwhile
            # Folders nested beyond the longest path can't be measured, so that a command could hide data there.
            if error.errno == errno.ENAMETOOLONG:
                return limit + 1
    return total
