"""Grading of a diff by the hidden tests, on a checkout that the agent has never touched.

The diff is applied first and the hidden tests are written last, onto the base commit's versions of all files with
named tests; links and folders in their way are removed. So nothing that the diff did to a test remains, nor what it
did to files that configure the test runner, unless the oracle changes them too. A diff that keeps the tests from being
written has failed; only tests that don't fit the base commit itself break the world. Tests import the code that they
test, which can forge what its process reports. So the tests that decide run as copies of which some must fail
(`clawrl_trl.envs.sandbox.canaries`), and the report must agree with the exit code. With a test command, the log is
trusted.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from clawrl_trl.envs.base.episode import WorldBroken
from clawrl_trl.envs.sandbox.canaries import Canaries, Phase, list_functions, make_canaries, strip_parameters
from clawrl_trl.envs.sandbox.sandbox import CommandResult, Limits
from clawrl_trl.envs.swe.checkout import LIMITS, Checkout
from clawrl_trl.envs.swe.tasks import SweTask

STEERING = {"conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg"}
STEERING |= {"pyproject.toml", "sitecustomize.py", "usercustomize.py"}
"""Names of files that configure a test runner or Python itself: by one of them a diff could make every test pass."""

_DIFF_HEADER = re.compile(
    r"^(?:diff --git a/(.+?) b/(.+)|--- a/(.+)|\+\+\+ b/(.+)|rename (?:from|to) (.+))$", re.MULTILINE
)
_PYTEST_LINE = re.compile(r"^(PASSED|XFAIL|FAILED|ERROR) (\S+(?: \[.*\])?)", re.MULTILINE)
_UNITTEST_LINE = re.compile(r"^(\w+ \([\w.]+\)).* \.\.\. (ok|expected failure|FAIL|ERROR)$", re.MULTILINE)


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
            return _grade_unwritable_tests(task, diff, limits, backend)
        results, reason = _run_tests(checkout, task, timeout)
    passed = {name: _has_passed(name, results) for name in (*task.fail_to_pass, *task.pass_to_pass)}
    failing = [name for name, has_passed in passed.items() if not has_passed]
    if failing:
        return Grade(False, reason or f"{len(failing)} of {len(passed)} tests fail, {failing[0]} among them", passed)
    return Grade(bool(task.fail_to_pass), passed=passed)


def list_paths(diff: str) -> set[str]:
    """List the files that a diff touches, under their old and new names."""
    return {path for match in _DIFF_HEADER.findall(diff) for path in match if path}


def _apply(checkout: Checkout, diff: str | bytes) -> bool:
    """Apply a diff inside the sandbox; git refuses one that follows a link, leaves the repository or writes `.git`."""
    return checkout.run_program(["git", "apply", "--whitespace=nowarn", "-"], input=diff).exit_code == 0


def _write_tests(checkout: Checkout, task: SweTask) -> bool:
    """Write the hidden tests; return whether they fit."""
    return _restore_base_files(checkout, task) and (not task.test_patch.strip() or _apply(checkout, task.test_patch))


def _grade_unwritable_tests(task: SweTask, diff: str | bytes, limits: Limits, backend: str | None) -> Grade:
    """Decide whose fault it is that the hidden tests don't fit: a failure where it is the diff's.

    Raises:
        WorldBroken: If they don't fit the base commit either.
    """
    if diff.strip():
        with Checkout(task, limits=limits, backend=backend) as fresh:
            if _write_tests(fresh, task):
                return Grade(False, "the hidden tests can't be written onto the diff")
    raise WorldBroken(f"the hidden tests of {task.id} don't apply to its base commit")


def _restore_base_files(checkout: Checkout, task: SweTask) -> bool:
    """Restore the files of the named tests, and those that configure the runner, from the base commit."""
    base = set(_list_git_paths(checkout, "git", "ls-tree", "-rz", "--name-only", checkout.base))
    # Untracked files too, and ignored ones: a diff can add a conftest.py as well as the .gitignore that hides it.
    present = base | set(_list_git_paths(checkout, "git", "ls-files", "-oz"))
    steering = {path for path in present if PurePosixPath(path).name in STEERING}
    named = {name.partition("::")[0] for name in (*task.fail_to_pass, *task.pass_to_pass) if "::" in name}
    # What the oracle changes is part of the solution, and stays as the diff has it.
    guarded = list_paths(task.test_patch) | (steering | named) - list_paths(task.patch)
    for path in sorted(guarded):
        _clear_path(checkout.root, path)
    restored = sorted(guarded & base)
    return (
        not restored
        or checkout.run_program(["git", "checkout", "--force", checkout.base, "--", *restored]).exit_code == 0
    )


def _clear_path(root: Path, path: str) -> None:
    """Remove a file, and whatever is in the place of its folders.

    On the host, but nothing runs in the sandbox, so that no link can be swapped in meanwhile.
    """
    place = root
    for part in PurePosixPath(path).parts:
        place = place / part
        if place.is_symlink() or place.is_file():
            place.unlink()
            return
        if not place.is_dir():
            return
    shutil.rmtree(place)


def _run_tests(checkout: Checkout, task: SweTask, timeout: float) -> tuple[Mapping[str, bool], str]:
    if task.test_command is not None:
        test_run = checkout.run(task.test_command, timeout)
        results: Mapping[str, bool] = read_log(test_run.stdout)
        trouble = ""
    else:
        files = _list_test_files(checkout, task)
        canaries = make_canaries(*_find_deciding_tests(checkout, task, files))
        for path, text in canaries.files.items():
            _clear_path(checkout.root, path)
            (checkout.root / path).write_text(text)
        test_run = checkout.run_program(_build_pytest_command(task, files, canaries), timeout=timeout)
        results, trouble = canaries.judge(read_report(test_run))
    if test_run.timed_out:
        return {}, f"the tests did not end within {timeout:g} s"
    if test_run.exceeded_limit:
        return {}, f"the tests were ended: {test_run.exceeded_limit}"
    if trouble and results:
        return {}, trouble
    if results:
        return results, ""
    return {}, f"no report that agrees with the exit code: {(test_run.stderr or test_run.stdout).strip()[-500:]}"


def _build_pytest_command(task: SweTask, files: Sequence[str], canaries: Canaries) -> list[str]:
    """Build the command that runs the hidden tests; files with tests that decide, as copies alone."""
    # A task that consists of its files can't need the plugins installed here, whose loading takes longest.
    environment = ["env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1"] if task.files else []
    plain_files = [file for file in files if file not in canaries.stand_ins]
    return [*environment, *build_worker_command(["."]), *plain_files, *canaries.paths_to_run]


def build_worker_command(path: Sequence[str], program: str = "") -> list[str]:
    """Build the command that runs pytest and reports, to be followed by pytest's arguments.

    Args:
        path (`Sequence[str]`): Folders to import from; relative to the folder where it runs.
        program (`str`, *optional*): What starts the commands of the tests; default: they start as they are.
    """
    source = Path(__file__).with_name("grading_worker.py").read_text()
    # Isolated, so that no module of the repository is loaded in place of one of Python's or pytest's.
    return ["python", "-I", "-c", source, json.dumps({"path": list(path), "program": program})]


def read_report(result: CommandResult) -> list[Phase]:
    """Read the tests' outcomes; empty unless the outcomes, the exit code in the report and the process's agree."""
    try:
        report = json.loads(result.stdout)
        phases = [(str(name), str(phase), str(outcome)) for name, phase, outcome in report["phases"]]
        code = int(report["exit"])
    except (ValueError, TypeError, KeyError):
        return []
    # A forged report needs a forged exit code too, and the other way round.
    failed = any(outcome == "failed" for _, _, outcome in phases)
    return phases if code == result.exit_code == int(failed) else []


def _find_deciding_tests(
    checkout: Checkout, task: SweTask, files: Sequence[str]
) -> tuple[Mapping[str, str], Mapping[str, set[str]]]:
    """Find the files with tests that decide, and those tests; none in a file whose named tests can't all be found."""
    sources, deciding = {}, {}
    for file in files:
        if not file.endswith(".py"):
            continue
        try:
            source = (checkout.root / file).read_text()
        except (OSError, UnicodeError):
            continue
        functions = set(list_functions(source))
        tests = {strip_parameters(test) for name in task.fail_to_pass for path, _, test in [name.partition("::")]
                 if path == file and test}  # fmt: skip
        bare_names = {name for name in task.fail_to_pass if "::" not in name}
        tests |= {function for function in functions if function.rpartition("::")[2] in bare_names}
        sources[file] = source
        deciding[file] = tests if tests <= functions else set()
    return dict(sorted(sources.items(), key=lambda item: not deciding[item[0]])), deciding


