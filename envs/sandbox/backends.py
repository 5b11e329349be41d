"""Back ends of the sandbox: bubblewrap, Docker, or, where the user insists, none.

A back end turns a command into the one that the host starts, and knows how to end it with everything inside. The
sandbox itself (folder, output, time) does not know which one it uses.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from clawrl_trl.envs.sandbox.limits import MB, Limits
from clawrl_trl.envs.sandbox.resource_limits import children
from clawrl_trl.envs.sandbox.seccomp import seccomp_filter
from clawrl_trl.errors import UserError

WORK = "/work"
"""Where the work folder is inside."""
SECCOMP, USERNS = "<seccomp>", "<userns>"
"""Stand in a command for the descriptors of its filter and of its user namespace."""
GRACE = 60.0
"""Seconds to wait for what was killed to be gone."""
USER = 1000
"""The user inside."""
NOBODY = 65534
"""The user outside that a sandbox made by root runs as, so that not even a hole in it leads to root."""
PATH = "/opt/python/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Bind:
    """A file or folder of the host that shows inside.

    Args:
        source (`Path`): Where it is on the host.
        target (`str`): Where it shows inside.
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
    """A way into a sandbox."""

    work: str | None
    """Where the work folder is inside; `None`: where it is outside."""

    def descriptors(self) -> contextlib.AbstractContextManager[Mapping[str, int]]:
        """Descriptors that its command inherits, by what stands in it for them."""

    def command(self, room: SandboxSpec, argv: Sequence[str], cwd: str, *, pty: bool) -> list[str]:
        """Return the host's command that runs `argv` inside."""

    def environment(self, room: SandboxSpec) -> Mapping[str, str]:
        """The environment in which the host starts it."""

    def end(self, room: SandboxSpec, process: "subprocess.Popen[bytes]") -> None:
        """Kill a command with all that it started."""


