"""A time limit on Python code that takes no limit of its own.

The code runs in a thread made for it alone. The caller waits no longer than the limit; then an exception is raised
inside that thread, which ends it at its next Python instruction. No other code ever runs in the thread, so the
exception can hit nothing else.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

LAST_WAIT_S = 0.2
"""How long a thread that was told to end is waited for: one in a long call of C code ends only after the call."""


class OutOfTimeError(Exception):
    """The code took longer than it may."""


class _Abandoned(BaseException):
    """Raised inside a thread whose result nobody waits for any more."""


def call_within(limit_s: float, function: Callable[[], T]) -> T:
    """Return the result of a function, or raise its exception.

    Args:
        limit_s (`float`): Longest time it may take, seconds.
        function (`Callable`): What to call, in another thread.

    Raises:
        OutOfTimeError: If it took longer; the thread is ended.
    """
    call = _Call(function)
    call.start()
    call.join(limit_s)
    if call.is_alive():
        call.abandon()
        call.join(LAST_WAIT_S)
        raise OutOfTimeError
    if call.error is not None:
        raise call.error
    return call.results[0]


class _Call(threading.Thread, Generic[T]):
    def __init__(self, function: Callable[[], T]) -> None:
        super().__init__(name="call_within", daemon=True)
        self._function = function
        self._ending = threading.Lock()
        self._over = False
        self.results: list[T] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            try:
                self.results.append(self._function())
            except Exception as error:  # noqa: BLE001 - it belongs to the caller, who raises it
                self.error = error
            with self._ending:
                self._over = True
        except _Abandoned:
            self.error = OutOfTimeError()

    def abandon(self) -> None:
        # The lock keeps the thread alive in between, so that its number can't be another thread's by then.
        with self._ending:
            if not self._over and self.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(_Abandoned))
