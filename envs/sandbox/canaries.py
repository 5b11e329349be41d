"""Copies of tests of which some must fail, to notice code under test that forges results.

Code that tests import shares their process, and can turn every result of it. So tests that decide are run as several
copies under names that say nothing: in each copy each test is true or spoilt at random (its asserts turned, or their
expected values changed). True ones must pass and spoilt ones fail. Code that makes everything pass is caught by the
spoilt ones, and so are values that equal everything or are read off the assert that checks them; code that forges
results one by one has to tell the true copies from the spoilt ones, and guesses right once in 2^6 - 2.
"""

import ast
import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

COPIES = 6
"""Copies of a file with tests that decide."""
FEWER = 3
"""Copies of a file with more than `MANY` functions."""
MANY = 40
TAMPERED = "the tests were tampered with"

Phase = tuple[str, str, str]
"""Name of a test, phase of it, outcome of the phase."""
_OPPOSITES = {"Equal": "NotEqual", "True": "False", "In": "NotIn", "Is": "IsNot", "IsNone": "IsNotNone"}
_OPPOSITES |= {"IsInstance": "NotIsInstance", "Greater": "LessEqual", "Less": "GreaterEqual"}
_OPPOSITES |= {"AlmostEqual": "NotAlmostEqual", "Regex": "NotRegex"}
_OPPOSITES |= {opposite: name for name, opposite in _OPPOSITES.items()}


@dataclass(frozen=True)
class Copy:
    """One copy of a file of tests.

    Attributes:
        path (`str`): Where it is written.
        origin (`str`): The file that it is a copy of.
        source (`str`): Its text.
        spoilt (`frozenset[str]`): The tests (`"Class::test"`) that must fail.
    """

    path: str
    origin: str
    source: str
    spoilt: frozenset[str]


@dataclass
class Canaries:
    """The copies of some files, and tests of no file's.

    Attributes:
        copies (`list[Copy]`): The copies that are run.
        stand_ins (`dict[str, str]`): What stands in the files' own places, for those who import them: a copy more.
        own (`dict[str, str]`): Files of tests that test nothing.
        must_pass (`set[str]`): Those of them that must pass.
        must_fail (`set[str]`): Those that must fail.
    """

    copies: list[Copy] = field(default_factory=list)
    stand_ins: dict[str, str] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    must_pass: set[str] = field(default_factory=set)
    must_fail: set[str] = field(default_factory=set)

    @property
    def files(self) -> dict[str, str]:
        """Files to write, by path."""
        return {**self.own, **self.stand_ins, **{copy.path: copy.source for copy in self.copies}}

    @property
    def run(self) -> list[str]:
        """The files to run, in an order that says nothing."""
        paths = [*self.own, *(copy.path for copy in self.copies)]
        random.SystemRandom().shuffle(paths)
        return paths

    def judge(self, phases: Sequence[Phase]) -> tuple[dict[str, bool], str]:
        """Read what pytest reported.

        Returns:
            `tuple[dict[str, bool], str]`: Whether each test passed, under its own name, and why the results can't
            be trusted (empty: they can).
        """
        passed = read_phases(phases)
        canaries = self.must_pass | self.must_fail
        trouble = [name for name in canaries if passed.get(name) is not (name in self.must_pass)]
        true: dict[str, list[bool]] = {}
        spoilt: dict[str, list[bool]] = {}
        runs: dict[str, int] = {}
        for copy in self.copies:
            for name, fine in passed.items():
                if name.startswith(f"{copy.path}::"):
                    test = name[len(copy.path) :]
                    kind = spoilt if function_of(test[2:]) in copy.spoilt else true
                    kind.setdefault(copy.origin + test, []).append(fine)
        for test in {*true, *spoilt}:
            runs[test] = len(true.get(test, [])) + len(spoilt.get(test, []))
        paths = {copy.path for copy in self.copies}
        result = {n: fine for n, fine in passed.items() if n not in canaries and n.partition("::")[0] not in paths}
        whole = {origin: sum(copy.origin == origin for copy in self.copies) for origin in self.stand_ins}
        for test in runs:
            result[test] = bool(true.get(test)) and all(true[test]) and runs[test] == whole[test.partition("::")[0]]
        solved = [test for test, results in spoilt.items() if result[test] and any(results)]
        return result, TAMPERED if trouble or solved else ""


