"""The software tasks in `examples/tasks/swe`: made from a seed, in SWE-bench's format, each with an oracle.

Step 1 is a value in a file, named in the issue: one short command. Step 2 is one wrong operator in a function that
the issue names. Step 3 tells only what goes wrong, in a package of several modules. The repository of a task is
written in the row itself (`files`), and so are the hidden tests and the oracle, as diffs. No issue stands in both
splits.

```bash
PYTHONPATH=examples python -m recipes.tasks.swe examples/tasks/swe
```
"""

import difflib
import random
from collections.abc import Mapping

from clawrl_trl.messages import Json
from recipes.tasks.splits import SEED, Maker, make_splits, read_folder, write_splits

NAMES = ["a", "b", "c", "d"]
FRUIT = ["apple", "pear", "plum", "lemon", "melon", "peach"]
OPERATORS = {"+": "sum", "-": "difference", "*": "product"}
WORDS = {"+": "add", "-": "subtract", "*": "multiply"}

Files = Mapping[str, str]


def make_diff(before: Files, after: Files) -> str:
    """A diff as git writes it."""
    parts = []
    for name in sorted(set(before) | set(after)):
        old, new = before.get(name, ""), after.get(name, "")
        if old == new:
            continue
        is_new = name not in before
        head = f"diff --git a/{name} b/{name}\n" + ("new file mode 100644\n" if is_new else "")
        source = "/dev/null" if is_new else f"a/{name}"
        lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), source, f"b/{name}")
        parts.append(head + "".join(line if line.endswith("\n") else f"{line}\n" for line in lines))
    return "".join(parts)


def make_row(
    issue: str,
    files: Files,
    fixed: Files,
    hidden: Files,
    failing: list[str],
    passing: list[str],
    messages: Mapping[str, str] | None = None,
) -> Json:
    return {
        "repo": "tasks/small",
        "problem_statement": issue,
        "files": dict(files),
        "patch": make_diff(files, {**files, **fixed}),
        "test_patch": make_diff(files, {**files, **hidden}),
        "FAIL_TO_PASS": failing,
        "PASS_TO_PASS": passing,
        **({"test_messages": dict(messages)} if messages else {}),
    }


def value(rng: random.Random) -> Json:
    """A value in a file."""
    name, other = rng.sample(NAMES, 2)
    old, new = rng.sample(range(10), 2)
    unchanged = rng.randint(0, 9)
    files = {f"{name}.py": f"x = {old}\n", f"{other}.py": f"x = {unchanged}\n"}
    test = f"import {name}\nimport {other}\n\n\ndef test_new():\n    assert {name}.x == {new}\n\n\n"
    test += f"def test_kept():\n    assert {other}.x == {unchanged}\n"
    return make_row(
        f"In {name}.py x is {old}. Set x to {new}.",
        files,
        {f"{name}.py": f"x = {new}\n"},
        {"test_x.py": test},
        ["test_x.py::test_new"],
        ["test_x.py::test_kept"],
        # The bundled model reads an issue's form of words, and hardly another.
        {"test_x.py::test_new": f"In {name}.py x is {old}, not {new}."},
    )


def operator(rng: random.Random) -> Json:
    """A wrong operator in a function that the issue names."""
    wrong, right = rng.sample(sorted(OPERATORS), 2)
    name, constant = rng.choice(NAMES), rng.randint(2, 9)
    body = "def {}(x):\n    return x {} {}\n\n\ndef same(x):\n    return x\n"
    verb = WORDS[right]
    files = {f"{name}.py": body.format(verb, wrong, constant)}
    expected = {"+": 10 + constant, "-": 10 - constant, "*": 10 * constant}[right]
    test = f"from {name} import same, {verb}\n\n\ndef test_{verb}():\n    assert {verb}(10) == {expected}\n\n\n"
    test += "def test_same():\n    assert same(3) == 3\n"
    return make_row(
        f"{verb} in {name}.py must return the {OPERATORS[right]} of x and {constant}, but it returns the "
        f"{OPERATORS[wrong]}.",
        files,
        {f"{name}.py": body.format(verb, right, constant)},
        {f"test_{name}.py": test},
        [f"test_{name}.py::test_{verb}"],
        [f"test_{name}.py::test_same"],
    )