def _list_test_files(checkout: Checkout, task: SweTask) -> list[str]:
    """List the files with named tests; one that the diff removed is left out, as pytest would then run nothing."""
    named = {name.partition("::")[0] for name in (*task.fail_to_pass, *task.pass_to_pass) if "::" in name}
    files = named or {path for path in list_paths(task.test_patch) if path.endswith(".py")}
    return sorted(file for file in files if (checkout.root / file).is_file())


def read_log(log: str) -> dict[str, bool]:
    """Read the tests' outcomes from the log of `pytest -rA` or of unittest with `--verbose`."""
    passed = {name: outcome in ("PASSED", "XFAIL") for outcome, name in _PYTEST_LINE.findall(log)}
    return passed | {name: outcome in ("ok", "expected failure") for name, outcome in _UNITTEST_LINE.findall(log)}


def _has_passed(name: str, results: Mapping[str, bool]) -> bool:
    """Return whether a named test passed.

    SWE-bench's lists, read from logs, have names that end at a blank, and for some projects names without a file;
    such a name stands for all tests that it may mean.
    """
    if name in results:
        return results[name]
    is_bare = "::" not in name and "(" not in name
    matching = [
        has_passed
        for test, has_passed in results.items()
        if test.partition(" ")[0] == name or (is_bare and test.endswith(f"::{name}"))
    ]
    return bool(matching) and all(matching)


def _list_git_paths(checkout: Checkout, *argv: str) -> Iterable[str]:
    return [line for line in os.fsdecode(checkout.run_program(argv).raw).split("\0") if line]
