"""Copies of tests of which some must fail, to detect code under test that forges results.

Code that tests import shares their process and can change every result of it. So the tests that decide are run as
several copies under random names: in each copy each test is unchanged or inverted at random (its asserts negated, or
their expected values changed). Unchanged ones must pass and inverted ones fail. Code that makes everything pass is
caught by the inverted ones, and so are values that equal everything or are read off the assert that checks them. Code
that forges results one by one has to tell unchanged tests from inverted ones, and guesses right once in 2^6 - 2.
"""

import ast
import random
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

COPIES = 6
"""Copies of a file with tests that decide."""
COPIES_OF_LONG_FILE = 3
"""Copies of a file with more than `LONG_FILE` functions, which takes longer to run."""
LONG_FILE = 40
TAMPERED = "the tests were tampered with"

Phase = tuple[str, str, str]
"""Name of a test, phase of it, outcome of the phase."""
_OPPOSITES = {"Equal": "NotEqual", "True": "False", "In": "NotIn", "Is": "IsNot", "IsNone": "IsNotNone"}
_OPPOSITES |= {"IsInstance": "NotIsInstance", "Greater": "LessEqual", "Less": "GreaterEqual"}
_OPPOSITES |= {"AlmostEqual": "NotAlmostEqual", "Regex": "NotRegex"}
_OPPOSITES |= {opposite: name for name, opposite in _OPPOSITES.items()}


@dataclass(frozen=True)
class FileCopy:
    """One copy of a file of tests.

    Attributes:
        path (`str`): Where it is written.
        origin (`str`): The file that it is a copy of.
        source (`str`): Its text.
        inverted (`frozenset[str]`): The tests (`"Class::test"`) that must fail.
    """

    path: str
    origin: str
    source: str
    inverted: frozenset[str]


@dataclass
class Canaries:
    """The copies of files of tests, and tests of constants that know nothing of the code under test.

    Attributes:
        copies (`list[FileCopy]`): The copies that are run.
        stand_ins (`dict[str, str]`): One more copy of each file in its own place, for code that imports it.
        constant_tests (`dict[str, str]`): Files of tests that compare constants.
        must_pass (`set[str]`): Tests in them that must pass.
        must_fail (`set[str]`): Tests in them that must fail.
    """

    copies: list[FileCopy] = field(default_factory=list)
    stand_ins: dict[str, str] = field(default_factory=dict)
    constant_tests: dict[str, str] = field(default_factory=dict)
    must_pass: set[str] = field(default_factory=set)
    must_fail: set[str] = field(default_factory=set)

    @property
    def files(self) -> dict[str, str]:
        """Files to write, by path."""
        return {**self.constant_tests, **self.stand_ins, **{copy.path: copy.source for copy in self.copies}}

    @property
    def paths_to_run(self) -> list[str]:
        """The files to run, in an order that tells nothing about them."""
        paths = [*self.constant_tests, *(copy.path for copy in self.copies)]
        random.SystemRandom().shuffle(paths)
        return paths

    def judge(self, phases: Sequence[Phase]) -> tuple[dict[str, bool], str]:
        """Decide which tests passed from pytest's report.

        Args:
            phases (`Sequence[Phase]`): The report's rows.

        Returns:
            `tuple[dict[str, bool], str]`: Whether each test passed, under its own name, and why the results can't
            be trusted (empty: they can).
        """
        passed = read_phases(phases)
        canaries = self.must_pass | self.must_fail
        wrong = [name for name in canaries if passed.get(name) is not (name in self.must_pass)]
        unchanged, inverted = self._group_by_origin(passed)
        paths = {copy.path for copy in self.copies}
        results = {
            name: has_passed
            for name, has_passed in passed.items()
            if name not in canaries and name.partition("::")[0] not in paths
        }
        for test in {*unchanged, *inverted}:
            copies = sum(copy.origin == test.partition("::")[0] for copy in self.copies)
            runs = unchanged.get(test, []) + inverted.get(test, [])
            # A test that is missing in a copy was kept from running or from being reported there.
            results[test] = bool(unchanged.get(test)) and all(unchanged[test]) and len(runs) == copies
        # Only a test that would count is suspect: code that simply fails may make inverted tests pass, too.
        forged = any(results[test] and any(runs) for test, runs in inverted.items())
        return results, TAMPERED if wrong or forged else ""

    def _group_by_origin(self, passed: Mapping[str, bool]) -> tuple[dict[str, list[bool]], dict[str, list[bool]]]:
        """Group the copies' results by the test's own name: where it is unchanged, and where it is inverted."""
        unchanged: dict[str, list[bool]] = {}
        inverted: dict[str, list[bool]] = {}
        for copy in self.copies:
            for name, has_passed in passed.items():
                if name.startswith(f"{copy.path}::"):
                    test = name[len(copy.path) :]
                    group = inverted if strip_parameters(test[2:]) in copy.inverted else unchanged
                    group.setdefault(copy.origin + test, []).append(has_passed)
        return unchanged, inverted


