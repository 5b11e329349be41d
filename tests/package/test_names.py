"""Names mean one thing in the whole package."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_MODULES = 20


def modules() -> Iterator[Path]:
    for folder in ("clawrl_trl", "envs", "trainers"):
        yield from (ROOT / folder).rglob("*.py")


def test_public_class_names_are_unique() -> None:
    homes = defaultdict(list)
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_packages_stay_small_and_say_what_they_are_for() -> None:
    counts = defaultdict(int)
    for path in modules():
        counts[path.parent] += 1
    for folder, count in counts.items():
        assert count <= MOST_MODULES, folder
        if "versions" not in folder.parts:
            assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder
