"""One sandbox for everything that runs untrusted code.

A command inside can read the system's programs and the running Python and write a work folder at `/work`. It has no
network, and sees neither the environment nor the processes of the host. Limits hold for it. It is ended with all that
it started when its time is up, when the sandbox closes, or when this program dies, however it dies.

```python
with Sandbox() as sandbox:
    (sandbox.path / "a.py").write_text("print(1 + 1)")
    result = sandbox.run(["python", "a.py"], timeout=10)
    result.stdout  # "2\\n"
```
"""

import os
import subprocess
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from clawrl_trl.envs.sandbox.backend import GRACE, PATH, Bind, SandboxSpec
from clawrl_trl.envs.sandbox.backends import (
    BACKENDS,
    check_backend,
    choose_backend,
)
from clawrl_trl.envs.sandbox.command import close_stream, communicate, start_command
from clawrl_trl.envs.sandbox.limits import Limits
from clawrl_trl.envs.sandbox.resource_limits import MONITOR, RunningCommand
from clawrl_trl.envs.sandbox.untrusted_files import give_to_sandbox_user, remove_folder
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
            out, err, timed_out = communicate(
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
            process = start_command(self.backend, spec, argv, directory, pty, files)
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
                close_stream(stream)
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

    def __exit__(self, *error: object) -> None:
        self.close()

    def _stop(self, process: "subprocess.Popen[bytes]", reason: str) -> None:
        with self._lock:
            entry = self._running.get(process.pid)
            if entry is not None:
                self._exceeded[process.pid] = reason
        if entry is not None:
            self.backend.end(entry[1], process)


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
