"""A persistent bash on a terminal inside the sandbox.

A command is handed over in a file that the shell evaluates, so its length and its control characters do not matter.
Two marks on the terminal say how it went: a report with its exit code, and then the prompt, which alone follows when
the command was interrupted; then the code is a failure. Each bears a nonce made for this command alone, so that an
earlier one is worth nothing. What the shell knows, the processes it starts can't read: bash runs from a file that
nobody may read, so its memory, its files and its environment are closed to them. The report's nonce stands in the
line that is typed, in no variable, and the report is made of keywords and of POSIX mode's special builtins, which no
function, alias or trap can take the place of. Code evaluated in the shell itself is the shell, and may end with what
code it likes.

A command that does not end in time goes on in the foreground, to be looked at, typed to or interrupted. What it prints
meanwhile waits in the terminal, whose buffer is bounded, until somebody looks.
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

from clawrl_trl.envs.sandbox.backends import Bubblewrap
from clawrl_trl.envs.sandbox.sandbox import Bind, BoundedOutput, Sandbox
from clawrl_trl.envs.terminal.text import TerminalText, resolve

MOST = 8000
"""Bytes kept of an output: half of them its beginning, half its end."""
QUIET = 0.3
"""Seconds without a word after which somebody who looks has seen it all."""
ROWS, COLUMNS = 40, 120
START = 30.0
"""Seconds a shell may take to start."""
_PLACE = "/opt/shell"
_KEYS = {"C-c": b"\x03", "C-d": b"\x04", "C-z": b"\x1a", "C-\\": b"\x1c"}


class ShellBroken(RuntimeError):
    """A shell did not start, for a reason that is not the command's."""


@dataclass(frozen=True)
class Seen:
    """Output of the terminal.

    Attributes:
        output (`str`): The text, without escapes; its beginning and end where it is long.
        exit_code (`int`, *optional*): How the command ended; `None`: it is running, or the shell is gone.
        running (`bool`): Whether a command is running in the foreground.
        lost (`str`): Why the shell is gone; empty: it isn't.
    """

    output: str
    exit_code: int | None = None
    running: bool = False
    lost: str = ""


