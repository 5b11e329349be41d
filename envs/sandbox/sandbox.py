"""One sandbox for everything that runs untrusted code.

What runs inside sees the system's programs and the running Python to read, a work folder at `/work` to write, no
network, no environment of the host and no process of it; it is held to its limits, and ended with all that it
started when its time is up, when the sandbox closes, or when this program dies, however it dies.

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
from dataclasses import dataclass
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
    default_backend,
    inherited,
)
from clawrl_trl.envs.sandbox.limits import Limits
from clawrl_trl.envs.sandbox.resource_limits import WATCH, Watched
from clawrl_trl.errors import UserError

__all__ = ["Bind", "Completed", "Limits", "Sandbox", "SandboxClosed", "default_backend"]


class SandboxClosed(RuntimeError):
    """A command was given to a sandbox that is closed."""


@dataclass(frozen=True)
class Completed:
    """Result of a command.

    Attributes:
        exit_code (`int`): Its exit code; negative: the signal that ended it.
        stdout (`str`): What it printed, at most `Limits.output_kb`: the beginning and the end.
        stderr (`str`): What it printed as errors, likewise.
        timed_out (`bool`): Whether it was ended because its time was up.
        truncated (`bool`): Whether some of its output is missing.
        over (`str`): Which limit on memory or disk it was ended for; empty: none.
        raw (`bytes`): What `stdout` was before it was read as UTF-8.
    """

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False
    truncated: bool = False
    over: str = ""
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
            [`default_backend`].
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
        name = default_backend() if backend is None else backend
        check_backend(name)
        if workdir is not None and not workdir.is_dir():
            raise UserError(f"The work folder {workdir} does not exist: make it first.")
        self.limits = limits or Limits()
        self.backend = BACKENDS[name]()
        self._own = workdir is None
        self.path = (workdir or Path(tempfile.mkdtemp(prefix="clawrl-sandbox-"))).resolve()
        self.work = self.backend.work or str(self.path)
        self.env = _environment(self.work) | dict(env or {})
        self._room = SandboxSpec(self.path, "", network, self.limits, tuple(binds), self.env, image)
        self._give_away = name != "none" and os.geteuid() == 0
        self._lock = threading.Lock()
        self._running: dict[int, tuple[subprocess.Popen[bytes], SandboxSpec]] = {}
        self._over: dict[int, str] = {}
        self._closed = False
        self._end = weakref.finalize(self, remove, self.path if self._own else None)

    def run(
        self, argv: Sequence[str], *, input: str | bytes | None = None, timeout: float, cwd: str | None = None
    ) -> Completed:
        """Run a command to its end.

        Args:
            argv (`Sequence[str]`): The command and its arguments.
            input (`str` or `bytes`, *optional*): What it reads from stdin.
            timeout (`float`): Seconds of wall time before it is ended.
            cwd (`str`, *optional*): Where it runs, inside; default: the work folder.
        """
        process = self.popen(argv, cwd=cwd)
        given = input.encode() if isinstance(input, str) else input or b""
        try:
            out, err, timed_out = _converse(process, given, time.monotonic() + timeout, self.limits.output_kb * 1024)
        finally:
            over = self.end(process)
        cut = out.cut or err.cut
        return Completed(process.returncode, out.text(), err.text(), timed_out, cut, over, out.data())

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
        room = SandboxSpec(**{**vars(self._room), "name": f"clawrl-{uuid.uuid4().hex[:12]}"})
        where = self.work if cwd is None else str(Path(self.work, cwd))
        if self._give_away:
            adopt(self.path)
        with self._lock:
            if self._closed:
                raise SandboxClosed("the sandbox is closed")
            process = _spawn(self.backend, room, argv, where, pty, files)
            self._running[process.pid] = process, room
        folders = {self.path, *(bind.source for bind in room.binds if bind.counted)}
        WATCH.add(Watched(process.pid, tuple(folders), self.limits, lambda why: self._stop(process, why)))
        return process

    def end(self, process: "subprocess.Popen[bytes]") -> str:
        """Kill a command with all that it started, and let go of its streams; returns the limit it was ended for."""
        WATCH.remove(process.pid)
        with self._lock:
            known = self._running.pop(process.pid, None)
        if known is not None and process.poll() is None:
            self.backend.end(known[1], process)
        process.wait(GRACE)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                _close(stream)
        return self._over.pop(process.pid, "")

    def close(self) -> None:
        """End all that runs inside, and remove the work folder if it was the sandbox's own."""
        with self._lock:
            self._closed = True
            running = [process for process, _ in self._running.values()]
        for process in running:
            self.end(process)
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _stop(self, process: "subprocess.Popen[bytes]", why: str) -> None:
        with self._lock:
            known = self._running.get(process.pid)
            if known is not None:
                self._over[process.pid] = why
        if known is not None:
            self.backend.end(known[1], process)


