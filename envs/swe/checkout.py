"""Checkout of a task's repository at its base commit, in a sandbox of its own.

The agent works in one checkout and is graded in another. Only the base commit is fetched, not the history after it,
where the fix could be found. Nothing but a diff goes from one checkout to the other, and as bytes: not every file is
UTF-8.
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Self

from clawrl_trl.envs.base.episode import WorldBroken
from clawrl_trl.envs.sandbox.sandbox import Bind, CommandResult, Limits, Sandbox
from clawrl_trl.envs.swe.tasks import SweTask

LIMITS = Limits(memory_mb=2048, cpu_s=3600, processes=256, file_mb=256, disk_mb=2048, output_kb=8192)
GIT_TIMEOUT = 300.0
"""Seconds for a step of setting a repository up, or for taking its diff."""
MAX_COMMAND_BYTES = 100_000
"""Most bytes of a command; the kernel takes no argument of more than 128 KiB."""
IMAGE_REPO = "/testbed"
"""Where SWE-bench's images have the repository, which is installed from there in their Python environment."""

_AUTHOR = {"NAME": "agent", "EMAIL": "agent@localhost", "DATE": "2000-01-01T00:00:00+0000"}
_IDENTITY = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in _AUTHOR.items()}
# The user's settings of git (hooks, signing, line ends) must not change a checkout, nor a prompt hold it.
_ISOLATED_CONFIG = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


class Checkout:
    """A task's repository in a sandbox; a context manager.

    Args:
        task ([`SweTask`]): The task.
        limits ([`Limits`], *optional*): What a command may use.
        backend (`str`, *optional*): The sandbox's back end; tasks with an image need Docker.

    Raises:
        WorldBroken: If the repository can't be set up.
    """

    def __init__(self, task: SweTask, *, limits: Limits = LIMITS, backend: str | None = None) -> None:
        if task.image is None:
            self._folder_sandbox = Sandbox(limits=limits, backend=backend, env=_IDENTITY)
        else:
            self._folder_sandbox = Sandbox(limits=limits, backend="docker", env=_IDENTITY, image=task.image)
        self._sandbox, self._cwd = self._folder_sandbox, "repo"
        self._shell: tuple[str, ...] = ()
        self.root = self._folder_sandbox.path / "repo"
        try:
            self.root.mkdir()
            if task.image is not None:
                self.base = self._copy_from_image(task.image, limits)
            else:
                self.base = _create_repository(self.root, task)
        except BaseException:
            self.close()
            raise

    def run(self, command: str, timeout: float) -> CommandResult:
        """Run a bash command in the repository, its stderr joined to its stdout.

        A command that can't be passed to a shell (a NUL, a lone surrogate, too long) fails with exit code 126, as the
        agent's mistake.
        """
        fault = _find_fault(command)
        if fault:
            return CommandResult(126, f"bash: {fault}\n", "")
        # Redirected inside: the sandbox reports on stderr, which must stay its own.
        return self.run_program(["bash", "-c", f"exec 2>&1\n{command}"], timeout=timeout)

    def run_program(
        self, argv: Sequence[str], *, timeout: float = GIT_TIMEOUT, input: str | bytes | None = None
    ) -> CommandResult:
        """Run a program in the repository."""
        return self._sandbox.run([*self._shell, *argv], timeout=timeout, cwd=self._cwd, input=input)

    def take_diff(self) -> bytes:
        """Return the diff since the base commit, new files included; empty where git fails."""
        self.run_program(["git", "add", "--all"])
        # The repository's settings are the agent's to change: none may change the form of the diff or run a program.
        plain = ("--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/")
        result = self.run_program(["git", "diff", "--cached", *plain, self.base])
        return b"" if result.exit_code or result.truncated or result.timed_out else result.raw

    def close(self) -> None:
        """End what runs in it, and remove it."""
        self._sandbox.close()
        self._folder_sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _copy_from_image(self, image: str, limits: Limits) -> str:
        """Copy the image's repository out and mount the copy in its place, since a container lasts for one command.

        Its history, which may contain the fix, is left behind.
        """
        copy = f"cp -a {IMAGE_REPO}/. repo && rm -rf repo/.git"
        result = self._folder_sandbox.run(["bash", "-c", copy], timeout=GIT_TIMEOUT)
        if result.exit_code:
            raise WorldBroken(f"the image {image} can't be used: {result.stderr.strip()[-500:]}")
        # Bash reads this file first: the images keep their Python in a conda environment.
        (self._folder_sandbox.path / "activate").write_text(
            "source /opt/miniconda3/bin/activate testbed 2>/dev/null || true\n"
        )
        self._shell = ("bash", "-c", 'exec "$@"', "bash")
        self._sandbox = Sandbox(
            self._folder_sandbox.path,
            limits=limits,
            backend="docker",
            image=image,
            binds=[Bind(self.root, IMAGE_REPO, writable=True)],
            env=_IDENTITY | {"BASH_ENV": "/work/activate"},
        )
        self._cwd = IMAGE_REPO
        commit_command = (
            "git init --quiet --template= && git add --all && git commit --quiet --message=Begin && git rev-parse HEAD"
        )
        result = self.run_program(["bash", "-c", commit_command])
        if result.exit_code:
            raise WorldBroken(f"the image {image} can't be used: {result.stderr.strip()[-500:]}")
        return result.stdout.strip()


