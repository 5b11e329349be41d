"""One sandbox for everything that runs untrusted code.

A command inside can read the system's programs and the running Python and write a work folder at `/work`. It has no
network, and sees neither the environment nor the processes of the host. Limits hold for it. It is ended with all that
it started when its time is up, when the sandbox closes, or when this program dies, however it dies.

```python
with Sandbox() as sandbox:
    (sandbox.path / "a.py").write_text("print(1 + 1)")
    done = sandbox.run(["python", "a.py"], timeout=10)
    done.stdout  # "2\\n"
```
"""

import contextlib
import io
import os
import selectors
import stat
import subprocess
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

from clawrl_trl.envs.sandbox.backends import (
    BACKENDS,
    GRACE,
    NOBODY,
    PATH,
    Backend,
    Bind,
    SandboxSpec,
    check_backend,
    choose_backend,
    inherit_descriptors,
)
from clawrl_trl.envs.sandbox.limits import Limits
from clawrl_trl.envs.sandbox.resource_limits import MONITOR, RunningCommand
from clawrl_trl.errors import UserError

__all__ = ["Bind", "CommandResult", "Limits", "Sandbox", "SandboxClosed", "choose_backend"]


class SandboxClosed(RuntimeError):
    """A sandbox that is closed was told to start a command."""


@dataclass(frozen=True)
class CommandResult:
    """Result of a command.

    Attributes:
        exit_code (`int`): Its exit code; negative: the signal that ended it.
        stdout (`str`): Its standard output, at most `Limits.output_kb`: the beginning and the end.
        stderr (`str`): Its standard error, likewise.
        timed_out (`bool`): Whether it was ended because its time was up.
        truncated (`bool`): Whether some of its output is missing.
        exceeded_limit (`str`): The limit on memory or disk that it was ended for; empty: none.
        raw (`bytes`): `stdout` before it was decoded as UTF-8.
    """

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False
    truncated: bool = False
    exceeded_limit: str = ""
    raw: bytes = b""


