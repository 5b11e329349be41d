"""The bubblewrap back end: namespaces, a seccomp filter and a root file system with few files."""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from clawrl_trl.envs.sandbox.backend import (
    GRACE,
    NOBODY,
    USER,
    WORK,
    Bind,
    SandboxSpec,
    build_entry_command,
    inherit_descriptors,
)
from clawrl_trl.envs.sandbox.limits import MB, Limits
from clawrl_trl.envs.sandbox.resource_limits import list_children
from clawrl_trl.envs.sandbox.seccomp import build_seccomp_filter

SECCOMP, USERNS = "<seccomp>", "<userns>"
"""Placeholders in a command for the descriptors of its seccomp filter and of its user namespace."""


class Bubblewrap:
    """Namespaces of its own for pids, users, mounts, network, IPC and host name; a root file system with few files.

    Where this program is root, bubblewrap makes the mounts with root's rights and then enters, as nobody, a user
    namespace that was made before, since the seccomp filter, which bubblewrap loads last, refuses new ones. For
    another user bubblewrap makes the user namespace first. Both ways end without a capability, and with a limit of
    processes that counts those of this sandbox alone, since it is set within its user namespace.
    """

    work: str | None = WORK

    @contextmanager
    def open_descriptors(self) -> Iterator[Mapping[str, int]]:
        """See [`Backend`]."""
        with contextlib.ExitStack() as stack:
            files = {}
            if build_seccomp_filter():
                files[SECCOMP] = stack.enter_context(_open_memory_file(build_seccomp_filter()))
            if os.geteuid() == 0:
                files[USERNS] = stack.enter_context(_open_user_namespace())
            yield files

    def build_command(self, spec: SandboxSpec, argv: Sequence[str], cwd: str, *, pty: bool) -> list[str]:
        """See [`Backend`]."""
        return [
            *_build_noexec_command(spec.binds),
            "bwrap",
            *(_ROOT_OPTIONS if os.geteuid() == 0 else _USER_OPTIONS),
            *(["--share-net"] if spec.network and os.geteuid() else []),
            *(["--unshare-net"] if not spec.network and not os.geteuid() else []),
            *(["--seccomp", SECCOMP] if build_seccomp_filter() else []),
            # A new session, because a process could type into a terminal that it shares with the host (TIOCSTI).
            *("--die-with-parent", "--new-session", "--hostname", "sandbox"),
            *_build_system_options(),
            *_build_scratch_options(spec.limits),
            *(part for bind in _collect_binds(spec) for part in _build_bind_options(bind)),
            *("--bind", str(spec.path), WORK),
            # bubblewrap's root and /dev live in memory: writable, they would be memory that no limit counts.
            *("--remount-ro", "/dev", "--remount-ro", "/", "--"),
            *(_DROP_PRIVILEGES if os.geteuid() == 0 else []),
            # Within the user namespace, so that the limit of processes does not count the user's others.
            *spec.limits.build_prlimit_command(),
            *build_entry_command(cwd, pty),
            *argv,
        ]

    def build_environment(self, spec: SandboxSpec) -> Mapping[str, str]:
        """See [`Backend`]."""
        # bubblewrap passes its own on, and /proc/1/environ shows it inside: it must not hold the host's secrets.
        return spec.env

    def end(self, spec: SandboxSpec, process: "subprocess.Popen[bytes]") -> None:
        """See [`Backend`]; the first process inside takes all others of its pid namespace with it.

        While the sandbox is being set up that process may not exist yet, but then what does is in the process group.
        """
        with contextlib.ExitStack() as stack:
            pidfds = []
            for pid in list_children(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    # By descriptor: the id may already be another process's.
                    pidfds.append(os.pidfd_open(pid))
                    stack.callback(os.close, pidfds[-1])
                    signal.pidfd_send_signal(pidfds[-1], signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # Nothing inside may write any more once this returns; the first process is gone last.
            for descriptor in pidfds:
                poller = select.poll()
                poller.register(descriptor, select.POLLIN)
                poller.poll(1000 * GRACE)


_USER_OPTIONS = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", f"{USER}", "--gid", f"{USER}"]
_USER_OPTIONS += ["--cap-drop", "ALL"]
_ROOT_OPTIONS = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL"]
# To become the sandbox's user and drop the bounding set in `_DROP_PRIVILEGES`, which gives these up too.
_ROOT_OPTIONS += [part for name in ("SETUID", "SETGID", "SETPCAP") for part in ("--cap-add", f"CAP_{name}")]
_ROOT_OPTIONS += ["--userns2", USERNS]
_DROP_PRIVILEGES = ["setpriv", "--reuid", f"{USER}", "--regid", f"{USER}", "--clear-groups", "--no-new-privs"]
_DROP_PRIVILEGES += ["--bounding-set=-all", "--inh-caps=-all", "--"]
# Of the host's /etc no more than programs need; users and host names come from `etc` beside this file.
_HOST_ETC_FILES = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl/certs", "localtime", "mime.types")
_OWN_ETC_FILES = ("passwd", "group", "hosts", "nsswitch.conf", "resolv.conf")


@cache
def _build_system_options() -> tuple[str, ...]:
    """Build the options that mount the system's programs and the running Python, read-only."""
    options = ["--perms", "0755", "--dir", "/etc", "--perms", "0755", "--dir", "/opt", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            options += ["--ro-bind", str(path), str(path)]
    for name in _HOST_ETC_FILES:
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    base = Path(sys.base_prefix)
    if not base.is_relative_to("/usr"):
        options += _build_bind_options(Bind(base, str(base)))
    if sys.prefix != sys.base_prefix:
        options += _build_bind_options(Bind(Path(sys.prefix), "/opt/python"))
    else:
        options += ["--symlink", sys.prefix, "/opt/python"]
    return tuple(options)


def _build_scratch_options(limits: Limits) -> list[str]:
    """Build the options for /proc, /dev and the folders in memory, whose size is bounded."""
    options = ["--proc", "/proc", "--dev", "/dev"]
    for place in ("/tmp", "/dev/shm"):
        options += ["--size", str(limits.disk_mb * MB), "--perms", "1777", "--tmpfs", place]
    return options


def _collect_binds(spec: SandboxSpec) -> list[Bind]:
    etc = Path(__file__).parent / "etc"
    binds = [Bind(etc / name, f"/etc/{name}") for name in _OWN_ETC_FILES if (etc / name).exists()]
    if spec.network:
        # On many systems a link into /run, which is not mounted inside.
        binds.append(Bind(Path("/etc/resolv.conf").resolve(), "/etc/resolv.conf"))
    return [*binds, *spec.binds]


def _build_bind_options(bind: Bind) -> list[str]:
    """Build the options of a bind; the folders above it are made so that every user may pass."""
    above = [part for folder in reversed(Path(bind.target).parents[:-1]) for part in ("--dir", str(folder))]
    options = [part for pair in zip(above[::2], above[1::2], strict=True) for part in ("--perms", "0755", *pair)]
    return [*options, "--bind" if bind.writable else "--ro-bind", str(bind.source), bind.target]


def _build_noexec_command(binds: Sequence[Bind]) -> list[str]:
    """Build the command that starts what follows with the folders that are not runnable mounted `noexec`.

    bubblewrap can't forbid execution itself; its binds keep the flag of the mount that they are made from.
    """
    folders = [str(bind.source) for bind in binds if not bind.runnable]
    if not folders:
        return []
    user = ["--user", "--map-root-user"] if os.geteuid() else []
    mount = 'while [ "$1" != -- ]; do mount -o bind,noexec "$1" "$1" || exit 1; shift; done; shift; exec "$@"'
    return ["unshare", *user, "--mount", "--propagation", "private", "--", "sh", "-c", mount, "sh", *folders, "--"]


@contextmanager
def _open_memory_file(data: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("seccomp")
    try:
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _open_descriptor(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _open_user_namespace() -> Iterator[int]:
    """Open a user namespace in which the sandbox's user is nobody outside; it lives on with the processes in it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(["unshare", "--user", "--", "cat"], stdin=pipe, stdout=pipe, bufsize=0) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        try:
            holder.stdin.write(b".")
            if holder.stdout.read(1) != b".":  # cat answers once it runs in the namespace
                raise OSError("no user namespace can be made")
            for kind in ("uid", "gid"):
                Path(f"/proc/{holder.pid}/{kind}_map").write_text(f"{USER} {NOBODY} 1")
            with _open_descriptor(f"/proc/{holder.pid}/ns/user") as descriptor:
                yield descriptor
        finally:
            holder.kill()


@cache
def diagnose_bubblewrap() -> str:
    """Return why bubblewrap can't be used on this machine; empty when it can.

    Tried once by running it, since namespaces may be forbidden where it is installed.
    """
    missing = [name for name in ("bwrap", "prlimit", "setpriv", "unshare", "setsid") if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not installed"
    spec = SandboxSpec(Path("/tmp"), "probe", False, Limits(), (), {}, "")
    bubblewrap = Bubblewrap()
    try:
        with inherit_descriptors(bubblewrap.build_command(spec, ["true"], WORK, pty=False), bubblewrap) as (
            argv,
            descriptors,
        ):
            probe = subprocess.run(argv, pass_fds=descriptors, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return "bwrap does not answer"
    except OSError as error:
        return str(error)
    return probe.stderr.strip().splitlines()[-1] if probe.returncode else ""
