"""A persistent bash on a terminal inside the sandbox.

A command is passed in a file that the shell evaluates, so its length and its control characters do not matter. Two
marks on the terminal delimit its output: a report with its exit code, and then the prompt. An interrupted command is
followed by the prompt alone, and counts as a failure. Each mark bears a nonce made for this command, so that earlier
marks can't be replayed. The processes that the shell starts can't read the nonces: bash runs from a file that nobody
may read, so its memory, its files and its environment are closed to them. The report's nonce stands in the line that
is typed, in no variable, and the report is made of keywords and of POSIX mode's special builtins, which no function,
alias or trap can replace. Code evaluated in the shell itself is the shell, and may end with what code it likes.

A command that does not end in time goes on in the foreground: it can be viewed, typed to and interrupted. What it
prints meanwhile waits in the terminal, whose buffer is bounded, until the next call reads it.
"""

import contextlib
import fcntl
import os
import re
import secrets
import selectors
import shlex
import shutil
import struct
import subprocess
import tempfile
import termios
import time
from dataclasses import dataclass
from pathlib import Path

from clawrl_trl.envs.sandbox.bounded_output import BoundedOutput
from clawrl_trl.envs.sandbox.bubblewrap import Bubblewrap
from clawrl_trl.envs.sandbox.sandbox import Bind, Sandbox
from clawrl_trl.envs.terminal.text import TerminalText, resolve

MAX_OUTPUT_BYTES = 8000
"""Bytes kept of an output: half of them from its beginning, half from its end."""
QUIET_SECONDS = 0.3
"""Seconds without output after which a view ends."""
ROWS, COLUMNS = 40, 120
START_TIMEOUT = 30.0
"""Seconds a shell may take to start."""
_PATH_INSIDE = "/opt/shell"
_KEYS = {"C-c": b"\x03", "C-d": b"\x04", "C-z": b"\x1a", "C-\\": b"\x1c"}


class ShellBroken(RuntimeError):
    """A shell did not start, for a reason other than the command."""


@dataclass(frozen=True)
class ShellOutput:
    """Output of the terminal since the last call.

    Attributes:
        text (`str`): The text without control sequences; its beginning and end where it is long.
        exit_code (`int`, *optional*): The command's exit code; `None`: it is running, or the shell has ended.
        running (`bool`): Whether a command is running in the foreground.
        end_reason (`str`): Why the shell has ended; empty: it has not.
    """

    text: str
    exit_code: int | None = None
    running: bool = False
    end_reason: str = ""


