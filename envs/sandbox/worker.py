"""A Python program in the sandbox that answers one line of JSON with another.

State that must outlive a command but can't be trusted (an interpreter's variables, algebra on what a model wrote)
lives in such a program. The sandbox's limits hold for it, and a time limit for each question; a program that does not
answer in time is ended, and the next question starts another.
"""

import json
import os
import selectors
import subprocess
import time
from pathlib import Path

from clawrl_trl.envs.sandbox.sandbox import Sandbox
from clawrl_trl.messages import Json

MAX_ANSWER_BYTES = 4 << 20
"""Longest answer; without a bound, a program that prints for ever would fill this process's memory."""


class WorkerLost(Exception):
    """The program did not answer and was ended; the text says why."""


class Worker:
    """A program in a sandbox, started when it is first asked.

    Args:
        sandbox ([`Sandbox`]): Where it runs; stays the caller's.
        source (`Path`): The program, a Python file that needs nothing of this package.
    """

    def __init__(self, sandbox: Sandbox, source: Path) -> None:
        self._sandbox = sandbox
        self._source = source.read_text()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: Json, timeout: float) -> Json:
        """Send a question and wait for its answer, at most `timeout` seconds.

        Raises:
            WorkerLost: If no answer came.
        """
        if self._process is None:
            self._process = self._sandbox.popen(["python", "-u", "-c", self._source])
        try:
            line = json.dumps(question).encode() + b"\n"
            answer = self._exchange(self._process, line, time.monotonic() + timeout)
            return dict(json.loads(answer))
        except TimeoutError:
            self._end()
            raise WorkerLost(f"it did not end within {timeout:g} s") from None
        except (OSError, EOFError, ValueError, TypeError):
            exceeded = self._end()
            raise WorkerLost(f"it was ended: {exceeded}" if exceeded else "it ended") from None

    def close(self) -> None:
        """End the program."""
        self._end()

    @staticmethod
    def _exchange(process: "subprocess.Popen[bytes]", line: bytes, deadline: float) -> bytes:
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(stdin, False)  # a program that reads nothing must not hold the caller past the deadline
        answer = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            selector.register(stdin, selectors.EVENT_WRITE)
            while not answer.endswith(b"\n"):
                remaining = deadline - time.monotonic()
                # Past the deadline nothing more is read, however much of an endless answer is ready.
                ready = selector.select(remaining) if remaining > 0 else []
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    if key.fd == stdin:
                        line = line[os.write(stdin, line) :]
                        if not line:
                            selector.unregister(stdin)
                    else:
                        answer += _read_chunk(stdout)
                if len(answer) > MAX_ANSWER_BYTES:
                    raise ValueError("an answer without end")
        return bytes(answer)

    def _end(self) -> str:
        process, self._process = self._process, None
        return "" if process is None else self._sandbox.end(process)


def _read_chunk(fd: int) -> bytes:
    data = os.read(fd, 1 << 16)
    if not data:
        raise EOFError("it ended")
    return data
