"""A back end as the sandbox sees it: what it is told of a sandbox, and what it does for one.

A back end turns a command into the one that the host starts, and ends it with all that runs inside. The sandbox itself
(folder, output, time limit) does not depend on which one it uses.
"""

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from clawrl_trl.envs.sandbox.limits import Limits

WORK = "/work"
"""Where the work folder is inside."""
GRACE = 60.0
"""Seconds to wait until killed processes are gone."""
USER = 1000
"""The user inside."""
NOBODY = 65534
"""The user outside that a sandbox made by root runs as, so that not even an escape from it leads to root."""
PATH = "/opt/python/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Bind:
    """A file or folder of the host that is mounted inside.

    Args:
        source (`Path`): Where it is on the host.
        target (`str`): Where it is inside.
        writable (`bool`, *optional*, defaults to `False`): Whether the sandbox may change it.
        runnable (`bool`, *optional*, defaults to `True`): Whether files in it can be started as programs; only
            bubblewrap can forbid that.
        counted (`bool`, *optional*, defaults to `False`): Whether what it holds counts for `Limits.disk_mb`.
    """

    source: Path
    target: str
    writable: bool = False
    runnable: bool = True
    counted: bool = False


@dataclass(frozen=True)
class SandboxSpec:
    """Specification of a sandbox for a back end."""

    path: Path
    name: str
    network: bool
    limits: Limits
    binds: Sequence[Bind]
    env: Mapping[str, str]
    image: str


class Backend(Protocol):
    """Protocol of a back end."""

    work: str | None
    """Where the work folder is inside; `None`: where it is outside."""

    def open_descriptors(self) -> contextlib.AbstractContextManager[Mapping[str, int]]:
        """Open the descriptors that its command inherits, by their placeholders in it."""

    def build_command(self, spec: SandboxSpec, argv: Sequence[str], cwd: str, *, pty: bool) -> list[str]:
        """Return the host's command that runs `argv` inside."""

    def build_environment(self, spec: SandboxSpec) -> Mapping[str, str]:
        """Return the environment in which the host starts the command."""

    def end(self, spec: SandboxSpec, process: "subprocess.Popen[bytes]") -> None:
        """Kill a command with all that it started."""


def build_entry_command(cwd: str, pty: bool) -> list[str]:
    """Build the command that enters a folder, with the rights of the command itself, and takes the terminal."""
    return ["env", "-C", cwd, *(["setsid", "--ctty", "--wait"] if pty else [])]


@contextmanager
def inherit_descriptors(argv: Sequence[str], backend: Backend) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """Open the descriptors that a back end's command inherits, for as long as it takes to start it.

    Args:
        argv (`Sequence[str]`): The command, with placeholders for the descriptors.
        backend ([`Backend`]): What opens them.

    Yields:
        The command with the descriptors' numbers, and the descriptors to pass on.
    """
    with backend.open_descriptors() as files:
        yield [str(files[part]) if part in files else part for part in argv], tuple(files.values())