class Shell:
    """A persistent shell; starts when told to or with its first command, and starts anew when it was lost.

    Args:
        sandbox ([`Sandbox`]): Where it runs; it is to have the bind of `room`.
        room (`ShellRoom`): What it is handed its commands through.
    """

    def __init__(self, sandbox: Sandbox, room: "ShellRoom") -> None:
        self._sandbox = sandbox
        self._room = room
        self._process: subprocess.Popen[bytes] | None = None
        self._left = b""
        self._text = TerminalText()
        self._report_nonce = self._prompt_nonce = ""
        self._code: int | None = None
        self._starting = False
        self.running = False

    def start(self) -> None:
        """Have it start, without waiting for that: it comes up while somebody thinks of a command."""
        self._expect_marks()
        self._room.hand_over(_RC.format(nonce=self._prompt_nonce), "rc")
        bash = f"{self._room.inside}/bash" if isinstance(self._sandbox.backend, Bubblewrap) else "bash"
        self._process = self._sandbox.popen(
            [bash, "--noprofile", "--rcfile", f"{self._room.inside}/rc", "--noediting", "-i"], pty=True
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        fcntl.ioctl(self._process.stdout, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._left, self._starting = b"", True
        self._text.reset()

    def execute(self, command: str, timeout: float) -> Seen:
        """Run a command, unless one is running.

        Args:
            command (`str`): One or more lines of bash.
            timeout (`float`): Seconds until it is given back as still running.

        Raises:
            ShellBroken: If no shell could be started.
        """
        if self.running:
            return Seen("", running=True)
        self._come_up()
        self._room.hand_over_command(command)
        self._expect_marks()
        line = _LINE.format(prompt=self._prompt_nonce, report=self._report_nonce, inside=self._room.inside)
        self._type(line.encode(), timeout)
        self.running = True
        return self._read(timeout, quiet=None)

    def write_file(self, path: str, content: str, timeout: float) -> Seen:
        """Write a file where the shell is, with the folders above it.

        Args:
            path (`str`): Where, as the shell sees it.
            content (`str`): What it is to hold.
            timeout (`float`): Seconds until the writing is given back as still running.

        Raises:
            ShellBroken: If no shell could be started.
        """
        if self.running:
            return Seen("", running=True)
        self._room.hand_over(content, "content")
        where = shlex.quote(path)
        make = f'command mkdir -p -- "$(command dirname -- {where})"'
        return self.execute(f"{make} && command cat {self._room.inside}/content > {where}", timeout)

    def view(self, timeout: float) -> Seen:
        """Return what was printed since the last call.

        Args:
            timeout (`float`): Seconds to look at most; it ends early when nothing more comes.
        """
        if self._process is None or self._starting:
            return Seen("")
        return self._read(timeout, quiet=QUIET)

    def type(self, text: str, timeout: float) -> Seen:
        """Type a line, or a key such as `C-c`, to the running command, and look.

        Args:
            text (`str`): The line, or one of `C-c`, `C-d`, `C-z`, `C-\\`.
            timeout (`float`): Seconds to look at most; it ends early when nothing more comes.
        """
        if self._process is None or not self.running:
            return Seen("")
        line = _KEYS.get(text) or (text if text.endswith("\n") else text + "\n").encode(errors="replace")
        self._type(line, timeout)
        return self._read(timeout, quiet=QUIET)

    def close(self) -> None:
        """End the shell with all that runs in it."""
        if self._process is not None:
            self._sandbox.end(self._process)
        self._process, self._left, self._starting, self.running = None, b"", False, False

    def _come_up(self) -> None:
        if self._process is None:
            self.start()
        if not self._starting:
            return
        self._starting, self.running = False, True
        seen = self._read(START, quiet=None)
        if seen.exit_code is None:
            self.close()
            raise ShellBroken(f"a shell did not start: {seen.output.strip() or seen.lost or 'no answer'}")

    def _expect_marks(self) -> None:
        last = self._prompt_nonce  # a line that was typed too late has a prompt of its own, which is read over
        self._report_nonce, self._prompt_nonce = secrets.token_hex(8), secrets.token_hex(8)
        nonces = "|".join(filter(None, (self._report_nonce, self._prompt_nonce, last))).encode()
        self._mark = re.compile(rb"\x1e(%b) (\d{1,3})\x1e\r?\n" % nonces)
        self._code = None

    def _type(self, data: bytes, timeout: float) -> None:
        """Type as much as the terminal takes in time; a program that does not read lets its buffer fill."""
        assert self._process is not None and self._process.stdin is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector, contextlib.suppress(OSError):  # when gone, the next look tells
            selector.register(self._process.stdin, selectors.EVENT_WRITE)
            while data and selector.select(max(0.0, deadline - time.monotonic())):
                data = data[self._process.stdin.write(data) or 0 :]

    def _read(self, timeout: float, quiet: float | None) -> Seen:
        """Read until the mark, the end of the shell, the time-out, or `quiet` seconds without a word."""
        assert self._process is not None and self._process.stdout is not None
        deadline = time.monotonic() + timeout
        kept = BoundedOutput(MOST)
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                while mark := self._mark.search(self._left):
                    kept.add(self._shown(self._left[: mark.start()]))
                    self._left = self._left[mark.end() :]
                    self._text.reset()
                    if self._take_mark(mark[1].decode(), int(mark[2])):
                        self.running = False
                        return Seen(resolve(kept.text), self._code)
                begun = self._left.find(b"\x1e", -_MARK_BYTES)  # perhaps the beginning of a mark
                kept.add(self._shown(self._left[:begun] if begun >= 0 else self._left))
                self._left = self._left[begun:] if begun >= 0 else b""
                wait = deadline - time.monotonic()
                if wait <= 0 or not selector.select(wait if quiet is None else min(wait, quiet)):
                    return Seen(resolve(kept.text), running=self.running)
                data = self._hear()
                if data == b"":
                    return self._lost(kept)
                self._left += data or b""

    def _shown(self, data: bytes) -> bytes:
        return self._text.feed(data).encode()

    def _take_mark(self, nonce: str, code: int) -> bool:
        """Note a report or a prompt; whether the command has ended."""
        if nonce == self._report_nonce:
            self._code = code
        elif nonce == self._prompt_nonce and self._code is None:
            self._code = code or 1  # it was interrupted, which is no success
        return nonce == self._prompt_nonce

    def _hear(self) -> bytes | None:
        assert self._process is not None and self._process.stdout is not None
        try:
            return self._process.stdout.read(1 << 16)
        except OSError:  # a terminal whose last program has ended
            return b""

    def _lost(self, kept: BoundedOutput) -> Seen:
        process = self._process
        assert process is not None
        over = self._sandbox.end(process)
        self.close()
        return Seen(resolve(kept.text), lost=f"it used {over}" if over else f"it ended with code {process.returncode}")


class ShellRoom:
    """The folder through which a shell is handed its commands: written outside, read inside.

    Attributes:
        bind ([`Bind`]): What the sandbox has to show for it.
        inside (`str`): Where it is, for the shell.
    """

    def __init__(self, *, sandboxed: bool = True) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="clawrl-shell-"))
        self._folder.chmod(0o755)
        if sandboxed:
            shutil.copyfile(shutil.which("bash") or "/bin/bash", self._folder / "bash")
            (self._folder / "bash").chmod(0o111)
        self.bind = Bind(self._folder, _PLACE)
        self.inside = _PLACE if sandboxed else str(self._folder)

    def hand_over(self, text: str, name: str) -> None:
        """Put a text where the shell reads it."""
        file = self._folder / name
        file.write_bytes(_encoded(text))
        file.chmod(0o644)

    def hand_over_command(self, text: str) -> None:
        """Put a command there, without zero bytes, which no command has."""
        self.hand_over(text.replace("\0", ""), "command")

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogateescape" if text.isascii() else "replace")


_MARK_BYTES = 30
_RC = r"""
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
_LINE = r"""__nonce={prompt} POSIXLY_CORRECT=1; """  # in POSIX mode no function stands before eval, unset and trap
_LINE += r"""\eval '\unset POSIXLY_CORRECT'$'\n''\__status "$__code"'$'\n'"$(<{inside}/command)"; """
_LINE += r'__code=$? __done=1 POSIXLY_CORRECT=1; \trap - DEBUG; \unset POSIXLY_CORRECT; \__mark {report} "$__code"'
_LINE += "\n"
