"""World of a terminal task: its work folder, set up, solved by the oracle, verified by the tests.

The work folder is at `/app` and at `/work`. The tests are written only after everything of the agent's has ended. They
run in a sandbox of their own, from a folder that the agent could not write, with a Python that takes no module and no
setting from the work folder. The programs that they start run in other sandboxes, where neither the tests nor the
folder of the reward can be seen (`clawrl_trl.envs.terminal.program`), and no file of the work folder can be executed
in the sandbox of the tests.
"""

import json
import math
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from clawrl_trl.envs.base.episode import WorldBroken
from clawrl_trl.envs.sandbox.sandbox import (
    Bind,
    CommandResult,
    Limits,
    Sandbox,
    choose_backend,
)
from clawrl_trl.envs.sandbox.untrusted_files import give_to_sandbox_user, read_untrusted_file, remove_folder
from clawrl_trl.envs.terminal.links import remove_escaping_links
from clawrl_trl.envs.terminal.program import ProgramServer
from clawrl_trl.envs.terminal.python_tests import PythonTests
from clawrl_trl.envs.terminal.task_folder import TaskFolder, write_file

SETUP_TIMEOUT = 120.0
"""Seconds for a command of a task's set-up, and for its oracle."""
LOGS = "/logs/verifier"
"""Folder into which the tests write the reward."""
_IGNORED_INSTRUCTIONS = {"FROM", "LABEL", "EXPOSE", "CMD", "ENTRYPOINT", "USER", "SHELL", "ARG", "HEALTHCHECK"}
VERIFY = "/opt/verify"
"""Folder of the stand-ins through which the tests start programs."""
# A file says that the tests started, since an exit code alone can come from the sandbox as well.
_START_SCRIPT = """mkdir -p "$1" && : > "$1/started" || exit; program=$(type -P "$3")
export PATH="$2/bin:$PATH" BASH_ENV="$2/functions" && shift 3
exec "$program" "$@"
"""
_PYTHON = {"bubblewrap": "/opt/python/bin/python", "docker": "/usr/local/bin/python"}


@dataclass(frozen=True)
class TaskVerdict:
    """Verdict of the tests.

    Attributes:
        passed (`float`): The share of them that passed.
        text (`str`): What they printed.
    """

    passed: float
    text: str

    @property
    def outcome(self) -> float:
        """The outcome in [-1, 1]: 2 * passed / tests - 1."""
        return 2 * self.passed - 1