def shop(rng: random.Random) -> Json:
    """A fault in one of three modules, of which the issue tells only what one sees."""
    first, second = rng.sample(FRUIT, 2)
    price, tax, most = rng.randint(2, 9), rng.randint(2, 9) * 10, rng.randint(3, 9)
    files = {
        "shop/__init__.py": "",
        "shop/prices.py": f'PRICES = {{"{first}": {price}, "{second}": {price + 1}}}\n\n\n'
        "def price_of(item):\n    return PRICES[item]\n",
        "shop/cart.py": "from shop.prices import price_of\n\n\ndef total(items):\n"
        "    return sum(price_of(item) for item in items)\n\n\n"
        f"def is_full(items):\n    return len(items) >= {most}\n",
        "shop/bill.py": "from shop.cart import total\n\n\ndef bill(items):\n"
        f"    return total(items) * (100 + {tax}) // 100\n",
    }
    faults = [
        (
            "shop/cart.py",
            "sum(price_of(item) for item in items)",
            "sum(price_of(item) for item in items[1:])",
            "total",
        ),
        ("shop/cart.py", f"len(items) >= {most}", f"len(items) > {most}", "full"),
        ("shop/bill.py", f"(100 + {tax}) // 100", f"(100 - {tax}) // 100", "bill"),
        ("shop/prices.py", f'"{second}": {price + 1}', f'"{second}": {price}', "price"),
    ]
    module, right, wrong, what = rng.choice(faults)
    broken = {**files, module: files[module].replace(right, wrong)}
    issue = {
        "total": f"The total of {first} and {first} is {price}, it must be {2 * price}.",
        "full": f"A cart with {most} times {first} is not full, but {most} items are as many as there may be.",
        "bill": f"The bill of a {second} comes out less than its price, though a tax of {tax} percent must be added.",
        "price": f"A {second} must cost {price + 1}, one more than a {first}.",
    }[what]
    tests = {
        "total": f'    assert total(["{first}", "{first}"]) == {2 * price}\n',
        "full": f'    assert is_full(["{first}"] * {most}) and not is_full(["{first}"] * {most - 1})\n',
        "bill": f'    assert bill(["{first}"] * 100) == {price * (100 + tax)}\n',
        "price": f'    assert price_of("{second}") == {price + 1}\n',
    }
    head = "from shop.bill import bill\nfrom shop.cart import is_full, total\nfrom shop.prices import price_of\n"
    test = head + "".join(f"\n\ndef test_{name}():\n{body}" for name, body in tests.items())
    # With the total wrong, the bill is wrong too.
    failing = [f"tests/test_shop.py::test_{name}" for name in ([what, "bill"] if what == "total" else [what])]
    passing = [
        f"tests/test_shop.py::test_{name}" for name in tests if f"tests/test_shop.py::test_{name}" not in failing
    ]
    return make_row(issue, broken, {module: files[module]}, {"tests/test_shop.py": test}, failing, passing)


STEPS: dict[int, tuple[Maker, ...]] = {1: (value,), 2: (operator,), 3: (shop,)}


def generate(seed: int = SEED) -> dict[str, list[Json]]:
    """The tasks of each split.

    Args:
        seed (`int`, *optional*, defaults to `4`): The same seed gives the same tasks.
    """
    return make_splits(STEPS, _identify, _make_first_fields, seed=seed)


def _identify(task: Json) -> str:
    return str(task["problem_statement"])


def _make_first_fields(name: str, maker: Maker) -> Json:
    return {"instance_id": name}


if __name__ == "__main__":
    write_splits(read_folder(__doc__), generate())
