"""Supervision of a run's processes: start, restart, bounded logs, orderly stop.

The supervisor starts engine, gateway and judge, each with the run folder as its only argument, restarts one
that dies (at once if it had been up for a while, else with a growing delay) or that no longer answers, keeps the
logs bounded, and ends them all in order when it is told to stop. It holds no state of the
run: killing it loses nothing, and its children follow it (`PR_SET_PDEATHSIG`), so a second start finds the
ports free.
"""

import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from clawrl_trl.errors import EXIT_USER_ERROR, UserError
from clawrl_trl.process import StopRequest, end_with_parent
from clawrl_trl.run import open_private

logger = logging.getLogger(__name__)

FIRST_DELAY = 0.25
LONGEST_DELAY = 10.0
STABLE_AFTER = 30.0
GRACE = 20.0
PROBE_PERIOD = 5.0
LOG_LIMIT = 64 * 2**20
"""Bytes of one log; a longer one is moved to `<name>.log.1` and begun anew."""
LOG_PERIOD = 5.0


@dataclass
class Child:
    """One supervised process.

    Args:
        name (`str`): Its name in logs; the log file is `<name>.log`.
        command (`Sequence[str]`): Command line.
        nice (`int`, *optional*, defaults to `0`): Added to its priority number.
        probe (`Callable[[], bool]`, *optional*): Ask whether it still serves, within a time-out of its own.
        hang_timeout (`float`, *optional*, defaults to `0.0`): Seconds of failing probes after which it is killed and
            started again, counted only once a probe has succeeded, because loading a model takes as long as it
            takes; 0 for never.
    """

    name: str
    command: Sequence[str]
    nice: int = 0
    probe: Callable[[], bool] | None = None
    hang_timeout: float = 0.0
    answered_at: float | None = None
    probed_at: float = 0.0
    probing: Future[bool] | None = None
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restart_at: float = 0.0
    delay: float = FIRST_DELAY
    restarts: int = 0


def read_last_lines(path: Path, count: int = 1) -> str:
    """Return the last lines of a log, for an error message."""
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-count:])


def _move_aside(log: Path) -> None:
    """Move what a log holds to `<name>.log.1`; on a full disk it is lost, so that there is room again."""
    try:
        with log.open("rb") as old, open_private(log.with_suffix(".log.1"), "wb") as copy:
            shutil.copyfileobj(old, copy)
    except OSError as error:
        logger.warning("%s is begun anew, and no whole copy of it was kept: %s", log, error)
    os.truncate(log, 0)  # the child appends, so it goes on at the new end


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a child with all that it has started, in whatever process group, and wait for the child's end."""
    if process.poll() is not None:
        return
    # Listed before: who has lost its parent is found no more.
    started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for each in started:
        with suppress(psutil.Error):  # it has ended; psutil kills no other process of the same number
            each.kill()
    process.wait()