def _find_fault(command: str) -> str:
    """Return why a command can't be a program's argument; empty: it can."""
    try:
        data = command.encode()
    except UnicodeEncodeError:
        return "the command has characters that Unicode does not have"
    if b"\0" in data:
        return "the command has a NUL character"
    return f"the command is longer than {MAX_COMMAND_BYTES} bytes" if len(data) > MAX_COMMAND_BYTES else ""


def _create_repository(root: Path, task: SweTask) -> str:
    """Create a task's repository in a folder; returns its base commit."""
    return _create_from_files(root, task.files) if task.files else _clone_repository(root, task)


def _create_from_files(root: Path, files: Mapping[str, str]) -> str:
    for name, content in files.items():
        # Written on the host: a task set from elsewhere must not overwrite files of this machine.
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise WorldBroken(f"the task's file {name!r} lies outside its repository")
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    _run_git(root, "init", "--quiet", "--initial-branch=main", "--template=")
    _run_git(root, "add", "--all")
    _run_git(root, "commit", "--quiet", "--message=Begin")
    return _run_git(root, "rev-parse", "HEAD")


def _clone_repository(root: Path, task: SweTask) -> str:
    source, commit = task.repository, task.base_commit
    if source is None or commit is None:
        raise WorldBroken(f"the task {task.id} names no repository, or no commit in it")
    _run_git(root, "init", "--quiet", "--initial-branch=main", "--template=")
    if source.is_file():  # git fetches no single commit from a bundle, only whole branches, so not into the checkout
        with tempfile.TemporaryDirectory(prefix="clawrl-bundle-") as clone:
            _run_git(Path(clone), "clone", "--quiet", "--bare", str(source), ".")
            _fetch_commit(root, Path(clone), commit)
    else:
        _fetch_commit(root, source, commit)
    _run_git(root, "checkout", "--quiet", "-B", "main", commit)
    return _run_git(root, "rev-parse", "HEAD")


def _fetch_commit(root: Path, source: Path, commit: str) -> None:
    """Fetch one commit alone: neither its past, which is long, nor its future, which holds the fix."""
    _run_git(root, "-c", "protocol.version=2", "fetch", "--quiet", "--depth=1", source.resolve().as_uri(), commit)


def _run_git(root: Path, *arguments: str) -> str:
    """Run git on the host, before any untrusted code had a chance to put hooks or settings into the repository."""
    env = {"PATH": os.environ["PATH"], "HOME": str(root), **_ISOLATED_CONFIG, **_IDENTITY}
    try:
        result = subprocess.run(
            ["git", *arguments], cwd=root, env=env, capture_output=True, text=True, timeout=GIT_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorldBroken(f"git can't set the repository up: {error}") from None
    if result.returncode:
        raise WorldBroken(f"git can't set the repository up: {result.stderr.strip()[-500:]}")
    return result.stdout.strip()