class Shell:
    """A persistent shell; it starts with `start` or its first command, and anew with the next one when it has ended.

    Args:
        sandbox ([`Sandbox`]): Where it runs; must have the bind of `commands`.
        commands ([`CommandFolder`]): The folder through which it gets its commands.
    """

    def __init__(self, sandbox: Sandbox, commands: "CommandFolder") -> None:
        self._sandbox = sandbox
        self._commands = commands
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._text = TerminalText()
        self._report_nonce = self._prompt_nonce = ""
        self._exit_code: int | None = None
        self._starting = False
        self.running = False

    def start(self) -> None:
        """Start the shell without waiting until it is ready, so that it starts while a policy samples its command."""
        self._expect_marks()
        self._commands.write_text(_STARTUP_FILE.format(nonce=self._prompt_nonce), "rc")
        bash = f"{self._commands.path_inside}/bash" if isinstance(self._sandbox.backend, Bubblewrap) else "bash"
        # No line editing: readline would echo and interpret what is typed.
        self._process = self._sandbox.popen(
            [bash, "--noprofile", "--rcfile", f"{self._commands.path_inside}/rc", "--noediting", "-i"], pty=True
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        fcntl.ioctl(self._process.stdout, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._unread, self._starting = b"", True
        self._text.reset()

    def execute(self, command: str, timeout: float) -> ShellOutput:
        """Run a command, unless one is running.

        Args:
            command (`str`): One or more lines of bash.
            timeout (`float`): Seconds until the call returns while the command goes on.

        Raises:
            ShellBroken: If no shell could be started.
        """
        if self.running:
            return ShellOutput("", running=True)
        self._wait_until_started()
        self._commands.write_command(command)
        self._expect_marks()
        line = _COMMAND_LINE.format(
            prompt=self._prompt_nonce, report=self._report_nonce, inside=self._commands.path_inside
        )
        self._type(line.encode(), timeout)
        self.running = True
        return self._read(timeout, quiet=None)

    def write_file(self, path: str, content: str, timeout: float) -> ShellOutput:
        """Write a file with the shell's rights, relative to its folder, with the folders above it.

        Args:
            path (`str`): Where, as the shell sees it.
            content (`str`): What it is to hold.
            timeout (`float`): Seconds until the call returns while the writing goes on.

        Raises:
            ShellBroken: If no shell could be started.
        """
        if self.running:
            return ShellOutput("", running=True)
        self._commands.write_text(content, "content")
        target = shlex.quote(path)
        # By the shell and not from the host, so that a link in the work folder leads nowhere outside.
        make_folder = f'command mkdir -p -- "$(command dirname -- {target})"'
        return self.execute(f"{make_folder} && command cat {self._commands.path_inside}/content > {target}", timeout)

    def view(self, timeout: float) -> ShellOutput:
        """Return what was printed since the last call.

        Args:
            timeout (`float`): Most seconds to wait; fewer when no more output comes.
        """
        if self._process is None or self._starting:
            return ShellOutput("")
        return self._read(timeout, quiet=QUIET_SECONDS)

    def type(self, text: str, timeout: float) -> ShellOutput:
        """Type a line, or a key such as `C-c`, to the running command, and return what it prints.

        Args:
            text (`str`): The line, or one of `C-c`, `C-d`, `C-z`, `C-\\`.
            timeout (`float`): Most seconds to wait; fewer when no more output comes.
        """
        if self._process is None or not self.running:
            return ShellOutput("")
        line = _KEYS.get(text) or (text if text.endswith("\n") else text + "\n").encode(errors="replace")
        self._type(line, timeout)
        return self._read(timeout, quiet=QUIET_SECONDS)

    def close(self) -> None:
        """End the shell with all that runs in it."""
        if self._process is not None:
            self._sandbox.end(self._process)
        self._process, self._unread, self._starting, self.running = None, b"", False, False

    def _wait_until_started(self) -> None:
        if self._process is None:
            self.start()
        if not self._starting:
            return
        self._starting, self.running = False, True
        output = self._read(START_TIMEOUT, quiet=None)
        if output.exit_code is None:
            self.close()
            raise ShellBroken(f"a shell did not start: {output.text.strip() or output.end_reason or 'no answer'}")

    def _expect_marks(self) -> None:
        # A line that was typed after its command had ended is a command to the shell, with a prompt of the last nonce,
        # which is recognised to be skipped.
        previous_prompt = self._prompt_nonce
        self._report_nonce, self._prompt_nonce = secrets.token_hex(8), secrets.token_hex(8)
        nonces = "|".join(filter(None, (self._report_nonce, self._prompt_nonce, previous_prompt))).encode()
        self._mark = re.compile(rb"\x1e(%b) (\d{1,3})\x1e\r?\n" % nonces)
        self._exit_code = None

    def _type(self, data: bytes, timeout: float) -> None:
        """Type as much as the terminal takes in time; a program that does not read lets its buffer fill."""
        assert self._process is not None and self._process.stdin is not None
        deadline = time.monotonic() + timeout
        # An error means that the shell has ended, which the next read reports.
        with selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
            selector.register(self._process.stdin, selectors.EVENT_WRITE)
            while data and selector.select(max(0.0, deadline - time.monotonic())):
                data = data[self._process.stdin.write(data) or 0 :]

    def _read(self, timeout: float, quiet: float | None) -> ShellOutput:
        """Read until the mark, the end of the shell, the time-out, or `quiet` seconds without output."""
        assert self._process is not None and self._process.stdout is not None
        deadline = time.monotonic() + timeout
        bounded = BoundedOutput(MAX_OUTPUT_BYTES)
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                while mark := self._mark.search(self._unread):
                    bounded.add(self._strip_controls(self._unread[: mark.start()]))
                    self._unread = self._unread[mark.end() :]
                    self._text.reset()
                    if self._record_mark(mark[1].decode(), int(mark[2])):
                        self.running = False
                        return ShellOutput(resolve(bounded.text), self._exit_code)
                # The start of a mark whose rest has not come yet must stay unread.
                mark_start = self._unread.find(b"\x1e", -_MARK_BYTES)
                bounded.add(self._strip_controls(self._unread[:mark_start] if mark_start >= 0 else self._unread))
                self._unread = self._unread[mark_start:] if mark_start >= 0 else b""
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not selector.select(remaining if quiet is None else min(remaining, quiet)):
                    return ShellOutput(resolve(bounded.text), running=self.running)
                data = self._read_available()
                if data == b"":
                    return self._report_lost_shell(bounded)
                self._unread += data or b""

    def _strip_controls(self, data: bytes) -> bytes:
        return self._text.feed(data).encode()

    def _record_mark(self, nonce: str, code: int) -> bool:
        """Record a report or a prompt; return whether the command has ended."""
        if nonce == self._report_nonce:
            self._exit_code = code
        elif nonce == self._prompt_nonce and self._exit_code is None:
            self._exit_code = code or 1  # no report came: it was interrupted, which is no success
        return nonce == self._prompt_nonce

    def _read_available(self) -> bytes | None:
        assert self._process is not None and self._process.stdout is not None
        try:
            return self._process.stdout.read(1 << 16)
        except OSError:  # a terminal whose last program has ended
            return b""

    def _report_lost_shell(self, bounded: BoundedOutput) -> ShellOutput:
        process = self._process
        assert process is not None
        exceeded = self._sandbox.end(process)
        self.close()
        end_reason = f"it used {exceeded}" if exceeded else f"it ended with code {process.returncode}"
        return ShellOutput(resolve(bounded.text), end_reason=end_reason)


class CommandFolder:
    """The folder through which a shell gets its commands: written outside, read-only inside.

    Attributes:
        bind ([`Bind`]): The bind that its sandbox needs.
        path_inside (`str`): Where the shell finds it.
    """

    def __init__(self, *, sandboxed: bool = True) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="clawrl-shell-"))
        self._folder.chmod(0o755)
        if sandboxed:
            # To be run but not read: the kernel then closes the memory, descriptors and environment of the process,
            # in which the nonces are, to others of the same user.
            shutil.copyfile(shutil.which("bash") or "/bin/bash", self._folder / "bash")
            (self._folder / "bash").chmod(0o111)
        self.bind = Bind(self._folder, _PATH_INSIDE)
        self.path_inside = _PATH_INSIDE if sandboxed else str(self._folder)

    def write_text(self, text: str, name: str) -> None:
        """Write a text into a file that the shell may read."""
        file = self._folder / name
        file.write_bytes(_encode(text))
        file.chmod(0o644)

    def write_command(self, text: str) -> None:
        """Write the next command, without zero bytes, which bash can't hold."""
        self.write_text(text.replace("\0", ""), "command")

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogateescape" if text.isascii() else "replace")


