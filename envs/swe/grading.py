"""Grading of a diff by the hidden tests, on a checkout that the agent has never touched.

The diff is applied first and the hidden tests are written last, onto the base commit's own versions of all files that
named tests are in, in folders that are folders: whatever the diff did to a test, or put in its way, is gone. So is
what it did to files that steer the test runner, unless the oracle changes them too. A diff that keeps the tests from
being written has failed; only tests that don't fit the base commit itself break the world. Tests import the code that
they test, which can forge what its process reports; so the tests that decide run as copies of which some must fail
(`clawrl_trl.envs.sandbox.canaries`), and the report is held against the exit code. With a test command, the log is
believed.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from clawrl_trl.envs.base.agent import WorldBroken
from clawrl_trl.envs.sandbox.canaries import Canaries, Phase, list_functions, make_canaries, strip_parameters
from clawrl_trl.envs.sandbox.sandbox import CommandResult, Limits
from clawrl_trl.envs.swe.checkout import LIMITS, Checkout
from clawrl_trl.envs.swe.tasks import SweTask

STEERING = {"conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg"}
STEERING |= {"pyproject.toml", "sitecustomize.py", "usercustomize.py"}
"""Names of files that steer a test runner."""

_HEADER = re.compile(r"^(?:diff --git a/(.+?) b/(.+)|--- a/(.+)|\+\+\+ b/(.+)|rename (?:from|to) (.+))$", re.MULTILINE)
_SAID = re.compile(r"^(PASSED|XFAIL|FAILED|ERROR) (\S+(?: \[.*\])?)", re.MULTILINE)
_UNITTEST = re.compile(r"^(\w+ \([\w.]+\)).* \.\.\. (ok|expected failure|FAIL|ERROR)$", re.MULTILINE)


@dataclass(frozen=True)
class Grade:
    """Grade of a diff.

    Attributes:
        resolved (`bool`): Whether all named tests pass.
        reason (`str`): Why not.
        passed (`Mapping[str, bool]`): The named tests.
    """

    resolved: bool
    reason: str = ""
    passed: Mapping[str, bool] = field(default_factory=dict)


def grade(
    task: SweTask, diff: str | bytes, *, timeout: float = 900.0, limits: Limits = LIMITS, backend: str | None = None
) -> Grade:
    """Grade a diff.

    Args:
        task ([`SweTask`]): The task.
        diff (`str` or `bytes`): The submission; may be empty.
        timeout (`float`, *optional*, defaults to `900.0`): Seconds for the tests; longer is a failure.
        limits ([`Limits`], *optional*): What the tests may use.
        backend (`str`, *optional*): The sandbox's back end.

    Raises:
        WorldBroken: If the repository can't be set up or the hidden tests don't fit it.
    """
    with Checkout(task, limits=limits, backend=backend) as checkout:
        if diff.strip() and not _apply(checkout, diff):
            return Grade(False, "the diff does not apply")
        if not _write_tests(checkout, task):
            return _unwritable(task, diff, limits, backend)
        ran, reason = _run(checkout, task, timeout)
    passed = {name: _passed(name, ran) for name in (*task.fail_to_pass, *task.pass_to_pass)}
    failing = [name for name, fine in passed.items() if not fine]
    if failing:
        return Grade(False, reason or f"{len(failing)} of {len(passed)} tests fail, {failing[0]} among them", passed)
    return Grade(bool(task.fail_to_pass), passed=passed)


def list_paths(diff: str) -> set[str]:
    """The files that a diff touches."""
    return {path for found in _HEADER.findall(diff) for path in found if path}


def _apply(checkout: Checkout, diff: str | bytes) -> bool:
    """Apply a diff inside the sandbox; git follows no link and leaves neither the repository nor `.git` alone."""
    return checkout.program(["git", "apply", "--whitespace=nowarn", "-"], input=diff).exit_code == 0


def _write_tests(checkout: Checkout, task: SweTask) -> bool:
    """Write the hidden tests; whether they fit."""
    return _restore(checkout, task) and (not task.test_patch.strip() or _apply(checkout, task.test_patch))


def _unwritable(task: SweTask, diff: str | bytes, limits: Limits, backend: str | None) -> Grade:
    """Whose fault it is that the hidden tests don't fit."""
    if diff.strip():
        with Checkout(task, limits=limits, backend=backend) as untouched:
            if _write_tests(untouched, task):
                return Grade(False, "the hidden tests can't be written onto the diff")
    raise WorldBroken(f"the hidden tests of {task.id} don't apply to its base commit")


def _restore(checkout: Checkout, task: SweTask) -> bool:
    """Put the files of the named tests, and those that steer the runner, back as they were at the base commit."""
    base = set(_lines(checkout, "git", "ls-tree", "-rz", "--name-only", checkout.base))
    now = base | set(_lines(checkout, "git", "ls-files", "-oz"))
    steering = {path for path in now if PurePosixPath(path).name in STEERING}
    named = {name.partition("::")[0] for name in (*task.fail_to_pass, *task.pass_to_pass) if "::" in name}
    guarded = list_paths(task.test_patch) | (steering | named) - list_paths(task.patch)
    for path in sorted(guarded):
        _clear(checkout.root, path)
    kept = sorted(guarded & base)
    return not kept or checkout.program(["git", "checkout", "--force", checkout.base, "--", *kept]).exit_code == 0


