"""A task's repository at its base commit, in a sandbox of its own.

The agent works in one checkout and is graded in another. Only the base commit is fetched, without its history's
future, so that the fix can't be found in it. Nothing but a diff goes from one checkout to the other, and as bytes: not
every file is UTF-8.
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from clawrl_trl.envs.base.agent import WorldBroken
from clawrl_trl.envs.sandbox.sandbox import Bind, CommandResult, Limits, Sandbox
from clawrl_trl.envs.swe.tasks import SweTask

LIMITS = Limits(memory_mb=2048, cpu_s=3600, processes=256, file_mb=256, disk_mb=2048, output_kb=8192)
GIT_TIMEOUT = 300.0
"""Seconds for a step of setting a repository up, or for taking its diff."""
LONGEST = 100_000
"""Bytes of a command; the kernel takes no argument of more than 128 KiB."""
IMAGE_REPO = "/testbed"
"""Where SWE-bench's images have the repository, with a Python environment that knows it there."""

_WHO = {"NAME": "agent", "EMAIL": "agent@localhost", "DATE": "2000-01-01T00:00:00+0000"}
_IDENTITY = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in _WHO.items()}
_ALONE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


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
            self._owner = Sandbox(limits=limits, backend=backend, env=_IDENTITY)
        else:
            self._owner = Sandbox(limits=limits, backend="docker", env=_IDENTITY, image=task.image)
        self._sandbox, self._cwd = self._owner, "repo"
        self._shell: tuple[str, ...] = ()
        self.root = self._owner.path / "repo"
        try:
            self.root.mkdir()
            if task.image is not None:
                self.base = self._from_image(task.image, limits)
            else:
                self.base = _from_files(self.root, task.files) if task.files else _from_repository(self.root, task)
        except BaseException:
            self.close()
            raise

    def run(self, command: str, timeout: float) -> CommandResult:
        """Run a bash command in the repository; its stderr goes to its stdout. What no shell can take fails."""
        fault = _fault(command)
        if fault:
            return CommandResult(126, f"bash: {fault}\n", "")
        return self.program(["bash", "-c", f"exec 2>&1\n{command}"], timeout=timeout)

    def program(
        self, argv: Sequence[str], *, timeout: float = GIT_TIMEOUT, input: str | bytes | None = None
    ) -> CommandResult:
        """Run a program in the repository."""
        return self._sandbox.run([*self._shell, *argv], timeout=timeout, cwd=self._cwd, input=input)

    def diff(self) -> bytes:
        """Return the diff since the base commit, new files included; empty where git can't say."""
        self.program(["git", "add", "--all"])
        plain = ("--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/")
        done = self.program(["git", "diff", "--cached", *plain, self.base])
        return b"" if done.exit_code or done.truncated or done.timed_out else done.raw

    def close(self) -> None:
        """End what runs in it, and remove it."""
        self._sandbox.close()
        self._owner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _from_image(self, image: str, limits: Limits) -> str:
        """Copy the image's repository out, and show the copy in its place: a container lasts for one command.

        Its history, which may go on to the fix, is left behind.
        """
        copy = f"cp -a {IMAGE_REPO}/. repo && rm -rf repo/.git"
        done = self._owner.run(["bash", "-c", copy], timeout=GIT_TIMEOUT)
        if done.exit_code:
            raise WorldBroken(f"the image {image} can't be used: {done.stderr.strip()[-500:]}")
        # Bash reads this file first: the images keep their Python in a conda environment.
        (self._owner.path / "activate").write_text("source /opt/miniconda3/bin/activate testbed 2>/dev/null || true\n")
        self._shell = ("bash", "-c", 'exec "$@"', "bash")
        self._sandbox = Sandbox(
            self._owner.path,
            limits=limits,
            backend="docker",
            image=image,
            binds=[Bind(self.root, IMAGE_REPO, writable=True)],
            env=_IDENTITY | {"BASH_ENV": "/work/activate"},
        )
        self._cwd = IMAGE_REPO
        begin = (
            "git init --quiet --template= && git add --all && git commit --quiet --message=Begin && git rev-parse HEAD"
        )
        done = self.program(["bash", "-c", begin])
        if done.exit_code:
            raise WorldBroken(f"the image {image} can't be used: {done.stderr.strip()[-500:]}")
        return done.stdout.strip()


def _fault(command: str) -> str:
    """Why a command can't be a program's argument; empty: it can."""
    try:
        given = command.encode()
    except UnicodeEncodeError:
        return "the command has characters that Unicode does not have"
    if b"\0" in given:
        return "the command has a NUL character"
    return f"the command is longer than {LONGEST} bytes" if len(given) > LONGEST else ""


def _from_files(root: Path, files: Mapping[str, str]) -> str:
    for name, content in files.items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise WorldBroken(f"the task's file {name!r} lies outside its repository")
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    _git(root, "init", "--quiet", "--initial-branch=main", "--template=")
    _git(root, "add", "--all")
    _git(root, "commit", "--quiet", "--message=Begin")
    return _git(root, "rev-parse", "HEAD")


def _from_repository(root: Path, task: SweTask) -> str:
    source, commit = task.repository, task.base_commit
    if source is None or commit is None:
        raise WorldBroken(f"the task {task.id} names no repository, or no commit in it")
    _git(root, "init", "--quiet", "--initial-branch=main", "--template=")
    if source.is_file():  # a bundle holds branches, of which all come along
        with tempfile.TemporaryDirectory(prefix="clawrl-bundle-") as whole:
            _git(Path(whole), "clone", "--quiet", "--bare", str(source), ".")
            _fetch(root, Path(whole), commit)
    else:
        _fetch(root, source, commit)
    _git(root, "checkout", "--quiet", "-B", "main", commit)
    return _git(root, "rev-parse", "HEAD")


def _fetch(root: Path, source: Path, commit: str) -> None:
    """Fetch one commit alone: neither its past, which is long, nor its future, which holds the fix."""
    _git(root, "-c", "protocol.version=2", "fetch", "--quiet", "--depth=1", source.resolve().as_uri(), commit)


def _git(root: Path, *arguments: str) -> str:
    """Run git on the host, where no untrusted code has been yet."""
    env = {"PATH": os.environ["PATH"], "HOME": str(root), **_ALONE, **_IDENTITY}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, env=env, capture_output=True, text=True, timeout=GIT_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorldBroken(f"git can't set the repository up: {error}") from None
    if done.returncode:
        raise WorldBroken(f"git can't set the repository up: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()