def make_canaries(sources: Mapping[str, str], deciding: Mapping[str, set[str]]) -> Canaries:
    """Make copies of tests, and some tests of their own.

    Args:
        sources (`Mapping[str, str]`): The files of tests, by path.
        deciding (`Mapping[str, set[str]]`): The tests of each that decide (`"Class::test"`).
    """
    rng = random.SystemRandom()
    canaries = Canaries()
    for path, source in sources.items():
        functions = functions_in(source)
        tests = deciding.get(path, set()) & set(functions)
        if not tests:
            continue
        count = COPIES if len(functions) <= MANY else FEWER
        marks = {test: _marks(count, rng) for test in sorted(tests)}
        for number in range(count + 1):
            spoilt = frozenset(test for test, mark in marks.items() if mark[number])
            if number == count:
                canaries.stand_ins[path] = spoil(source, spoilt, rng)
            else:
                text = spoil(source, spoilt, rng)
                canaries.copies.append(Copy(_beside(path), path, text, spoilt))
    for path in list(sources)[:1]:
        own = _beside(path)
        like = next(iter(deciding.get(path, ())), "test").rpartition("::")[
            2
        ]  # a repository may have a prefix of its own
        names = [f"{like.partition('_')[0]}_{secrets.token_hex(4)}" for _ in range(4)]
        values = [rng.randint(0, 99) for _ in names]
        text = "".join(
            f"def {name}():\n    assert {value} == {value + number % 2}\n\n\n"
            for number, (name, value) in enumerate(zip(names, values, strict=True))
        )
        canaries.own[own] = text
        canaries.must_pass = {f"{own}::{name}" for name in names[::2]}
        canaries.must_fail = {f"{own}::{name}" for name in names[1::2]}
    return canaries


def read_phases(phases: Sequence[Phase]) -> dict[str, bool]:
    """The tests that passed: set-up, call and tear-down all did, and each was reported."""
    outcomes: dict[str, list[tuple[str, str]]] = {}
    for name, phase, outcome in phases:
        outcomes.setdefault(name, []).append((phase, outcome))
    return {
        name: ("call" in dict(rows) or ("setup", "xfailed") in rows)
        and {"setup", "teardown"} <= set(dict(rows))
        and all(outcome in ("passed", "xfailed") for _, outcome in rows)
        for name, rows in outcomes.items()
    }


def function_of(test: str) -> str:
    """A test's name without its parameters."""
    return test.partition("[")[0]


def functions_in(source: str) -> list[str]:
    """The functions of a file, as `"test"` or `"Class::test"`; none where it can't be read."""
    try:
        return [name for name, _ in _functions(ast.parse(source))]
    except (SyntaxError, ValueError):
        return []


def spoil(source: str, tests: frozenset[str], rng: random.Random) -> str:
    """A file of tests in which some must fail."""
    tree = ast.parse(source)
    for name, function in _functions(tree):
        if name in tests:
            _Spoiler(rng).spoil(function)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.Module | ast.ClassDef, above: str = "") -> Iterator[tuple[str, _Function]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{above}{node.name}::")
        elif isinstance(node, _Function):
            yield f"{above}{node.name}", node


def _marks(count: int, rng: random.Random) -> list[bool]:
    """In which copies a test is spoilt: in some and not in all; the last mark is the stand-in's."""
    number = rng.randint(1, 2**count - 2)
    return [bool(number >> place & 1) for place in range(count)] + [rng.random() < 0.5]


def _beside(path: str) -> str:
    return str(PurePosixPath(path).with_name(f"test_{secrets.token_hex(6)}.py"))


class _Spoiler(ast.NodeTransformer):
    """Turns the asserts of one test."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def spoil(self, function: _Function) -> None:
        """Make a test fail that would pass."""
        sure = any(isinstance(node, ast.Assert) or _is_assert_call(node) for node in function.body)
        function.body = [self.visit(node) for node in function.body]
        if not sure:  # its asserts may not be reached, so the end is one
            function.body.append(ast.Assert(ast.Compare(ast.Constant(0), [ast.Eq()], [ast.Constant(1)])))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Leave what is not the test itself alone."""
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """Likewise."""
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        """Likewise."""
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        """A test that ends before its asserts fails instead."""
        return ast.Assert(ast.Constant(0))

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Change the value that is expected, or turn the condition."""
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            [right] = test.comparators
            if _is_literal(right):
                return ast.Assert(ast.Compare(test.left, test.ops, [self._other(right)]), node.msg)
            if _is_literal(test.left):
                return ast.Assert(ast.Compare(self._other(test.left), test.ops, [right]), node.msg)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return ast.Assert(test.operand, node.msg)
        return ast.Assert(ast.UnaryOp(ast.Not(), test), node.msg)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Turn an assert of unittest's."""
        call = node.value
        if not _is_assert_call(node):
            return node
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        name = call.func.attr.removeprefix("assert")
        literal = next((i for i, value in enumerate(call.args[:2]) if _is_literal(value)), None)
        if name == "Equal" and literal is not None:
            call.args[literal] = self._other(call.args[literal])
        else:
            call.func.attr = f"assert{_OPPOSITES[name]}"
        return node

    def _other(self, literal: ast.expr) -> ast.expr:
        """A value of the same type that is not equal."""
        value = ast.literal_eval(literal)
        if isinstance(value, str):
            place = self._rng.randrange(len(value) + 1)
            return ast.Constant(value[:place] + self._rng.choice("abcdefgh") + value[place:])
        other = value + self._rng.choice([-3, -2, -1, 1, 2, 3])
        return ast.Constant(other if other != value else -value)


def _is_assert_call(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    func = call.func if isinstance(call, ast.Call) else None
    return isinstance(func, ast.Attribute) and func.attr.removeprefix("assert") in _OPPOSITES


def _is_literal(node: ast.expr) -> bool:
    """Return whether a value is a number or a text written out."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError):
        return False
    return isinstance(value, int | float | str) and not isinstance(value, bool)