class Kept:
    """The beginning and the end of what a stream says.

    Args:
        most (`int`): Bytes to keep, half of them of the beginning.
    """

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._lost = 0

    def add(self, data: bytes) -> None:
        """Hear more of it."""
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        surplus = len(self._tail) - self._half
        if surplus > 0:
            del self._tail[:surplus]
            self._lost += surplus

    @property
    def cut(self) -> bool:
        """True if something is missing."""
        return self._lost > 0

    def data(self) -> bytes:
        """The bytes that were kept, with a line in place of those that were not."""
        gap = f"\n[... {self._lost} bytes left out ...]\n".encode() if self._lost else b""
        return bytes(self._head + gap + self._tail)

    def text(self) -> str:
        """`data` as UTF-8."""
        return self.data().decode(errors="replace")


def _converse(process: "subprocess.Popen[bytes]", given: bytes, deadline: float, most: int) -> tuple[Kept, Kept, bool]:
    """Feed a command and read what it says, until it has ended or its time is up."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    kept = {process.stdout: Kept(most), process.stderr: Kept(most)}
    left = memoryview(given)
    with selectors.DefaultSelector() as selector:
        for stream in kept:
            selector.register(stream, selectors.EVENT_READ)
        if given:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        else:
            process.stdin.close()
        while len(selector.get_map()):
            wait = deadline - time.monotonic()
            ready = selector.select(wait) if wait > 0 else []
            if not ready:
                return kept[process.stdout], kept[process.stderr], True
            for key, _ in ready:
                stream = cast(IO[bytes], key.fileobj)
                if stream is process.stdin:
                    left = _feed(stream, left)
                    done = not left
                else:
                    data = os.read(stream.fileno(), 1 << 16)
                    kept[stream].add(data)
                    done = not data
                if done:
                    selector.unregister(stream)
                    _close(stream)
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return kept[process.stdout], kept[process.stderr], True
    return kept[process.stdout], kept[process.stderr], False


def _feed(stream: IO[bytes], left: memoryview) -> memoryview:
    try:
        return left[os.write(stream.fileno(), left[: 1 << 16]) :]
    except BrokenPipeError:  # it reads no more
        return left[:0]


def _close(stream: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # what was written and not yet sent has nobody to read it
        stream.close()


def _environment(work: str) -> dict[str, str]:
    return {
        "PATH": PATH,
        "HOME": work,
        "USER": "agent",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def adopt(folder: Path) -> None:
    """Give what root put into a work folder to the sandbox's user; `chown` follows no link, also when raced."""
    owner = f"{NOBODY}:{NOBODY}"
    subprocess.run(["chown", "-RhP", "--from=0", owner, "--", str(folder)], capture_output=True, check=False)


def remove(folder: Path | None) -> None:
    """Remove a folder that untrusted code has filled: `rm` neither follows links nor minds the depth."""
    if folder is None:
        return
    removed = subprocess.run(["rm", "-rf", "--", str(folder)], capture_output=True, check=False)
    if removed.returncode:  # folders without their owner's rights
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(folder)], capture_output=True, check=False)
        subprocess.run(["rm", "-rf", "--", str(folder)], capture_output=True, check=False)


def left_in(file: Path, most: int = 1 << 20) -> bytes:
    """Read what untrusted code left in a file: never a link's target, never a pipe to wait for, never too much."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    with open(descriptor, "rb") as found:  # noqa: PTH123  (a path would be followed)
        return found.read(most) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""


class _Spawner:
    """One thread, as old as the program, that starts all commands: theirs is the death they die with."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "sandbox-spawn")

    def __call__(
        self,
        backend: Backend,
        room: SandboxSpec,
        argv: Sequence[str],
        where: str,
        pty: bool,
        files: Sequence[int] | None,
    ) -> "subprocess.Popen[bytes]":
        return self._pool.submit(_start, backend, room, argv, where, pty, files).result()


_spawn = _Spawner()
os.register_at_fork(after_in_child=_spawn.__init__)  # type: ignore[misc]


def _start(
    backend: Backend, room: SandboxSpec, argv: Sequence[str], where: str, pty: bool, files: Sequence[int] | None
) -> "subprocess.Popen[bytes]":
    env = dict(backend.environment(room))
    with inherited(backend.command(room, argv, where, pty=pty), backend) as (command, descriptors):
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