class TaskWorld:
    """A task's work folder and what is done in it; a context manager.

    Args:
        task ([`TaskFolder`]): The task.
        limits ([`Limits`], *optional*): What commands in it may use.
        backend (`str`, *optional*): The sandbox's back end.
        network (`bool`, *optional*, defaults to `False`): Whether the agent may reach the network; tests never do.
    """

    def __init__(
        self, task: TaskFolder, *, limits: Limits | None = None, backend: str | None = None, network: bool = False
    ) -> None:
        self.task = task
        self._base = Path(tempfile.mkdtemp(prefix="clawrl-task-"))
        self._base.chmod(0o755)
        self.work = self._base / "work"
        self.work.mkdir()
        self._limits = limits
        self._backend = backend or choose_backend()
        self._network = network
        self.env: dict[str, str] = {}

    def set_up(self) -> None:
        """Bring the work folder into the state that the task's Dockerfile describes.

        Raises:
            WorldBroken: If that takes a Docker image, or a command of it fails.
        """
        path = self.task.dockerfile
        if path is None:
            self._copy(self.task.select_files("environment"), self.work)
            return
        context = self.task.select_files("environment") if path.startswith("environment/") else self.task.files
        try:
            self._execute_instructions(_read_instructions(self.task.read_text(path)), context)
        except ValueError as error:
            raise WorldBroken(f"the Dockerfile of {self.task.id} can't be read: {error}") from error

    def _execute_instructions(self, instructions: Iterator[tuple[str, str]], context: Mapping[str, bytes]) -> None:
        workdir = PurePosixPath("/app")
        for instruction, rest in instructions:
            if instruction == "WORKDIR":
                workdir = workdir / rest
                self._find_on_host(workdir).mkdir(parents=True, exist_ok=True)
            elif instruction in ("COPY", "ADD"):
                paths = [part for part in shlex.split(rest) if not part.startswith("--")]
                self._copy_from_context(context, paths, workdir)
            elif instruction == "ENV":
                self.env |= _read_variables(rest)
            elif instruction == "RUN":
                self._run_setup(rest, workdir)
            elif instruction not in _IGNORED_INSTRUCTIONS:
                raise WorldBroken(f"the set-up of {self.task.id} needs Docker: {instruction} {rest}"[:200])

    def open_sandbox(self, *binds: Bind, runnable: bool = True) -> Sandbox:
        """Open a sandbox on the work folder.

        Args:
            binds ([`Bind`]): More of the host that is mounted inside.
            runnable (`bool`, *optional*, defaults to `True`): Whether files of the work folder can be executed.
        """
        app = Bind(self.work, "/app", writable=True, runnable=runnable)
        # Not the work folder, whose start files (.bashrc) would be the agent's.
        env = {"HOME": "/tmp"} if self._backend != "none" else {}
        return Sandbox(
            self.work,
            network=self._network,
            limits=self._limits,
            binds=[app, *binds],
            env={**env, **self.env},
            backend=self._backend,
        )

    def solve(self) -> CommandResult:
        """Run the oracle.

        Raises:
            WorldBroken: If the task has none.
        """
        if self.task.solution is None:
            raise WorldBroken(f"the task {self.task.id} has no oracle")
        name = PurePosixPath(self.task.solution)
        files = self.task.select_files("solution") if name.parent.name else {name.name: self.task.files[name.name]}
        with self.open_sandbox(self._write_bind(files, "/solution")) as sandbox:
            return sandbox.run(["bash", self._relocate_path(f"/solution/{name.name}", sandbox)], timeout=SETUP_TIMEOUT)

    def verify(self) -> TaskVerdict:
        """Run the tests, after everything else in the world has ended.

        Raises:
            WorldBroken: If they could not be started.
        """
        logs, scratch = self._base / "logs" / "verifier", self._base / "tmp"
        logs.mkdir(parents=True)
        scratch.mkdir(mode=0o777)
        scratch.chmod(0o1777)
        self._network = False
        # A package in the work folder could register a plugin that turns every report.
        self.env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        sandboxed = self._backend != "none"
        scratch_binds = [Bind(scratch, "/tmp", writable=True, counted=True)] if sandboxed else []
        suite = PythonTests.collect(self.task.select_files("tests"), self.work)
        tests = self._write_bind(suite.files if suite else self.task.select_files("tests"), "/tests")
        remove_escaping_links(self.work)  # here those that the agent left, in `on_idle` those of the tested programs
        programs_folder = self._base / "verify"
        python = _PYTHON.get(self._backend or "", sys.executable)
        programs = ProgramServer(
            programs_folder,
            self.open_sandbox(*scratch_binds),
            python=python,
            on_idle=lambda: remove_escaping_links(self.work),
        )
        binds = [tests, Bind(logs.parent, "/logs", writable=True), Bind(programs_folder, VERIFY)]
        # A program copied to /tmp would otherwise run beside the tests.
        binds += [replace(bind, runnable=False) for bind in scratch_binds]
        with programs, self.open_sandbox(*binds, runnable=False) as sandbox:
            if os.geteuid() == 0:
                give_to_sandbox_user(logs.parent)
            script = suite.build_command(f"{VERIFY}/bin/program") if suite else ["bash", "/tests/test.sh"]
            argv = ["bash", "-c", _START_SCRIPT, "verify", LOGS, VERIFY, *script]
            command = [self._relocate_path(part, sandbox) for part in argv]
            result = sandbox.run(command, timeout=self.task.verifier_timeout)
        if not (logs / "started").is_file():
            raise WorldBroken(f"the tests of {self.task.id} did not start: {result.stderr.strip()[-200:]}")
        text = result.stdout + result.stderr
        # Tests that were killed have not reported, whatever a program wrote as their reward.
        if result.timed_out or result.exceeded_limit or not 0 <= result.exit_code < 128:
            return TaskVerdict(0.0, text)
        if suite:
            share, trouble = suite.score(result)
            return TaskVerdict(share, result.stderr + trouble)
        # A full reward from tests that failed is a contradiction, such as a program that writes the file can cause.
        reward = _read_reward(logs)
        return TaskVerdict(0.0 if reward == 1.0 and result.exit_code else reward, text)

    def close(self) -> None:
        """Remove the world."""
        remove_folder(self._base)

    def __enter__(self) -> "TaskWorld":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write_bind(self, files: Mapping[str, bytes], place: str) -> Bind:
        """Write files outside the work folder, to be mounted inside at `place`."""
        folder = self._base / place.strip("/")
        for name, data in files.items():
            write_file(folder / name, self._relocate(data) if self._backend == "none" else data)
        folder.mkdir(exist_ok=True)
        return Bind(folder, place)

    def _relocate(self, data: bytes) -> bytes:
        """Replace the paths of the world in a script by those on the host, for the back end without a sandbox."""
        for place in ("/logs", "/tests", "/solution", VERIFY):
            data = re.sub(
                rf"(?<![\w.])({place})\b".encode(), f"{self._base}/{PurePosixPath(place).name}".encode(), data
            )
        return re.sub(rb"(?<![\w.])/(app|work)\b", str(self.work).encode(), data)

    def _relocate_path(self, part: str, sandbox: Sandbox) -> str:
        return part if sandbox.work == "/work" else self._relocate(part.encode()).decode()

    def _find_on_host(self, path: PurePosixPath) -> Path:
        """Return where a path of the world is on the host.

        Raises:
            WorldBroken: If it is outside the work folder, also by a link.
        """
        for root in ("/app", "/work"):
            if path.is_relative_to(root):
                host_path = self.work / path.relative_to(root)
                if host_path.resolve().is_relative_to(self.work.resolve()):
                    return host_path
        raise WorldBroken(f"the set-up of {self.task.id} needs Docker: it writes to {path}")

    def _copy_from_context(self, context: Mapping[str, bytes], paths: list[str], workdir: PurePosixPath) -> None:
        if len(paths) < 2:
            raise WorldBroken(f"the set-up of {self.task.id} copies without saying what or where")
        *sources, target = paths
        destination = workdir / target
        for source in sources:
            name = PurePosixPath(source.lstrip("/") or ".").as_posix()
            if name in context:
                on_host = self._find_on_host(destination)
                is_folder = target.endswith(("/", ".")) or len(sources) > 1 or on_host.is_dir()
                self._copy({(PurePosixPath(name).name if is_folder else "."): context[name]}, on_host)
                continue
            files = {path: data for path, data in context.items() if path != "Dockerfile"}
            if name != ".":
                files = {p.removeprefix(f"{name}/"): data for p, data in files.items() if p.startswith(f"{name}/")}
            if not files:
                raise WorldBroken(f"the set-up of {self.task.id} copies {source!r}, which is not there")
            self._copy(files, self._find_on_host(destination))

    def _copy(self, files: Mapping[str, bytes], folder: Path) -> None:
        root = self.work.resolve()
        for name, data in files.items():
            if not (folder / name).resolve().is_relative_to(root):  # a link that an earlier command made
                raise WorldBroken(f"the set-up of {self.task.id} writes outside its work folder: {name}")
            write_file(folder / name, data)

    def _run_setup(self, command: str, workdir: PurePosixPath) -> None:
        with self.open_sandbox() as sandbox:
            cwd = self._relocate_path(str(workdir), sandbox)
            result = sandbox.run(["bash", "-c", command], timeout=SETUP_TIMEOUT, cwd=cwd)
        if result.exit_code:
            raise WorldBroken(f"the set-up of {self.task.id} failed: {command}: {result.stderr.strip()[-200:]}")


def _read_instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Dockerfile, each with its arguments."""
    lines = [line for line in dockerfile.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        word, _, rest = line.strip().partition(" ")
        yield word.upper(), rest.strip()


def _read_variables(text: str) -> dict[str, str]:
    parts = shlex.split(text)
    if parts and "=" not in parts[0]:
        return {parts[0]: " ".join(parts[1:])}
    return {name: value for name, _, value in (part.partition("=") for part in parts)}


def _read_reward(logs: Path) -> float:
    """Read the reward, in [0, 1], from `reward.json` (`{"reward": number}`) or `reward.txt` (a number); else 0."""
    try:
        if (logs / "reward.json").is_file():
            content = json.loads(read_untrusted_file(logs / "reward.json"))
            reward = float(content["reward"] if "reward" in content else next(iter(content.values())))
        else:
            reward = float(read_untrusted_file(logs / "reward.txt"))
    except (ValueError, TypeError, AttributeError, StopIteration):
        return 0.0
    return min(1.0, max(0.0, reward)) if math.isfinite(reward) else 0.0