def make_canaries(sources: Mapping[str, str], deciding: Mapping[str, set[str]]) -> Canaries:
    """Make copies of files of tests, and tests of constants.

    Args:
        sources (`Mapping[str, str]`): The files of tests, by path.
        deciding (`Mapping[str, set[str]]`): The tests of each that decide (`"Class::test"`).
    """
    rng = random.SystemRandom()
    canaries = Canaries()
    for path, source in sources.items():
        functions = list_functions(source)
        tests = deciding.get(path, set()) & set(functions)
        if not tests:
            continue
        count = COPIES if len(functions) <= LONG_FILE else COPIES_OF_LONG_FILE
        marks = {test: _draw_marks(count, rng) for test in sorted(tests)}
        for number in range(count + 1):
            inverted = frozenset(test for test, mark in marks.items() if mark[number])
            text = invert_tests(source, inverted, rng)
            if number < count:
                canaries.copies.append(FileCopy(_choose_sibling_path(path), path, text, inverted))
            else:
                # The original must not stay in its place: code under test could read the expected values there.
                canaries.stand_ins[path] = text
    for path in list(sources)[:1]:
        _add_constant_tests(canaries, path, deciding.get(path, ()), rng)
    return canaries


def _add_constant_tests(canaries: Canaries, path: str, deciding: Iterable[str], rng: random.Random) -> None:
    """Add a file of tests that compare constants: two that must pass and two that must fail."""
    canary_path = _choose_sibling_path(path)
    example = next(iter(deciding), "test").rpartition("::")[2]
    prefix = example.partition("_")[0]  # a repository may have set pytest a prefix of its own
    names = [f"{prefix}_{secrets.token_hex(4)}" for _ in range(4)]
    values = [rng.randint(0, 99) for _ in names]
    canaries.constant_tests[canary_path] = "".join(
        f"def {name}():\n    assert {value} == {value + number % 2}\n\n\n"
        for number, (name, value) in enumerate(zip(names, values, strict=True))
    )
    canaries.must_pass = {f"{canary_path}::{name}" for name in names[::2]}
    canaries.must_fail = {f"{canary_path}::{name}" for name in names[1::2]}


def read_phases(phases: Sequence[Phase]) -> dict[str, bool]:
    """Decide for each test whether it passed: set-up, call and tear-down were all reported, and all passed."""
    outcomes: dict[str, list[tuple[str, str]]] = {}
    for name, phase, outcome in phases:
        outcomes.setdefault(name, []).append((phase, outcome))
    return {
        name: ("call" in dict(rows) or ("setup", "xfailed") in rows)
        and {"setup", "teardown"} <= set(dict(rows))
        and all(outcome in ("passed", "xfailed") for _, outcome in rows)
        for name, rows in outcomes.items()
    }


def strip_parameters(test: str) -> str:
    """Return a test's name without its parameters."""
    return test.partition("[")[0]


