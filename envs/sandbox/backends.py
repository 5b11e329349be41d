"""Back ends of the sandbox by name: bubblewrap, Docker, or, where the user insists, none."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence

from clawrl_trl.envs.sandbox.backend import WORK, Backend, SandboxSpec, build_entry_command
from clawrl_trl.envs.sandbox.bubblewrap import Bubblewrap, diagnose_bubblewrap
from clawrl_trl.envs.sandbox.limits import MB
from clawrl_trl.errors import UserError


class Docker:
    """A container for each command, of an image the user names."""

    work: str | None = WORK

    def open_descriptors(self) -> contextlib.AbstractContextManager[Mapping[str, int]]:
        """See [`Backend`]."""
        return contextlib.nullcontext({})

    def build_command(self, spec: SandboxSpec, argv: Sequence[str], cwd: str, *, pty: bool) -> list[str]:
        """See [`Backend`]."""
        limits = spec.limits
        return [
            *("docker", "run", "--rm", "--init", "--interactive", *(["--tty"] if pty else []), "--name", spec.name),
            *("--network", "bridge" if spec.network else "none", "--read-only", "--cap-drop", "ALL"),
            *("--security-opt", "no-new-privileges", "--user", f"{spec.path.stat().st_uid}:{spec.path.stat().st_gid}"),
            *("--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"),
            *("--pids-limit", f"{limits.processes}", "--ulimit", f"fsize={limits.file_mb * MB}"),
            *("--ulimit", f"cpu={limits.cpu_s}", "--ulimit", "core=0", "--shm-size", f"{limits.disk_mb}m"),
            *("--tmpfs", f"/tmp:size={limits.disk_mb}m,mode=1777", "--volume", f"{spec.path}:{WORK}"),
            *(p for b in spec.binds for p in ("--volume", f"{b.source}:{b.target}:{'rw' if b.writable else 'ro'}")),
            *(part for name, value in spec.env.items() for part in ("--env", f"{name}={value}")),
            *("--workdir", cwd, spec.image, *argv),
        ]

    def build_environment(self, spec: SandboxSpec) -> Mapping[str, str]:
        """See [`Backend`]; the docker client needs its own, and passes none of it on."""
        return os.environ

    def end(self, spec: SandboxSpec, process: "subprocess.Popen[bytes]") -> None:
        """See [`Backend`]."""
        # Killing the client alone would leave its container running.
        subprocess.run(["docker", "kill", spec.name], capture_output=True, timeout=30, check=False)
        process.kill()


class Unsandboxed:
    """The host itself, with no more than the kernel's limits: for a machine that is one sandbox as a whole."""

    work: str | None = None

    def open_descriptors(self) -> contextlib.AbstractContextManager[Mapping[str, int]]:
        """See [`Backend`]."""
        return contextlib.nullcontext({})

    def build_command(self, spec: SandboxSpec, argv: Sequence[str], cwd: str, *, pty: bool) -> list[str]:
        """See [`Backend`]."""
        # Without a user namespace, the limit of processes would count all of the user's.
        limited = [part for part in spec.limits.build_prlimit_command() if not part.startswith("--nproc")]
        return [*limited, *build_entry_command(cwd, pty), *argv]

    def build_environment(self, spec: SandboxSpec) -> Mapping[str, str]:
        """See [`Backend`]."""
        return spec.env

    def end(self, spec: SandboxSpec, process: "subprocess.Popen[bytes]") -> None:
        """See [`Backend`]."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()


BACKENDS: dict[str, type[Backend]] = {"bubblewrap": Bubblewrap, "docker": Docker, "none": Unsandboxed}


def choose_backend(unsafe_no_sandbox: bool = False) -> str:
    """Choose the back end where the user named none.

    Args:
        unsafe_no_sandbox (`bool`, *optional*, defaults to `False`): Whether to go without a sandbox where there is
            none.

    Raises:
        UserError: If bubblewrap does not work here and the user did not accept to go without.
    """
    trouble = diagnose_bubblewrap()
    if not trouble:
        return "bubblewrap"
    if unsafe_no_sandbox:
        return "none"
    raise UserError(
        f"There is no sandbox here for untrusted code ({trouble}): install bubblewrap 0.8 or later "
        "('apt-get install bubblewrap'), choose the back end 'docker', or accept the risk of 'none' "
        """(of --env terminal and swe: --env_options '{"backend": "none"}')."""
    )


def check_backend(name: str) -> None:
    """Check that a back end can be used.

    Args:
        name (`str`): `"bubblewrap"`, `"docker"` or `"none"`.

    Raises:
        UserError: If there is no such back end, or it does not work here.
    """
    if name not in BACKENDS:
        raise UserError(f"There is no sandbox back end {name!r}: choose one of {', '.join(BACKENDS)}.")
    if name == "bubblewrap" and diagnose_bubblewrap():
        raise UserError(f"bubblewrap does not work here ({diagnose_bubblewrap()}): install it, or choose 'docker'.")
    if name == "docker" and shutil.which("docker") is None:
        raise UserError("Docker is not installed: install it, or choose the back end 'bubblewrap'.")
