"""Commands of the host that a back end builds: started on one lasting thread, fed, and read to their end."""

import contextlib
import io
import os
import selectors
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, cast

from clawrl_trl.envs.sandbox.backend import Backend, SandboxSpec, inherit_descriptors
from clawrl_trl.envs.sandbox.bounded_output import BoundedOutput


def communicate(
    process: "subprocess.Popen[bytes]", stdin_data: bytes, deadline: float, max_bytes: int
) -> tuple[BoundedOutput, BoundedOutput, bool]:
    """Feed a command and read its output until it has ended or its time is up: stdout, stderr, whether it timed out.

    Both at once, since a command that waits for one would never come to the other; unlike
    `subprocess.Popen.communicate`, with bounded output.
    """
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    outputs = {process.stdout: BoundedOutput(max_bytes), process.stderr: BoundedOutput(max_bytes)}
    unsent = memoryview(stdin_data)
    with selectors.DefaultSelector() as selector:
        for stream in outputs:
            selector.register(stream, selectors.EVENT_READ)
        if stdin_data:
            os.set_blocking(process.stdin.fileno(), False)  # a write to a full pipe must not outlast the deadline
            selector.register(process.stdin, selectors.EVENT_WRITE)
        else:
            process.stdin.close()
        while len(selector.get_map()):
            remaining = deadline - time.monotonic()
            ready = selector.select(remaining) if remaining > 0 else []
            if not ready:
                return outputs[process.stdout], outputs[process.stderr], True
            for key, _ in ready:
                stream = cast(IO[bytes], key.fileobj)
                if stream is process.stdin:
                    unsent = _feed_stdin(stream, unsent)
                    is_done = not unsent
                else:
                    data = os.read(stream.fileno(), 1 << 16)
                    outputs[stream].add(data)
                    is_done = not data
                if is_done:
                    selector.unregister(stream)
                    close_stream(stream)
    # A command may close its streams and go on; its time is counted all the same.
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return outputs[process.stdout], outputs[process.stderr], True
    return outputs[process.stdout], outputs[process.stderr], False


def _feed_stdin(stream: IO[bytes], unsent: memoryview) -> memoryview:
    try:
        return unsent[os.write(stream.fileno(), unsent[: 1 << 16]) :]
    except BrokenPipeError:  # the command reads no more
        return unsent[:0]


def close_stream(stream: IO[bytes]) -> None:
    """Close a stream of a command that has ended."""
    with contextlib.suppress(OSError):  # closing flushes, and nobody reads any more
        stream.close()


class _Spawner:
    """Starts all commands in one thread that lasts as long as the program.

    bubblewrap's `--die-with-parent` ends a command when the thread that started it ends, not only with the process.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "sandbox-spawn")

    def __call__(
        self,
        backend: Backend,
        spec: SandboxSpec,
        argv: Sequence[str],
        cwd: str,
        pty: bool,
        files: Sequence[int] | None,
    ) -> "subprocess.Popen[bytes]":
        return self._pool.submit(_start, backend, spec, argv, cwd, pty, files).result()


start_command = _Spawner()
# No thread survives a fork, so a child needs one of its own.
os.register_at_fork(after_in_child=start_command.__init__)  # type: ignore[misc]


def _start(
    backend: Backend, spec: SandboxSpec, argv: Sequence[str], cwd: str, pty: bool, files: Sequence[int] | None
) -> "subprocess.Popen[bytes]":
    env = dict(backend.build_environment(spec))
    with inherit_descriptors(backend.build_command(spec, argv, cwd, pty=pty), backend) as (command, descriptors):
        if not pty:
            stdin, stdout, stderr = files or [subprocess.PIPE] * 3
            return subprocess.Popen(
                command,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=env,
                pass_fds=descriptors,
                start_new_session=True,
            )
        master, slave = os.openpty()
        try:
            process = subprocess.Popen(
                command, stdin=slave, stdout=slave, stderr=slave, env=env, pass_fds=descriptors, start_new_session=True
            )
            process.stdin = io.FileIO(os.dup(master), "w")
            process.stdout = io.FileIO(os.dup(master), "r")
            return process
        finally:
            os.close(master)
            os.close(slave)
