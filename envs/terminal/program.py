"""Server that runs the agent's programs for a task's tests, in a sandbox where the tests can't be seen.

The tests run in one sandbox, the programs that they test in others, which have the work folder and `/tmp`, but neither
the tests nor the folder of the reward, and no process or descriptor of the tests but three standard streams. Each
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
"""Programs that execute a file of the agent's; started by name, they run where the tests can't be seen."""
MAX_COMMAND_BYTES = 8 << 20
"""Most bytes of a command with its environment."""
_BIN_FOLDERS = ("/bin", "/usr/bin", "/usr/local/bin", "/opt/python/bin")
_OWN_VARIABLES = ("PATH", "BASH_ENV", "PWD", "OLDPWD", "SHLVL", "_", "PYTEST_CURRENT_TEST", "PYTEST_VERSION")
_HIDDEN_FOLDERS = ("/tests", "/logs", "/opt/verify")


class ProgramServer:
    """Starts programs for the tests; a context manager.

    Args:
        folder (`Path`): An empty folder, mounted for the tests alone: its `bin` goes first in their `PATH`, and
            their bash starts with its `functions`.
        sandbox (`Sandbox`): Where programs run.
        python (`str`): The interpreter, in the tests' sandbox, that runs the stand-ins for programs.
        on_idle (`Callable`, *optional*): Called when a program has ended and no other runs; none starts meanwhile.
    """

    def __init__(
        self, folder: Path, sandbox: Sandbox, *, python: str, on_idle: Callable[[], None] = lambda: None
    ) -> None:
        self._sandbox = sandbox
        self._on_idle = on_idle
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._running = 0
        self._stop_writer, self._stop_reader = socket.socketpair()
        source = Path(__file__).with_name("program_client.py").read_text()
        stand_in = folder / "bin" / "program"
        stand_in.parent.mkdir(parents=True)
        # Isolated: the tests' interpreter must load nothing from the work folder.
        stand_in.write_text(f"#!{python} -IS\n{source}")
        stand_in.chmod(0o755)
        for name in INTERPRETERS:
            stand_in.with_name(name).symlink_to("program")
        (folder / "functions").write_text(_build_bash_functions())
        self._socket = _listen(folder)

    def __enter__(self) -> Self:
        self._threads.append(threading.Thread(target=self._accept, name="program-server", daemon=True))
        self._threads[0].start()
        return self

    def __exit__(self, *error: object) -> None:
        """End the programs that run, and wait until no request is served any more."""
        self._stop_writer.close()
        self._threads[0].join()
        self._sandbox.close()
        for thread in self._threads[1:]:
            thread.join()
        self._socket.close()
        self._stop_reader.close()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._stop_reader, selectors.EVENT_READ)
            while self._stop_reader not in [key.fileobj for key, _ in selector.select()]:
                connection, _ = self._socket.accept()
                thread = threading.Thread(target=self._serve, args=(connection,), name="program", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, SandboxClosed):  # the client is gone, or the tests have ended
            connection.settimeout(60.0)
            command, descriptors = _receive(connection)
            try:
                if len(descriptors) != 3:
                    return
                # The lock keeps programs from starting while `on_idle` looks at what the last ones left.
                with self._lock:
                    process = self._start(command, descriptors)
                    self._running += 1
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            try:
                _wait(process, connection)
            finally:
                self._sandbox.end(process)
                with self._lock:
                    self._running -= 1
                    if not self._running:
                        self._on_idle()
            code = process.returncode
            connection.sendall(struct.pack("!i", code if code >= 0 else 128 - code))

    def _start(self, command: "_Command", descriptors: Sequence[int]) -> "subprocess.Popen[bytes]":
        default_env = self._sandbox.env
        # What the tests set for the program; what bash and pytest set for themselves would tell of the tests.
        env = {name: value for name, value in command.env.items() if name not in _OWN_VARIABLES}
        changed = [f"{name}={value}" for name, value in env.items() if default_env.get(name) != value]
        cwd = self._sandbox.work if command.cwd.startswith(_HIDDEN_FOLDERS) else command.cwd
        return self._sandbox.popen(["env", *changed, *command.argv], cwd=cwd, files=descriptors)


def _build_bash_functions() -> str:
    """Build bash functions named by path, so that `/bin/python3` starts a stand-in as `python3` does by `PATH`."""
    paths = [f"{folder}/{name}" for folder in _BIN_FOLDERS for name in INTERPRETERS]
    return "unset BASH_ENV\n" + "".join(f'function {path} {{ program {path} "$@"; }}\n' for path in paths)


def _listen(folder: Path) -> socket.socket:
    """Listen on a socket in a folder."""
    server = socket.socket(socket.AF_UNIX)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Through its descriptor: the path of a socket may have 107 bytes at most.
        server.bind(f"/proc/self/fd/{descriptor}/socket")
    finally:
        os.close(descriptor)
    (folder / "socket").chmod(0o777)  # the tests run as another user
    server.listen(64)
    return server


@dataclass(frozen=True)
class _Command:
    cwd: str
    argv: Sequence[str]
    env: Mapping[str, str]


def _receive(connection: socket.socket) -> tuple[_Command, Sequence[int]]:
    header, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
    try:
        (length,) = struct.unpack("!Q", header)
        data = bytearray()
        while len(data) < min(length, MAX_COMMAND_BYTES):
            chunk = connection.recv(1 << 16)
            if not chunk:
                break
            data += chunk
        cwd, count, *fields = os.fsdecode(bytes(data)).split("\0")
        env = dict(field.split("=", 1) for field in fields[int(count) :])
        return _Command(cwd, fields[: int(count)], env), descriptors
    except (ValueError, struct.error) as error:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ConnectionError("no command came") from error


def _wait(process: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
    """Wait until a program has ended, or its client has gone."""
    descriptor = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            selector.register(connection, selectors.EVENT_READ)
            selector.select()
    finally:
        os.close(descriptor)