class Supervisor:
    """Owner of child processes: starts, watches, restarts and stops them.

    Args:
        logs (`Path`): Folder of the log files; each child appends to its own.
    """

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.children: list[Child] = []
        # In threads: a probe that hangs keeps no other child from being started again.
        self._probes = ThreadPoolExecutor(max_workers=4, thread_name_prefix="probe")
        self._logs_checked_at = time.monotonic()

    def start(self, child: Child) -> Child:
        """Start a child and keep it running from now on."""
        self._spawn(child)
        self.children.append(child)
        return child

    def wait_until(self, ready: Callable[[], bool], child: Child, timeout: float) -> None:
        """Wait until `ready()` holds.

        Raises:
            UserError: If the child ends first or the time is over; the message carries its last log line.
        """
        deadline = time.monotonic() + timeout
        while not ready():
            code = child.process.poll() if child.process else None
            log = self.logs / f"{child.name}.log"
            if code is not None:
                raise UserError(
                    read_last_lines(log).removeprefix("error: ")
                    or f"The {child.name} ended with code {code}; see {log}."
                )
            if time.monotonic() > deadline:
                raise UserError(f"The {child.name} was not ready after {timeout:.0f} s; see {log}.")
            time.sleep(0.05)

    def watch(self, stop: StopRequest, every: float = 0.05) -> None:
        """Restart what dies or hangs, until `stop` is made.

        Raises:
            UserError: If a child never came up because of a user's mistake, which a restart would only repeat. One
                that worked before is started again, whatever it says: a disk is full for a while.
        """
        while not stop.wait(every):
            for child in self.children:
                self._end_hung(child)
                self._revive(child)
            self._bound_logs()

    def stop(self) -> None:
        """Terminate the children in reverse order, each within a grace period, then kill."""
        self._probes.shutdown(wait=False, cancel_futures=True)
        # In reverse: the gateway writes down replies under way while the engine still gives them.
        for child in reversed(self.children):
            process = child.process
            if process is None or process.poll() is not None:
                continue
            process.terminate()
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                logger.warning("%s did not stop within %.0f s and was killed", child.name, GRACE)
                _kill(process)

    def _revive(self, child: Child) -> None:
        now = time.monotonic()
        if child.process is not None:
            code = child.process.poll()
            if code is None:
                return
            stable = now - child.started_at > STABLE_AFTER
            reason = str(code)
            if code == EXIT_USER_ERROR:
                reason = read_last_lines(self.logs / f"{child.name}.log").removeprefix("error: ")
                if not child.restarts and not stable:
                    raise UserError(reason)
            delay = 0.0 if stable else child.delay
            logger.warning("%s ended (%s); starting it again in %.2g s", child.name, reason, delay)
            child.process, child.restart_at = None, now + delay
            child.delay = FIRST_DELAY if stable else min(child.delay * 2, LONGEST_DELAY)
        if child.process is None and now >= child.restart_at:
            self._spawn_again(child)

    def _spawn_again(self, child: Child) -> None:
        try:
            self._spawn(child)
        except OSError as error:  # no memory, or no file, is left for a while
            child.restart_at = time.monotonic() + child.delay
            logger.warning("%s can't be started (%s); trying again in %.2g s", child.name, error, child.delay)
            child.delay = min(child.delay * 2, LONGEST_DELAY)
        else:
            child.restarts += 1

    def _end_hung(self, child: Child) -> None:
        """Kill a child whose probes fail for too long; it is revived like any that died."""
        if child.probe is None or child.process is None or not child.hang_timeout:
            return
        now = time.monotonic()
        if child.probing is not None and child.probing.done():
            if child.probing.result():
                child.answered_at = now
            child.probing = None
        # Four probes at least before the time-out: one that is lost kills nobody.
        if child.probing is None and now - child.probed_at >= min(PROBE_PERIOD, child.hang_timeout / 4):
            child.probed_at, child.probing = now, self._probes.submit(child.probe)
        if child.answered_at is not None and now - child.answered_at > child.hang_timeout:
            logger.warning("%s has not answered for %.0f s and is killed", child.name, child.hang_timeout)
            child.answered_at = None
            _kill(child.process)  # not terminate: what hangs hears no signal

    def _bound_logs(self) -> None:
        if time.monotonic() - self._logs_checked_at < LOG_PERIOD:
            return
        self._logs_checked_at = time.monotonic()
        # Those of servers that the children have started, too: whoever writes there appends.
        for log in self.logs.glob("*.log"):
            try:
                if log.stat().st_size > LOG_LIMIT and not log.is_symlink():
                    _move_aside(log)
            except OSError as error:
                logger.warning("%s can't be bounded: %s", log, error)

    def _spawn(self, child: Child) -> None:
        def prepare() -> None:
            end_with_parent()
            # A mask is inherited: a child of a thread that blocks them could not be stopped.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
            if child.nice:
                os.nice(child.nice)

        with open_private(self.logs / f"{child.name}.log", "ab") as log:
            child.process = subprocess.Popen(
                list(child.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # a Ctrl-C is for the supervisor, which ends them in order
                preexec_fn=prepare,
            )
        child.started_at = time.monotonic()
        child.answered_at = None
