"""Private names of the libraries we train and sample with stand in the compat modules alone.

A use is an import of a private name, an access to one (as an attribute or by a string), or a definition of one that a
base class from a library has already. All is read off the syntax trees; only the libraries' base classes are imported.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARIES = frozenset(
    ["trl", "transformers", "torch", "accelerate", "peft", "vllm", "datasets", "tensordict", "torchrl"]
)
UNDOCUMENTED = frozenset({"vllm"})
"""Libraries whose names are no documented interface, private or not: none is imported elsewhere."""

COMPAT = ("trainers/compat.py", "clawrl_trl/engines/vllm/compat.py", "clawrl_trl/engines/embedded/compat.py")

HOOKS = frozenset({"_reset", "_step", "_set_seed"})
"""Methods that TorchRL's documentation asks an `EnvBase` to define."""

BY_STRING = frozenset({"getattr", "hasattr", "setattr", "delattr", "attrgetter"})


@dataclass(frozen=True)
class Use:
    """A private name of a library in our code."""

    path: str
    line: int
    name: str
    code: str


class Module:
    """A parsed file, and what its imports bind: a local name to the full name of a module or of what is in one."""

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.tree = ast.parse(source)
        self.bindings: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.split(".")[0]
                    self.bindings[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.bindings[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def resolve(self, node: ast.expr) -> str:
        """Full name of an expression such as `nn.Module` or `Base[T]`, as far as the imports tell."""
        first, *rest = ast.unparse(node.value if isinstance(node, ast.Subscript) else node).split(".")
        return ".".join([self.bindings.get(first, first), *rest])


@cache
def parse(path: str, source: str) -> Module:
    """Our files are parsed once for all tests."""
    return Module(path, source)


def is_private(name: str) -> bool:
    return name.startswith("_") and name != "_" and not name.startswith("__")


def top_package(name: str | None) -> str:
    return (name or "").split(".")[0]


def is_on_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls", "super()")


def defined_names(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Names that are defined anywhere below a node, on `self` included, with their lines."""
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield part.name, part.lineno
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id, part.lineno
        elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and is_on_self(part):
            yield part.attr, part.lineno


@cache
def private_names_of(class_name: str) -> frozenset[str]:
    """Private names of a library's class and of its ancestors in libraries; none if it is not installed."""
    home, _, short = class_name.rpartition(".")
    if find_spec(top_package(home)) is None:
        return frozenset()
    names: set[str] = set()
    for ancestor in getattr(import_module(home), short).__mro__:
        if top_package(ancestor.__module__) in LIBRARIES:
            names.update(vars(ancestor))
            try:
                tree = ast.parse(textwrap.dedent(inspect.getsource(ancestor)))
            except (OSError, TypeError):  # written in C
                continue
            names.update(name for name, _ in defined_names(tree) if name)
    return frozenset(filter(is_private, names))


def declared_overrides() -> frozenset[str]:
    """Private methods of libraries that `trainers/compat.py` declares as overridden, with a check of its own."""
    if find_spec("clawrl_trl.trainers.compat") is None:
        return frozenset()
    table = import_module("clawrl_trl.trainers.compat").OVERRIDDEN
    entries = [*table, *(table.values() if isinstance(table, Mapping) else ())]
    texts = [text for entry in entries for text in ([entry] if isinstance(entry, str) else entry)]
    return frozenset(str(text).rpartition(".")[2] for text in texts)


class Checker:
    """Finds the private names of libraries in a set of files.

    Args:
        sources (`Mapping[str, str]`): The text of each file by its path.
        declared (`frozenset[str]`, defaults to none): Names that may be overridden.
    """

    def __init__(self, sources: Mapping[str, str], declared: frozenset[str] = frozenset()) -> None:
        self.modules = [parse(path, source) for path, source in sources.items()]
        self.declared = declared
        self.classes = {
            node.name: (module, node)
            for module in self.modules
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ClassDef)
        }
        self.own = {name for module in self.modules for name, _ in defined_names(module.tree)}
        self.overridden = {name for class_name in self.classes for name, _ in self.overrides(class_name)}

    def uses(self) -> Iterator[Use]:
        for module in self.modules:
            if module.path not in COMPAT:
                yield from self.uses_in(module)

    def uses_in(self, module: Module) -> Iterator[Use]:
        yield from self.in_imports(module)
        yield from self.in_code(module, module.tree, frozenset())

    def inherited(self, class_name: str) -> frozenset[str]:
        """Private names that a class of ours has from libraries."""
        module, node = self.classes[class_name]
        names: set[str] = set()
        for base in map(module.resolve, node.bases):
            short = base.rpartition(".")[2]
            if top_package(base) in LIBRARIES:
                names |= private_names_of(base)
            elif short in self.classes and short != class_name:
                names |= self.inherited(short)
        return frozenset(names) - HOOKS

    def overrides(self, class_name: str) -> list[tuple[str, int]]:
        """Private names of a library that a class of ours defines again, with the lines."""
        inherited = self.inherited(class_name)
        return [(name, line) for name, line in defined_names(self.classes[class_name][1]) if name in inherited]

    def in_imports(self, module: Module) -> Iterator[Use]:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                private = top_package(name) in LIBRARIES and any(map(is_private, name.split(".")))
                if private or top_package(name) in UNDOCUMENTED:
                    yield Use(module.path, node.lineno, name.rpartition(".")[2], ast.unparse(node))

    def in_code(self, module: Module, node: ast.AST, inherited: frozenset[str]) -> Iterator[Use]:
        if isinstance(node, ast.ClassDef):
            inherited = self.inherited(node.name)
            for name, line in self.overrides(node.name):
                if name not in self.declared:
                    yield Use(module.path, line, name, f"{node.name} overrides {name}")
        name = accessed_name(node)
        if name is not None and self.is_foreign(module, node, name, inherited):
            yield Use(module.path, node.lineno, name, ast.unparse(node))
        for child in ast.iter_child_nodes(node):
            yield from self.in_code(module, child, inherited)

    def is_foreign(self, module: Module, node: ast.AST, name: str, inherited: frozenset[str]) -> bool:
        if name in self.declared:
            return False
        if is_on_self(node):
            return name not in self.own or (name in inherited and name not in self.overridden)
        if isinstance(node, ast.Attribute) and top_package(module.resolve(node.value)) in sys.stdlib_module_names:
            return False
        return name not in self.own or name in self.overridden


def accessed_name(node: ast.AST) -> str | None:
    """The private name that an expression reads or sets, as an attribute or by a string."""
    name = ""
    if isinstance(node, ast.Attribute) and not (is_on_self(node) and isinstance(node.ctx, ast.Store)):
        name = node.attr
    elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in BY_STRING:
        texts = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        name = texts[0].rpartition(".")[2] if texts else ""
    return name if is_private(name) else None


@cache
def our_sources() -> dict[str, str]:
    paths = [path for folder in ("clawrl_trl", "envs", "trainers") for path in (ROOT / folder).rglob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


@pytest.mark.slow
def test_private_names_of_libraries_are_in_the_compat_modules_alone() -> None:
    assert list(Checker(our_sources(), declared_overrides()).uses()) == []


PLANTED = {
    "from trl.trainer.utils import _pad": "_pad",
    "import torch._dynamo": "_dynamo",
    "from vllm.platforms import current_platform": "current_platform",
    "def f(model): return model.config._attn_implementation": "_attn_implementation",
    "def f(config): return getattr(config, '_name_or_path', '')": "_name_or_path",
    "def f(trainer): trainer._signature_columns = None": "_signature_columns",
    "class T(trl.GRPOTrainer):\n    def f(self): return self._metrics": "_metrics",
    "class T(trl.GRPOTrainer):\n    def f(self): return super()._get_train_sampler()": "_get_train_sampler",
    "class T(trl.GRPOTrainer):\n    def _compute_loss(self, model, inputs): return 0": "_compute_loss",
    "class T(trl.GRPOTrainer):\n    def f(self): self._metrics = {}": "_metrics",
    "class S(trl.GRPOTrainer): pass\nclass T(S):\n    def _compute_loss(self): return 0": "_compute_loss",
    "class T(torchrl.envs.EnvBase):\n    def _reset_proc_data(self): return 0": "_reset_proc_data",
}


@pytest.mark.slow
@pytest.mark.parametrize(("code", "name"), PLANTED.items())
def test_a_planted_use_is_found(code: str, name: str) -> None:
    planted = {"envs/planted.py": f"import torchrl.envs\nimport trl\n{code}\n"}
    checker = Checker(our_sources() | planted)
    assert {use.name for use in checker.uses_in(checker.modules[-1])} == {name}


def test_own_private_names_hooks_and_declared_overrides_pass() -> None:
    code = """
import os

import trl
from torchrl.envs import EnvBase


class Env(EnvBase):
    def _reset(self, tensordict=None):
        self._turns = 0
        return super()._reset(tensordict)


class Trainer(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, inputs) + self._own_term()

    def _own_term(self):
        return os._exit(1)


def look(env):
    return env._turns
"""
    assert list(Checker({"envs/passes.py": code}, frozenset({"_compute_loss"})).uses()) == []
