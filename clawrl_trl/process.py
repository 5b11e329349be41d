"""What a process of ours asks of the kernel at its start, and the request to stop that a signal brings it."""

import ctypes
import signal
import threading
from contextlib import suppress


def end_with_parent() -> None:
    """Ask the kernel to terminate this process when its parent dies (Linux; elsewhere a no-op)."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    except (OSError, AttributeError):
        return


class StopRequest:
    """Request to stop, which a signal's handler may make.

    A handler runs in the main thread, between any two of its steps. The lock inside `threading.Event` may be held by
    the very thread that the handler interrupts, which then waits for itself for ever: the signal is lost, and so is
    every later one. `queue.SimpleQueue` takes a time-out that has run out for none at all. So this is a bare lock,
    closed until the request is made, whose every step is one that no handler can divide.
    """

    def __init__(self) -> None:
        self._made = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        """Whether it was made."""
        return self._made

    def set(self) -> None:
        """Make it, from any thread or signal handler; whoever waits goes on at once."""
        self._made = True
        self._open()

    def wait(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds; returns whether it was made."""
        if not self._made and self._gate.acquire(timeout=timeout):
            self._open()  # for the next one who waits
        return self._made

    def _open(self) -> None:
        with suppress(RuntimeError):  # it is open: somebody else was faster
            self._gate.release()