class Bubblewrap:
    """Namespaces of its own for pids, users, mounts, network, IPC and host name; a root of which little can be seen.

    Root makes the mounts with its own rights and then becomes nobody in a user namespace made before: the filter,
    which bubblewrap loads last, refuses to make any; anybody else lets bubblewrap make the user namespace first. Both
    end without a capability, and with a limit of processes that counts those of this sandbox alone, since it is set
    within its user namespace.
    """

    work: str | None = WORK

    @contextmanager
    def descriptors(self) -> Iterator[Mapping[str, int]]:
        """See [`Backend`]."""
        with contextlib.ExitStack() as stack:
            files = {}
            if seccomp_filter():
                files[SECCOMP] = stack.enter_context(_memory_file(seccomp_filter()))
            if os.geteuid() == 0:
                files[USERNS] = stack.enter_context(_user_namespace())
            yield files

    def command(self, room: SandboxSpec, argv: Sequence[str], cwd: str, *, pty: bool) -> list[str]:
        """See [`Backend`]."""
        return [
            *_not_runnable(room.binds),
            "bwrap",
            *(_ROOT if os.geteuid() == 0 else _ANYBODY),
            *(["--share-net"] if room.network and os.geteuid() else []),
            *(["--unshare-net"] if not room.network and not os.geteuid() else []),
            *(["--seccomp", SECCOMP] if seccomp_filter() else []),
            *("--die-with-parent", "--new-session", "--hostname", "sandbox"),
            *_system(),
            *_scratch(room.limits),
            *(part for bind in _binds(room) for part in _bind(bind)),
            *("--bind", str(room.path), WORK),
            *("--remount-ro", "/dev", "--remount-ro", "/", "--"),
            *(_DROP if os.geteuid() == 0 else []),
            *room.limits.prlimit(),
            *_inside(cwd, pty),
            *argv,
        ]

    def environment(self, room: SandboxSpec) -> Mapping[str, str]:
        """See [`Backend`]; what the host starts passes it on, and so nothing of the host's is seen."""
        return room.env

    def end(self, room: SandboxSpec, process: "subprocess.Popen[bytes]") -> None:
        """See [`Backend`]; the first process inside takes all others with it, and is gone when they are.

        While it is still being set up, it may not be known, but then it is in the outer one's process group.
        """
        with contextlib.ExitStack() as stack:
            inside = []
            for pid in children(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    inside.append(os.pidfd_open(pid))
                    stack.callback(os.close, inside[-1])
                    signal.pidfd_send_signal(inside[-1], signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for descriptor in inside:
                gone = select.poll()
                gone.register(descriptor, select.POLLIN)
                gone.poll(1000 * GRACE)


def _inside(cwd: str, pty: bool) -> list[str]:
    """Changes to a folder, as whom the command runs as, and takes the terminal."""
    return ["env", "-C", cwd, *(["setsid", "--ctty", "--wait"] if pty else [])]


_ANYBODY = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", f"{USER}", "--gid", f"{USER}"]
_ANYBODY += ["--cap-drop", "ALL"]
_ROOT = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL"]
_ROOT += [part for name in ("SETUID", "SETGID", "SETPCAP") for part in ("--cap-add", f"CAP_{name}")]
_ROOT += ["--userns2", USERNS]
_DROP = ["setpriv", "--reuid", f"{USER}", "--regid", f"{USER}", "--clear-groups", "--no-new-privs"]
_DROP += ["--bounding-set=-all", "--inh-caps=-all", "--"]
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl/certs", "localtime", "mime.types")
_NAMES = ("passwd", "group", "hosts", "nsswitch.conf", "resolv.conf")


@cache
def _system() -> tuple[str, ...]:
    """The system's programs and the running Python, to be read."""
    options = ["--perms", "0755", "--dir", "/etc", "--perms", "0755", "--dir", "/opt", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            options += ["--ro-bind", str(path), str(path)]
    for name in _ETC:
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    base = Path(sys.base_prefix)
    if not base.is_relative_to("/usr"):
        options += _bind(Bind(base, str(base)))
    if sys.prefix != sys.base_prefix:
        options += _bind(Bind(Path(sys.prefix), "/opt/python"))
    else:
        options += ["--symlink", sys.prefix, "/opt/python"]
    return tuple(options)


def _scratch(limits: Limits) -> list[str]:
    options = ["--proc", "/proc", "--dev", "/dev"]
    for place in ("/tmp", "/dev/shm"):
        options += ["--size", str(limits.disk_mb * MB), "--perms", "1777", "--tmpfs", place]
    return options


def _binds(room: SandboxSpec) -> list[Bind]:
    etc = Path(__file__).parent / "etc"
    binds = [Bind(etc / name, f"/etc/{name}") for name in _NAMES if (etc / name).exists()]
    if room.network:
        binds.append(Bind(Path("/etc/resolv.conf").resolve(), "/etc/resolv.conf"))
    return [*binds, *room.binds]


def _bind(bind: Bind) -> list[str]:
    """The options of a bind; the folders above it are made so that all may pass."""
    above = [part for folder in reversed(Path(bind.target).parents[:-1]) for part in ("--dir", str(folder))]
    options = [part for pair in zip(above[::2], above[1::2], strict=True) for part in ("--perms", "0755", *pair)]
    return [*options, "--bind" if bind.writable else "--ro-bind", str(bind.source), bind.target]


def _not_runnable(binds: Sequence[Bind]) -> list[str]:
    """Starts what follows where the kernel runs nothing in some folders, wherever they are shown from then on."""
    folders = [str(bind.source) for bind in binds if not bind.runnable]
    if not folders:
        return []
    user = ["--user", "--map-root-user"] if os.geteuid() else []
    mount = 'while [ "$1" != -- ]; do mount -o bind,noexec "$1" "$1" || exit 1; shift; done; shift; exec "$@"'
    return ["unshare", *user, "--mount", "--propagation", "private", "--", "sh", "-c", mount, "sh", *folders, "--"]


class Docker:
    """A container for each command, of an image the user names."""

    work: str | None = WORK

    def descriptors(self) -> contextlib.AbstractContextManager[Mapping[str, int]]:
        """See [`Backend`]."""
        return contextlib.nullcontext({})

    def command(self, room: SandboxSpec, argv: Sequence[str], cwd: str, *, pty: bool) -> list[str]:
        """See [`Backend`]."""
        limits = room.limits
        return [
            *("docker", "run", "--rm", "--init", "--interactive", *(["--tty"] if pty else []), "--name", room.name),
            *("--network", "bridge" if room.network else "none", "--read-only", "--cap-drop", "ALL"),
            *("--security-opt", "no-new-privileges", "--user", f"{room.path.stat().st_uid}:{room.path.stat().st_gid}"),
            *("--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"),
            *("--pids-limit", f"{limits.processes}", "--ulimit", f"fsize={limits.file_mb * MB}"),
            *("--ulimit", f"cpu={limits.cpu_s}", "--ulimit", "core=0", "--shm-size", f"{limits.disk_mb}m"),
            *("--tmpfs", f"/tmp:size={limits.disk_mb}m,mode=1777", "--volume", f"{room.path}:{WORK}"),
            *(p for b in room.binds for p in ("--volume", f"{b.source}:{b.target}:{'rw' if b.writable else 'ro'}")),
            *(part for name, value in room.env.items() for part in ("--env", f"{name}={value}")),
            *("--workdir", cwd, room.image, *argv),
        ]

    def environment(self, room: SandboxSpec) -> Mapping[str, str]:
        """See [`Backend`]; the client needs its own."""
        return os.environ

    def end(self, room: SandboxSpec, process: "subprocess.Popen[bytes]") -> None:
        """See [`Backend`]."""
        subprocess.run(["docker", "kill", room.name], capture_output=True, timeout=30, check=False)
        process.kill()


class Unsandboxed:
    """The host itself, with no more than the kernel's limits: for a machine that is one sandbox as a whole."""

    work: str | None = None

    def descriptors(self) -> contextlib.AbstractContextManager[Mapping[str, int]]:
        """See [`Backend`]."""
        return contextlib.nullcontext({})

    def command(self, room: SandboxSpec, argv: Sequence[str], cwd: str, *, pty: bool) -> list[str]:
        """See [`Backend`]."""
        limited = [part for part in room.limits.prlimit() if not part.startswith("--nproc")]  # the user has others
        return [*limited, *_inside(cwd, pty), *argv]

    def environment(self, room: SandboxSpec) -> Mapping[str, str]:
        """See [`Backend`]."""
        return room.env

    def end(self, room: SandboxSpec, process: "subprocess.Popen[bytes]") -> None:
        """See [`Backend`]."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()


BACKENDS: dict[str, type[Backend]] = {"bubblewrap": Bubblewrap, "docker": Docker, "none": Unsandboxed}


def default_backend(unsafe_no_sandbox: bool = False) -> str:
    """The back end to use where the user chose none.

    Args:
        unsafe_no_sandbox (`bool`, *optional*, defaults to `False`): Whether to go without a sandbox where there is
            none.

    Raises:
        UserError: If bubblewrap does not work here and the user did not accept to go without.
    """
    trouble = bubblewrap_trouble()
    if not trouble:
        return "bubblewrap"
    if unsafe_no_sandbox:
        return "none"
    raise UserError(
        f"There is no sandbox here for untrusted code ({trouble}): install bubblewrap 0.8 or later "
        "('apt-get install bubblewrap'), choose the back end 'docker', or accept the risk with --unsafe_no_sandbox."
    )


def check_backend(name: str) -> None:
    """See that a back end can be used.

    Args:
        name (`str`): `"bubblewrap"`, `"docker"` or `"none"`.

    Raises:
        UserError: If there is no such back end, or it does not work here.
    """
    if name not in BACKENDS:
        raise UserError(f"There is no sandbox back end {name!r}: choose one of {', '.join(BACKENDS)}.")
    if name == "bubblewrap" and bubblewrap_trouble():
        raise UserError(f"bubblewrap does not work here ({bubblewrap_trouble()}): install it, or choose 'docker'.")
    if name == "docker" and shutil.which("docker") is None:
        raise UserError("Docker is not installed: install it, or choose the back end 'bubblewrap'.")


@contextmanager
def inherited(argv: Sequence[str], backend: Backend) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """A back end's command with the descriptors that it inherits, for as long as it takes to start it.

    Args:
        argv (`Sequence[str]`): The command, with names in place of the descriptors.
        backend ([`Backend`]): Which makes them.
    """
    with backend.descriptors() as files:
        yield [str(files[part]) if part in files else part for part in argv], tuple(files.values())


@contextmanager
def _memory_file(data: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("handed")
    try:
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _user_namespace() -> Iterator[int]:
    """A user namespace in which the sandbox's user is nobody outside; it lives on with the processes in it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(["unshare", "--user", "--", "cat"], stdin=pipe, stdout=pipe, bufsize=0) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        try:
            holder.stdin.write(b".")
            if holder.stdout.read(1) != b".":  # cat answers from within the namespace
                raise OSError("no user namespace can be made")
            for kind in ("uid", "gid"):
                Path(f"/proc/{holder.pid}/{kind}_map").write_text(f"{USER} {NOBODY} 1")
            with _opened(f"/proc/{holder.pid}/ns/user") as descriptor:
                yield descriptor
        finally:
            holder.kill()


@cache
def bubblewrap_trouble() -> str:
    """Why bubblewrap can't be used on this machine; empty when it can."""
    missing = [name for name in ("bwrap", "prlimit", "setpriv", "unshare", "setsid") if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not installed"
    room = SandboxSpec(Path("/tmp"), "probe", False, Limits(), (), {}, "")
    bubblewrap = Bubblewrap()
    try:
        with inherited(bubblewrap.command(room, ["true"], WORK, pty=False), bubblewrap) as (argv, descriptors):
            tried = subprocess.run(argv, pass_fds=descriptors, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return "bwrap does not answer"
    except OSError as error:
        return str(error)
    return tried.stderr.strip().splitlines()[-1] if tried.returncode else ""