def _clear(root: Path, path: str) -> None:
    """Remove a file, and what stands where its folders must be; nothing runs in the sandbox, so nobody interferes."""
    place = root
    for part in PurePosixPath(path).parts:
        place = place / part
        if place.is_symlink() or place.is_file():
            place.unlink()
            return
        if not place.is_dir():
            return
    shutil.rmtree(place)


def _run(checkout: Checkout, task: SweTask, timeout: float) -> tuple[Mapping[str, bool], str]:
    if task.test_command is not None:
        done = checkout.run(task.test_command, timeout)
        ran: Mapping[str, bool] = read_log(done.stdout)
        trouble = ""
    else:
        files = _test_files(checkout, task)
        canaries = make_canaries(*_deciding(checkout, task, files))
        for path, text in canaries.files.items():
            _clear(checkout.root, path)
            (checkout.root / path).write_text(text)
        done = checkout.program(_pytest(task, files, canaries), timeout=timeout)
        ran, trouble = canaries.judge(read_report(done))
    if done.timed_out:
        return {}, f"the tests did not end within {timeout:g} s"
    if done.exceeded_limit:
        return {}, f"the tests were ended: {done.exceeded_limit}"
    if trouble and ran:
        return {}, trouble
    return (
        ran,
        "" if ran else f"no report that agrees with the exit code: {(done.stderr or done.stdout).strip()[-500:]}",
    )


def _pytest(task: SweTask, files: Sequence[str], canaries: Canaries) -> list[str]:
    """The command that runs the hidden tests; what decides, as copies alone."""
    # A task that brings its whole world can't mean the plugins of this one, and loading them takes longest.
    alone = ["env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1"] if task.files else []
    own = [file for file in files if file not in canaries.stand_ins]
    return [*alone, *worker(["."]), *own, *canaries.paths_to_run]


def worker(path: Sequence[str], program: str = "") -> list[str]:
    """The command that runs pytest and reports, to be followed by pytest's arguments.

    Args:
        path (`Sequence[str]`): Folders to import from; relative ones: from where it is run.
        program (`str`, *optional*): What starts the commands of the tests; default: they do.
    """
    source = Path(__file__).with_name("grading_worker.py").read_text()
    return ["python", "-I", "-c", source, json.dumps({"path": list(path), "program": program})]


def read_report(done: CommandResult) -> list[Phase]:
    """Read the tests' outcomes; empty unless the report, its own tale and the exit code agree."""
    try:
        report = json.loads(done.stdout)
        phases = [(str(name), str(phase), str(outcome)) for name, phase, outcome in report["phases"]]
        code = int(report["exit"])
    except (ValueError, TypeError, KeyError):
        return []
    failed = any(outcome == "failed" for _, _, outcome in phases)
    return phases if code == done.exit_code == int(failed) else []


def _deciding(
    checkout: Checkout, task: SweTask, files: Sequence[str]
) -> tuple[Mapping[str, str], Mapping[str, set[str]]]:
    """The files of tests that must come to pass, and those tests; a file whose tests can't all be found is not one."""
    sources, deciding = {}, {}
    for file in files:
        if not file.endswith(".py"):
            continue
        try:
            source = (checkout.root / file).read_text()
        except (OSError, UnicodeError):
            continue
        functions = set(list_functions(source))
        named = {strip_parameters(test) for name in task.fail_to_pass for path, _, test in [name.partition("::")]
                 if path == file and test}  # fmt: skip
        bare = {name for name in task.fail_to_pass if "::" not in name}
        named |= {function for function in functions if function.rpartition("::")[2] in bare}
        sources[file] = source
        deciding[file] = named if named <= functions else set()
    return dict(sorted(sources.items(), key=lambda item: not deciding[item[0]])), deciding


def _test_files(checkout: Checkout, task: SweTask) -> list[str]:
    """The files that the named tests are in; one that the diff removed is left out, as pytest would run nothing."""
    named = {name.partition("::")[0] for name in (*task.fail_to_pass, *task.pass_to_pass) if "::" in name}
    files = named or {path for path in list_paths(task.test_patch) if path.endswith(".py")}
    return sorted(file for file in files if (checkout.root / file).is_file())


def read_log(log: str) -> dict[str, bool]:
    """The tests in the log of `pytest -rA` or of unittest in its wordy mode."""
    passed = {name: said in ("PASSED", "XFAIL") for said, name in _SAID.findall(log)}
    return passed | {name: said in ("ok", "expected failure") for name, said in _UNITTEST.findall(log)}


def _passed(name: str, ran: Mapping[str, bool]) -> bool:
    """Return whether a named test passed.

    SWE-bench's lists, read from logs, have names that end at a blank, and for some projects names without a file;
    such a name stands for all tests that it may mean.
    """
    if name in ran:
        return ran[name]
    bare = "::" not in name and "(" not in name
    meant = [
        fine for one, fine in ran.items() if one.partition(" ")[0] == name or (bare and one.endswith(f"::{name}"))
    ]
    return bool(meant) and all(meant)


def _lines(checkout: Checkout, *argv: str) -> Iterable[str]:
    return [line for line in os.fsdecode(checkout.program(argv).raw).split("\0") if line]