_MARK_BYTES = 30
"""At least the length of a mark."""
# `time` with a format prints the mark: a keyword, which no function or alias can replace as it could `printf`.
_STARTUP_FILE = r"""
set +o history
unset HISTFILE
PS1= PS2= __nonce={nonce} __code=0 __done=
__status() {{ return "$1"; }}
__mark() {{
  __timeformat=${{TIMEFORMAT-$'\nreal\t%3lR\nuser\t%3lU\nsys\t%3lS'}}
  {{ TIMEFORMAT=$'\x1e'"$1 $2"$'\x1e'; time; }} 2>/dev/tty
  TIMEFORMAT=$__timeformat
}}
__prompt() {{
  case $__done in '') __code=$1;; esac
  __done=
  __mark "$__nonce" "$__code"
}}
PROMPT_COMMAND='\__prompt "$?"'
readonly PROMPT_COMMAND
readonly -f __status __mark __prompt
stty -echo
"""
# In POSIX mode bash finds special builtins (eval, unset, trap) before functions of the same name.
_COMMAND_LINE = r"""__nonce={prompt} POSIXLY_CORRECT=1; """
_COMMAND_LINE += r"""\eval '\unset POSIXLY_CORRECT'$'\n''\__status "$__code"'$'\n'"$(<{inside}/command)"; """
_COMMAND_LINE += (
    r'__code=$? __done=1 POSIXLY_CORRECT=1; \trap - DEBUG; \unset POSIXLY_CORRECT; \__mark {report} "$__code"'
)
_COMMAND_LINE += "\n"
