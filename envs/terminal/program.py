"""Runs the agent's programs for a task's tests, in a sandbox in which the tests can't be seen.

Tests run in one sandbox, what they test in another: it has the work folder and `/tmp`, but neither the tests nor the
place of the reward, and no process or descriptor of the tests but the standard streams that it was given. Each
program has a sandbox of its own, which ends with it and with all that it started.
"""

import contextlib
import os
import selectors
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from clawrl_trl.envs.sandbox.sandbox import Sandbox, SandboxClosed

_NAMES = """python python3 pytest bash sh dash zsh busybox perl ruby node npm npx java php lua Rscript make git go
cargo awk gawk mawk sed"""
INTERPRETERS = tuple(_NAMES.split())
"""Programs that do what a file of the agent's says; started by name, they run where the tests can't be seen."""
LONGEST = 8 << 20
"""Bytes of a command with its environment."""
_PLACES = ("/bin", "/usr/bin", "/usr/local/bin", "/opt/python/bin")
_OWN_VARIABLES = ("PATH", "BASH_ENV", "PWD", "OLDPWD", "SHLVL", "_", "PYTEST_CURRENT_TEST", "PYTEST_VERSION")
_HIDDEN = ("/tests", "/logs", "/opt/verify")


class ProgramServer:
    """Starts programs for the tests; a context manager.

    Args:
        folder (`Path`): An empty folder, to be shown to the tests alone: `bin` goes first in their `PATH`, and
            `functions` is what their bash begins with.
        sandbox (`Sandbox`): Where programs run.
        python (`str`): The interpreter of the tests' sandbox that the stand-ins run on.
        between (`Callable`, *optional*): Called when a program has ended, while none runs.
    """

    def __init__(
        self, folder: Path, sandbox: Sandbox, *, python: str, between: Callable[[], None] = lambda: None
    ) -> None:
        self._sandbox = sandbox
        self._between = between
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._running = 0
        self._stop, self._stopped = socket.socketpair()
        source = Path(__file__).with_name("program_client.py").read_text()
        stand_in = folder / "bin" / "program"
        stand_in.parent.mkdir(parents=True)
        stand_in.write_text(f"#!{python} -IS\n{source}")
        stand_in.chmod(0o755)
        for name in INTERPRETERS:
            stand_in.with_name(name).symlink_to("program")
        (folder / "functions").write_text(_functions())
        self._socket = _listen(folder)

    def __enter__(self) -> Self:
        self._threads.append(threading.Thread(target=self._accept, name="program-server", daemon=True))
        self._threads[0].start()
        return self

    def __exit__(self, *error: object) -> None:
        """End what runs, and wait until nobody is served any more."""
        self._stop.close()
        self._threads[0].join()
        self._sandbox.close()
        for thread in self._threads[1:]:
            thread.join()
        self._socket.close()
        self._stopped.close()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            while self._stopped not in [key.fileobj for key, _ in selector.select()]:
                connection, _ = self._socket.accept()
                thread = threading.Thread(target=self._serve, args=(connection,), name="program", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, SandboxClosed):  # who asked is gone, or the tests are over
            connection.settimeout(60.0)
            command, files = _receive(connection)
            try:
                if len(files) != 3:
                    return
                with self._lock:
                    process = self._start(command, files)
                    self._running += 1
            finally:
                for descriptor in files:
                    os.close(descriptor)
            try:
                _wait(process, connection)
            finally:
                self._sandbox.end(process)
                with self._lock:
                    self._running -= 1
                    if not self._running:
                        self._between()
            code = process.returncode
            connection.sendall(struct.pack("!i", code if code >= 0 else 128 - code))

    def _start(self, command: "_Command", files: Sequence[int]) -> "subprocess.Popen[bytes]":
        known = self._sandbox.env
        env = {name: value for name, value in command.env.items() if name not in _OWN_VARIABLES}
        changed = [f"{name}={value}" for name, value in env.items() if known.get(name) != value]
        cwd = self._sandbox.work if command.cwd.startswith(_HIDDEN) else command.cwd
        return self._sandbox.popen(["env", *changed, *command.argv], cwd=cwd, files=files)


def _functions() -> str:
    """Return functions by which bash starts interpreters called by their path like those called by name."""
    paths = [f"{place}/{name}" for place in _PLACES for name in INTERPRETERS]
    return "unset BASH_ENV\n" + "".join(f'function {path} {{ program {path} "$@"; }}\n' for path in paths)


def _listen(folder: Path) -> socket.socket:
    """Listen in a folder, however long its path is."""
    server = socket.socket(socket.AF_UNIX)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        server.bind(f"/proc/self/fd/{descriptor}/socket")
    finally:
        os.close(descriptor)
    (folder / "socket").chmod(0o777)
    server.listen(64)
    return server


@dataclass(frozen=True)
class _Command:
    cwd: str
    argv: Sequence[str]
    env: Mapping[str, str]


def _receive(connection: socket.socket) -> tuple[_Command, Sequence[int]]:
    header, files, _, _ = socket.recv_fds(connection, 8, 3)
    try:
        (length,) = struct.unpack("!Q", header)
        data = bytearray()
        while len(data) < min(length, LONGEST):
            part = connection.recv(1 << 16)
            if not part:
                break
            data += part
        cwd, count, *words = os.fsdecode(bytes(data)).split("\0")
        env = dict(word.split("=", 1) for word in words[int(count) :])
        return _Command(cwd, words[: int(count)], env), files
    except (ValueError, struct.error) as error:
        for descriptor in files:
            os.close(descriptor)
        raise ConnectionError("no command came") from error


def _wait(process: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
    """Wait until a program has ended, or nobody waits for it."""
    descriptor = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            selector.register(connection, selectors.EVENT_READ)
            selector.select()
    finally:
        os.close(descriptor)