def list_functions(source: str) -> list[str]:
    """List the functions of a file as `"test"` or `"Class::test"`; none where it can't be parsed."""
    try:
        return [name for name, _ in _iterate_functions(ast.parse(source))]
    except (SyntaxError, ValueError):
        return []


def invert_tests(source: str, tests: frozenset[str], rng: random.Random) -> str:
    """Rewrite a file of tests so that some must fail."""
    # Unparsed also where nothing is inverted: comments and layout would tell the copies apart.
    tree = ast.parse(source)
    for name, function in _iterate_functions(tree):
        if name in tests:
            _AssertInverter(rng).invert(function)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _iterate_functions(tree: ast.Module | ast.ClassDef, above: str = "") -> Iterator[tuple[str, _Function]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _iterate_functions(node, f"{above}{node.name}::")
        elif isinstance(node, _Function):
            yield f"{above}{node.name}", node


def _draw_marks(count: int, rng: random.Random) -> list[bool]:
    """Draw in which copies a test is inverted: in some and not in all; the last mark is the stand-in's."""
    number = rng.randint(1, 2**count - 2)
    return [bool(number >> place & 1) for place in range(count)] + [rng.random() < 0.5]


def _choose_sibling_path(path: str) -> str:
    return str(PurePosixPath(path).with_name(f"test_{secrets.token_hex(6)}.py"))


class _AssertInverter(ast.NodeTransformer):
    """Inverts the asserts of one test."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def invert(self, function: _Function) -> None:
        """Make a test fail that would pass."""
        always_asserts = any(isinstance(node, ast.Assert) or _is_assert_call(node) for node in function.body)
        function.body = [self.visit(node) for node in function.body]
        if not always_asserts:  # its asserts may lie in a branch that is not taken, so a failure is put at the end
            function.body.append(ast.Assert(ast.Compare(ast.Constant(0), [ast.Eq()], [ast.Constant(1)])))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Keep functions within the test: their asserts and returns are not the test's."""
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """Likewise."""
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        """Likewise."""
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        """Fail where the test would end before its asserts."""
        return ast.Assert(ast.Constant(0))

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Change the expected value, or negate the condition."""
        test = node.test
        # Rather another value than a negation: a value read off the calling line is caught by a wrong one there.
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            [right] = test.comparators
            if _is_literal(right):
                return ast.Assert(ast.Compare(test.left, test.ops, [self._change_literal(right)]), node.msg)
            if _is_literal(test.left):
                return ast.Assert(ast.Compare(self._change_literal(test.left), test.ops, [right]), node.msg)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return ast.Assert(test.operand, node.msg)
        return ast.Assert(ast.UnaryOp(ast.Not(), test), node.msg)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Change the expected value of a unittest assert, or replace it by its opposite."""
        call = node.value
        if not _is_assert_call(node):
            return node
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        name = call.func.attr.removeprefix("assert")
        literal = next((i for i, value in enumerate(call.args[:2]) if _is_literal(value)), None)
        if name == "Equal" and literal is not None:
            call.args[literal] = self._change_literal(call.args[literal])
        else:
            call.func.attr = f"assert{_OPPOSITES[name]}"
        return node

    def _change_literal(self, literal: ast.expr) -> ast.expr:
        """Return a value of the same type that is not equal."""
        value = ast.literal_eval(literal)
        if isinstance(value, str):
            place = self._rng.randrange(len(value) + 1)
            return ast.Constant(value[:place] + self._rng.choice("abcdefgh") + value[place:])
        other = value + self._rng.choice([-3, -2, -1, 1, 2, 3])
        return ast.Constant(other if other != value else -value)  # a huge float swallows what is added


def _is_assert_call(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    func = call.func if isinstance(call, ast.Call) else None
    return isinstance(func, ast.Attribute) and func.attr.removeprefix("assert") in _OPPOSITES


def _is_literal(node: ast.expr) -> bool:
    """Return whether an expression is a number or a text."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError):
        return False
    return isinstance(value, int | float | str) and not isinstance(value, bool)
