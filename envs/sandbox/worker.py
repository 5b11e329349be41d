"""A Python program in the sandbox that answers one line of JSON with another.

What must outlive a command but not be trusted (an interpreter's variables, algebra on what a model wrote) lives in
such a program. It is held to the sandbox's limits, each question to a time limit; one that does not answer is gone,
and the next question starts another.
"""

import json
import os
import selectors
import time
from pathlib import Path
from typing import Any

from clawrl_trl.envs.base.message import Json
from clawrl_trl.envs.sandbox.sandbox import Sandbox

MOST = 4 << 20
"""Bytes of an answer."""


class WorkerLost(Exception):
    """The program did not answer, and is gone; the text says why."""


class Worker:
    """A program in a sandbox, started when it is first asked.

    Args:
        sandbox ([`Sandbox`]): Where it runs; stays the caller's.
        source (`Path`): The program, a Python file that needs nothing of this package.
    """

    def __init__(self, sandbox: Sandbox, source: Path) -> None:
        self._sandbox = sandbox
        self._source = source.read_text()
        self._process: Any = None

    def ask(self, question: Json, timeout: float) -> Json:
        """Ask once.

        Raises:
            WorkerLost: If no answer came.
        """
        if self._process is None:
            self._process = self._sandbox.popen(["python", "-u", "-c", self._source])
        try:
            answer = self._exchange(json.dumps(question).encode() + b"\n", time.monotonic() + timeout)
            return dict(json.loads(answer))
        except TimeoutError:
            self._end()
            raise WorkerLost(f"it did not end within {timeout:g} s") from None
        except (OSError, EOFError, ValueError, TypeError):
            over = self._end()
            raise WorkerLost(f"it was ended: {over}" if over else "it ended") from None

    def close(self) -> None:
        """End the program."""
        if self._process is not None:
            self._end()

    def _exchange(self, line: bytes, deadline: float) -> bytes:
        process = self._process
        read, write = process.stdout.fileno(), process.stdin.fileno()
        os.set_blocking(write, False)
        answer = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(read, selectors.EVENT_READ)
            selector.register(write, selectors.EVENT_WRITE)
            while not answer.endswith(b"\n"):
                wait = deadline - time.monotonic()
                ready = selector.select(wait) if wait > 0 else []
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    if key.fd == write:
                        line = line[os.write(write, line) :]
                        if not line:
                            selector.unregister(write)
                    else:
                        answer += _some(read)
                if len(answer) > MOST:
                    raise ValueError("an answer without end")
        return bytes(answer)

    def _end(self) -> str:
        process, self._process = self._process, None
        return self._sandbox.end(process)


def _some(fd: int) -> bytes:
    data = os.read(fd, 1 << 16)
    if not data:
        raise EOFError("it ended")
    return data
