"""The world of a terminal task: its work folder, made ready, solved by the oracle, judged by the tests.

The work folder is at `/app`, and at `/work`. The tests come into the world only after everything of the agent's has
ended; they run in a sandbox of their own, from a place it could not write, with a Python that takes no module and no
setting from the work folder. The programs that they start run in other sandboxes, where neither the tests nor the
place of the reward can be seen (`clawrl_trl.envs.terminal.program`), and nothing in the work folder can be started
beside the tests.
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

from clawrl_trl.envs.base.agent import WorldBroken
from clawrl_trl.envs.sandbox.sandbox import (
    Bind,
    CommandResult,
    Limits,
    Sandbox,
    default_backend,
    give_to_sandbox_user,
    read_untrusted_file,
    remove_folder,
)
from clawrl_trl.envs.terminal.links import remove_links
from clawrl_trl.envs.terminal.program import ProgramServer
from clawrl_trl.envs.terminal.python_tests import PythonTests
from clawrl_trl.envs.terminal.task_folder import TaskFolder, put

SETUP_TIMEOUT = 120.0
"""Seconds for a command of a task's set-up, and for its oracle."""
LOGS = "/logs/verifier"
"""Where the tests leave the reward."""
_WITHOUT_EFFECT = {"FROM", "LABEL", "EXPOSE", "CMD", "ENTRYPOINT", "USER", "SHELL", "ARG", "HEALTHCHECK"}
VERIFY = "/opt/verify"
"""Where the tests have what starts programs for them."""
_STARTED = """mkdir -p "$1" && : > "$1/started" || exit; program=$(type -P "$3")
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
        """In [-1, 1]: 2 * passed / tests - 1."""
        return 2 * self.passed - 1


class TaskWorld:
    """A work folder made ready for a task; a context manager, like the sandbox it makes.

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
        self._backend = backend or default_backend()
        self._network = network
        self.env: dict[str, str] = {}

    def set_up(self) -> None:
        """Make the work folder what the task's Dockerfile describes.

        Raises:
            WorldBroken: If that takes a Docker image, or a command of it fails.
        """
        path = self.task.dockerfile
        if path is None:
            self._copy(self.task.under("environment"), self.work)
            return
        context = self.task.under("environment") if path.startswith("environment/") else self.task.files
        try:
            self._follow(_instructions(self.task.text(path)), context)
        except ValueError as error:
            raise WorldBroken(f"the Dockerfile of {self.task.id} can't be read: {error}") from error

    def _follow(self, instructions: Iterator[tuple[str, str]], context: Mapping[str, bytes]) -> None:
        where = PurePosixPath("/app")
        for instruction, rest in instructions:
            if instruction == "WORKDIR":
                where = where / rest
                self._inside(where).mkdir(parents=True, exist_ok=True)
            elif instruction in ("COPY", "ADD"):
                self._copy_in(context, [part for part in shlex.split(rest) if not part.startswith("--")], where)
            elif instruction == "ENV":
                self.env |= _variables(rest)
            elif instruction == "RUN":
                self._run_setup(rest, where)
            elif instruction not in _WITHOUT_EFFECT:
                raise WorldBroken(f"the set-up of {self.task.id} needs Docker: {instruction} {rest}"[:200])

    def sandbox(self, *binds: Bind, runnable: bool = True) -> Sandbox:
        """A sandbox to work in it.

        Args:
            binds ([`Bind`]): More of the host that shows inside.
            runnable (`bool`, *optional*, defaults to `True`): Whether files of the work folder can be started.
        """
        app = Bind(self.work, "/app", writable=True, runnable=runnable)
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
        files = self.task.under("solution") if name.parent.name else {name.name: self.task.files[name.name]}
        with self.sandbox(self._show(files, "/solution")) as sandbox:
            return sandbox.run(["bash", self._path(f"/solution/{name.name}", sandbox)], timeout=SETUP_TIMEOUT)

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
        self.env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        sandboxed = self._backend != "none"
        shared = [Bind(scratch, "/tmp", writable=True, counted=True)] if sandboxed else []
        suite = PythonTests.of(self.task.under("tests"), self.work)
        shown = self._show(suite.files if suite else self.task.under("tests"), "/tests")
        remove_links(self.work)
        place = self._base / "verify"
        python = _PYTHON.get(self._backend or "", sys.executable)
        programs = ProgramServer(place, self.sandbox(*shared), python=python, between=lambda: remove_links(self.work))
        binds = [shown, Bind(logs.parent, "/logs", writable=True), Bind(place, VERIFY)]
        binds += [replace(bind, runnable=False) for bind in shared]
        with programs, self.sandbox(*binds, runnable=False) as sandbox:
            if os.geteuid() == 0:
                give_to_sandbox_user(logs.parent)
            script = suite.command(f"{VERIFY}/bin/program") if suite else ["bash", "/tests/test.sh"]
            argv = ["bash", "-c", _STARTED, "verify", LOGS, VERIFY, *script]
            done = sandbox.run([self._path(part, sandbox) for part in argv], timeout=self.task.verifier_timeout)
        if not (logs / "started").is_file():
            raise WorldBroken(f"the tests of {self.task.id} did not start: {done.stderr.strip()[-200:]}")
        text = done.stdout + done.stderr
        if done.timed_out or done.exceeded_limit or not 0 <= done.exit_code < 128:  # what was killed has not reported
            return TaskVerdict(0.0, text)
        if suite:
            share, trouble = suite.share(done)
            return TaskVerdict(share, done.stderr + trouble)
        reward = _reward(logs)
        return TaskVerdict(0.0 if reward == 1.0 and done.exit_code else reward, text)

    def close(self) -> None:
        """Remove the world."""
        remove_folder(self._base)

    def __enter__(self) -> "TaskWorld":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _show(self, files: Mapping[str, bytes], place: str) -> Bind:
        """Put files outside the work folder, to be shown inside at `place`."""
        folder = self._base / place.strip("/")
        for name, data in files.items():
            put(folder / name, self._relocated(data) if self._backend == "none" else data)
        folder.mkdir(exist_ok=True)
        return Bind(folder, place)

    def _relocated(self, data: bytes) -> bytes:
        """A script with the paths that its world has where there is no sandbox to give it its own."""
        for place in ("/logs", "/tests", "/solution", VERIFY):
            data = re.sub(
                rf"(?<![\w.])({place})\b".encode(), f"{self._base}/{PurePosixPath(place).name}".encode(), data
            )
        return re.sub(rb"(?<![\w.])/(app|work)\b", str(self.work).encode(), data)

    def _path(self, part: str, sandbox: Sandbox) -> str:
        return part if sandbox.work == "/work" else self._relocated(part.encode()).decode()

    def _inside(self, path: PurePosixPath) -> Path:
        """Return where a path of the world is on the host."""
        for root in ("/app", "/work"):
            if path.is_relative_to(root):
                found = self.work / path.relative_to(root)
                if found.resolve().is_relative_to(self.work.resolve()):
                    return found
        raise WorldBroken(f"the set-up of {self.task.id} needs Docker: it writes to {path}")

    def _copy_in(self, context: Mapping[str, bytes], parts: list[str], where: PurePosixPath) -> None:
        if len(parts) < 2:
            raise WorldBroken(f"the set-up of {self.task.id} copies without saying what or where")
        *sources, target = parts
        goal = where / target
        for source in sources:
            name = PurePosixPath(source.lstrip("/") or ".").as_posix()
            if name in context:
                into = target.endswith(("/", ".")) or len(sources) > 1 or self._inside(goal).is_dir()
                self._copy({(PurePosixPath(name).name if into else "."): context[name]}, self._inside(goal))
                continue
            below = {path: data for path, data in context.items() if path != "Dockerfile"}
            if name != ".":
                below = {p.removeprefix(f"{name}/"): data for p, data in below.items() if p.startswith(f"{name}/")}
            if not below:
                raise WorldBroken(f"the set-up of {self.task.id} copies {source!r}, which is not there")
            self._copy(below, self._inside(goal))

    def _copy(self, files: Mapping[str, bytes], folder: Path) -> None:
        root = self.work.resolve()
        for name, data in files.items():
            if not (folder / name).resolve().is_relative_to(root):  # a link that an earlier command made
                raise WorldBroken(f"the set-up of {self.task.id} writes outside its work folder: {name}")
            put(folder / name, data)

    def _run_setup(self, command: str, where: PurePosixPath) -> None:
        with self.sandbox() as sandbox:
            place = self._path(str(where), sandbox)
            done = sandbox.run(["bash", "-c", command], timeout=SETUP_TIMEOUT, cwd=place)
        if done.exit_code:
            raise WorldBroken(f"the set-up of {self.task.id} failed: {command}: {done.stderr.strip()[-200:]}")


def _instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile."""
    lines = [line for line in dockerfile.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        word, _, rest = line.strip().partition(" ")
        yield word.upper(), rest.strip()


def _variables(said: str) -> dict[str, str]:
    parts = shlex.split(said)
    if parts and "=" not in parts[0]:
        return {parts[0]: " ".join(parts[1:])}
    return {name: value for name, _, value in (part.partition("=") for part in parts)}


def _reward(logs: Path) -> float:
    """Read the reward in `reward.txt` (a number) or `reward.json` (`{"reward": number}`); 0 where neither."""
    try:
        if (logs / "reward.json").is_file():
            said = json.loads(read_untrusted_file(logs / "reward.json"))
            reward = float(said["reward"] if "reward" in said else next(iter(said.values())))
        else:
            reward = float(read_untrusted_file(logs / "reward.txt"))
    except (ValueError, TypeError, AttributeError, StopIteration):
        return 0.0
    return min(1.0, max(0.0, reward)) if math.isfinite(reward) else 0.0
