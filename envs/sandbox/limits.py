"""Limits of a sandboxed command.

The kernel enforces the limits of each process (`prlimit`). What all processes of a sandbox use together is measured by
`clawrl_trl.envs.sandbox.resource_limits`: without control groups, which an ordinary user may not create, the kernel
counts memory for each process alone.
"""

from dataclasses import dataclass, fields

from clawrl_trl.errors import UserError

MB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits of one sandbox.

    Args:
        memory_mb (`int`, *optional*, defaults to `512`): Memory of a process, and of all of them together.
        cpu_s (`int`, *optional*, defaults to `60`): Seconds of CPU time of a process.
        processes (`int`, *optional*, defaults to `64`): Processes and threads of a command at a time.
        file_mb (`int`, *optional*, defaults to `64`): Size of a file.
        disk_mb (`int`, *optional*, defaults to `256`): Size of the work folder, and of `/tmp` and `/dev/shm` alike.
        output_kb (`int`, *optional*, defaults to `1024`): What is kept of a command's stdout, and of its stderr.

    Raises:
        UserError: If a limit is not positive.
    """

    memory_mb: int = 512
    cpu_s: int = 60
    processes: int = 64
    file_mb: int = 64
    disk_mb: int = 256
    output_kb: int = 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise UserError(f"The limit {field.name} must be at least 1.")

    def build_prlimit_command(self) -> list[str]:
        """Build the command that runs what follows it under the limits that the kernel holds a process to."""
        limits = {
            # Not the address space (`as`): runtimes reserve much more of it than they ever use.
            "data": self.memory_mb * MB,
            "cpu": self.cpu_s,
            "nproc": self.processes,
            "fsize": self.file_mb * MB,
            "nofile": 1024,
            "core": 0,  # a dump would be a file of the size of its memory
        }
        return ["prlimit", *(f"--{name}={value}" for name, value in limits.items()), "--"]
