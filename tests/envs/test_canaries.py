"""Copies of tests of which some must fail: what is inverted, and how the results are read."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from clawrl_trl.envs.sandbox.canaries import (
    Canaries,
    Phase,
    invert_tests,
    list_functions,
    make_canaries,
    read_phases,
    strip_parameters,
)
from clawrl_trl.envs.terminal.links import remove_escaping_links

SPOILABLE = {
    "a number": "assert 1 + 1 == 2",
    "a number first": "assert 2 == 1 + 1",
    "a text": "assert 'a' + 'b' == 'ab'",
    "a huge number": "assert 1e300 == 1e300",
    "a condition": "assert 3 in [3]",
    "a negated condition": "assert not []",
    "a list": "assert [1, 2] == list((1, 2))",
    "a loop": "for x in (1, 2):\n        assert x",
    "an empty loop": "for x in ():\n        assert x",
    "an early end": "if True:\n        return\n    assert 0",
    "no assert": "pass",
    "an error that is expected": "try:\n        [][0]\n    except IndexError:\n        pass",
    "unittest": "import unittest\n    self = unittest.TestCase()\n    self.assertEqual(2, 1 + 1)",
    "unittest's conditions": "import unittest\n    self = unittest.TestCase()\n    self.assertIn(2, [2])",
}


@pytest.mark.parametrize("kind", SPOILABLE)
def test_a_spoilt_test_fails_and_a_true_one_passes(kind: str) -> None:
    source = f"def test_it():\n    {SPOILABLE[kind]}\n"
    for number in range(5):
        for inverted in (frozenset[str](), frozenset({"test_it"})):
            module = ModuleType("copy")
            exec(invert_tests(source, inverted, random.Random(number)), vars(module))
            test: Callable[[], None] = module.test_it
            if inverted:
                with pytest.raises(AssertionError):
                    test()
            else:
                test()


def test_each_copy_looks_like_any_other() -> None:
    source = (
        "# a comment\nclass TestA:\n    def test_a(self):\n        assert f() == 3\n\ndef test_b():\n    assert g()\n"
    )
    canaries = make_canaries({"t/test_x.py": source}, {"t/test_x.py": {"TestA::test_a"}})
    assert list_functions(source) == ["TestA::test_a", "test_b"]
    assert 0 < sum(bool(copy.inverted) for copy in canaries.copies) < len(canaries.copies) == 6
    assert {copy.source.count("\n") for copy in canaries.copies} == {canaries.stand_ins["t/test_x.py"].count("\n")}
    assert sorted(canaries.paths_to_run) == sorted(set(canaries.files) - {"t/test_x.py"})
    assert all(path.startswith("t/test_") for path in canaries.files)


def make_phases(canaries: Canaries, wins: Callable[[str, bool], bool]) -> list[Phase]:
    """Build pytest's report where a test passes if `wins` (its name, whether it ought to pass)."""
    expected = {f"{copy.path}::test_a[1 2]": "test_a" not in copy.inverted for copy in canaries.copies}
    expected |= {name: name in canaries.must_pass for name in canaries.must_pass | canaries.must_fail}
    return [
        (name, phase, "passed" if phase != "call" or wins(name, right) else "failed")
        for name, right in expected.items()
        for phase in ("setup", "call", "teardown")
    ]


@pytest.mark.parametrize(
    ("wins", "passed", "trusted"),
    [
        (lambda name, right: right, True, True),
        (lambda name, right: True, True, False),
        (lambda name, right: False, False, False),
        (lambda name, right: not right, False, False),
    ],
    ids=["honest", "all pass", "all fail", "turned"],
)
def test_results_are_believed_only_where_spoilt_tests_fail(
    wins: Callable[[str, bool], bool], passed: bool, trusted: bool
) -> None:
    canaries = make_canaries({"test_x.py": "def test_a():\n    assert 1 == 1\n"}, {"test_x.py": {"test_a"}})
    result, trouble = canaries.judge(make_phases(canaries, wins))
    assert (result["test_x.py::test_a[1 2]"], not trouble) == (passed, trusted)


def test_a_test_that_is_missing_in_a_copy_has_not_passed() -> None:
    canaries = make_canaries({"test_x.py": "def test_a():\n    assert 1 == 1\n"}, {"test_x.py": {"test_a"}})
    phases = make_phases(canaries, lambda name, right: right)
    remaining = [row for row in phases if not row[0].startswith(canaries.copies[0].path)]
    assert canaries.judge(remaining)[0] == {"test_x.py::test_a[1 2]": False}
    assert canaries.judge([])[1]


def test_each_phase_must_be_reported_and_pass() -> None:
    whole = [("a", "setup", "passed"), ("a", "call", "passed"), ("a", "teardown", "passed")]
    assert read_phases(whole) == {"a": True}
    assert read_phases([*whole, ("a", "call", "failed")]) == {"a": False}
    for missing in range(3):
        assert read_phases(whole[:missing] + whole[missing + 1 :]) == {"a": False}
    assert read_phases([("a", "setup", "skipped"), ("a", "teardown", "passed")]) == {"a": False}
    assert read_phases([whole[0], ("a", "call", "xfailed"), whole[2]]) == {"a": True}
    assert strip_parameters("A::b[c::d]") == "A::b"


LINKS: Mapping[str, bool] = {
    "a.txt": True,
    "/app/a.txt": True,
    "/work/d/../a.txt": True,
    "missing": True,
    "/usr/bin/env": True,
    "/tests/a": False,
    "../tests": False,
    "/": False,
    "d/../../tests": False,
    "/proc/self/root/app": False,
    "root/tests": False,
    "itself": False,
    "/tmp/x": False,
}


@pytest.mark.parametrize("target", LINKS)
def test_only_links_that_lead_out_are_removed(tmp_path: Path, target: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "a.txt").touch()
    (tmp_path / "root").symlink_to("/")
    (tmp_path / "itself").symlink_to(target)
    remove_escaping_links(tmp_path)
    assert (tmp_path / "itself").is_symlink() == LINKS[target]
    assert not (tmp_path / "root").is_symlink() and (tmp_path / "a.txt").exists()