class Sandbox:
    """A place to run untrusted code; a context manager.

    Args:
        workdir (`Path`, *optional*): A folder of the host to work in, which stays; where this program is root, its
            files are given to the sandbox's user. Default: a temporary one that goes when the sandbox closes.
        network (`bool`, *optional*, defaults to `False`): Whether the host's network can be reached.
        limits ([`Limits`], *optional*): What a command may use.
        binds (`Sequence[Bind]`, *optional*): More of the host that shows inside.
        env (`Mapping[str, str]`, *optional*): Environment variables, besides a short standard set.
        backend (`str`, *optional*): `"bubblewrap"`, `"docker"` or `"none"`, which is no sandbox at all; default:
            [`choose_backend`].
        image (`str`, *optional*, defaults to `"python:3.11-slim"`): The image, for Docker.

    Raises:
        UserError: If the work folder does not exist or the back end does not work here.
    """

    def __init__(
        self,
        workdir: Path | None = None,
        *,
        network: bool = False,
        limits: Limits | None = None,
        binds: Sequence[Bind] = (),
        env: Mapping[str, str] | None = None,
        backend: str | None = None,
        image: str = "python:3.11-slim",
    ) -> None:
        name = choose_backend() if backend is None else backend
        check_backend(name)
        if workdir is not None and not workdir.is_dir():
            raise UserError(f"The work folder {workdir} does not exist: make it first.")
        self.limits = limits or Limits()
        self.backend = BACKENDS[name]()
        self._owns_folder = workdir is None
        self.path = (workdir or Path(tempfile.mkdtemp(prefix="clawrl-sandbox-"))).resolve()
        self.work = self.backend.work or str(self.path)
        self.env = _build_environment(self.work) | dict(env or {})
        self._spec = SandboxSpec(self.path, "", network, self.limits, tuple(binds), self.env, image)
        # Root's sandbox runs as another user, who could not change what root puts into the work folder.
        self._gives_to_user = name != "none" and os.geteuid() == 0
        self._lock = threading.Lock()
        self._running: dict[int, tuple[subprocess.Popen[bytes], SandboxSpec]] = {}
        self._exceeded: dict[int, str] = {}
        self._closed = False
        # Also at the interpreter's exit, for a sandbox that nobody closed.
        self._finalizer = weakref.finalize(self, remove_folder, self.path if self._owns_folder else None)

    def run(
        self, argv: Sequence[str], *, input: str | bytes | None = None, timeout: float, cwd: str | None = None
    ) -> CommandResult:
        """Run a command to its end.

        Args:
            argv (`Sequence[str]`): The command and its arguments.
            input (`str` or `bytes`, *optional*): What it reads from stdin.
            timeout (`float`): Seconds of wall time before it is ended.
            cwd (`str`, *optional*): Where it runs, inside; default: the work folder.
        """
        process = self.popen(argv, cwd=cwd)
        stdin_data = input.encode() if isinstance(input, str) else input or b""
        try:
            out, err, timed_out = _communicate(
                process, stdin_data, time.monotonic() + timeout, self.limits.output_kb * 1024
            )
        finally:
            exceeded = self.end(process)
        truncated = out.is_truncated or err.is_truncated
        return CommandResult(process.returncode, out.text, err.text, timed_out, truncated, exceeded, out.data)

    def popen(
        self, argv: Sequence[str], *, pty: bool = False, cwd: str | None = None, files: Sequence[int] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a command that lives on; end it with `end`, at the latest the sandbox's `close` does.

        Args:
            argv (`Sequence[str]`): The command and its arguments.
            pty (`bool`, *optional*, defaults to `False`): Whether it runs on a terminal, whose host end is then both
                `stdin` and `stdout`.
            cwd (`str`, *optional*): Where it runs, inside; default: the work folder.
            files (`Sequence[int]`, *optional*): Descriptors for its three standard streams; default: pipes.

        Raises:
            SandboxClosed: If the sandbox is closed.
        """
        # A name for each command: by it Docker ends the command's container.
        spec = replace(self._spec, name=f"clawrl-{uuid.uuid4().hex[:12]}")
        directory = self.work if cwd is None else str(Path(self.work, cwd))
        if self._gives_to_user:
            give_to_sandbox_user(self.path)
        with self._lock:
            if self._closed:
                raise SandboxClosed("the sandbox is closed")
            process = _spawn(self.backend, spec, argv, directory, pty, files)
            self._running[process.pid] = process, spec
        folders = {self.path, *(bind.source for bind in spec.binds if bind.counted)}
        MONITOR.add(
            RunningCommand(process.pid, tuple(folders), self.limits, lambda reason: self._stop(process, reason))
        )
        return process

    def end(self, process: "subprocess.Popen[bytes]") -> str:
        """Kill a command with all that it started and close its streams; returns the limit it was ended for, or ""."""
        MONITOR.remove(process.pid)
        with self._lock:
            entry = self._running.pop(process.pid, None)
        if entry is not None and process.poll() is None:
            self.backend.end(entry[1], process)
        process.wait(GRACE)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                _close_stream(stream)
        return self._exceeded.pop(process.pid, "")

    def close(self) -> None:
        """End all that runs inside, and remove the work folder if it was the sandbox's own."""
        with self._lock:
            self._closed = True
            running = [process for process, _ in self._running.values()]
        for process in running:
            self.end(process)
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _stop(self, process: "subprocess.Popen[bytes]", reason: str) -> None:
        with self._lock:
            entry = self._running.get(process.pid)
            if entry is not None:
                self._exceeded[process.pid] = reason
        if entry is not None:
            self.backend.end(entry[1], process)


class BoundedOutput:
    """The beginning and the end of a stream, within a bound.

    Args:
        max_bytes (`int`): Bytes to keep, half of them of the beginning.
    """

    def __init__(self, max_bytes: int) -> None:
        self._half = max_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._omitted = 0

    def add(self, data: bytes) -> None:
        """Append data; of what exceeds the bound, the middle goes."""
        space = self._half - len(self._head)
        self._head += data[:space]
        self._tail += data[space:]
        surplus = len(self._tail) - self._half
        if surplus > 0:
            del self._tail[:surplus]
            self._omitted += surplus

    @property
    def is_truncated(self) -> bool:
        """True if some of the stream is missing."""
        return self._omitted > 0

    @property
    def data(self) -> bytes:
        """The bytes that were kept, with a line in place of those that were not."""
        gap = f"\n[... {self._omitted} bytes left out ...]\n".encode() if self._omitted else b""
        return bytes(self._head + gap + self._tail)

    @property
    def text(self) -> str:
        """`data` decoded as UTF-8."""
        return self.data.decode(errors="replace")


def _communicate(
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
                    done = not unsent
                else:
                    data = os.read(stream.fileno(), 1 << 16)
                    outputs[stream].add(data)
                    done = not data
                if done:
                    selector.unregister(stream)
                    _close_stream(stream)
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


def _close_stream(stream: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # closing flushes, and nobody reads any more
        stream.close()


def _build_environment(work: str) -> dict[str, str]:
    return {
        "PATH": PATH,
        "HOME": work,
        "USER": "agent",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def give_to_sandbox_user(folder: Path) -> None:
    """Give what root put into a work folder to the sandbox's user."""
    # Untrusted code may have left links to files of the host: `-h` and `-P` change the link and never its target, also
    # when it is swapped meanwhile. `--from=0` leaves the files of other users of the host theirs.
    owner = f"{NOBODY}:{NOBODY}"
    subprocess.run(["chown", "-RhP", "--from=0", owner, "--", str(folder)], capture_output=True, check=False)


def remove_folder(folder: Path | None) -> None:
    """Remove a folder that untrusted code has filled."""
    if folder is None:
        return
    # `rm` and not `shutil.rmtree`: it follows no link that is swapped in, and folders nested too deep to recurse into
    # don't stop it.
    removed = subprocess.run(["rm", "-rf", "--", str(folder)], capture_output=True, check=False)
    if removed.returncode:  # folders whose owner may not look into them
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(folder)], capture_output=True, check=False)
        subprocess.run(["rm", "-rf", "--", str(folder)], capture_output=True, check=False)


def read_untrusted_file(file: Path, max_bytes: int = 1 << 20) -> bytes:
    """Read at most `max_bytes` of a file that untrusted code wrote; `b""` for what is no regular file."""
    try:
        # O_NOFOLLOW against a link to a file of the host, O_NONBLOCK against a pipe that nobody writes to.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    with open(descriptor, "rb") as stream:  # noqa: PTH123  (a path would be followed)
        # Checked on the descriptor, since the path may lead elsewhere by now.
        return stream.read(max_bytes) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""


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


_spawn = _Spawner()
# No thread survives a fork, so a child needs one of its own.
os.register_at_fork(after_in_child=_spawn.__init__)  # type: ignore[misc]


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
