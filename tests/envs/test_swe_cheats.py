"""Diffs whose code tries to fool the hidden tests from inside their process; none may be resolved."""

from pathlib import Path

import pytest

from clawrl_trl.envs.sandbox.bubblewrap import diagnose_bubblewrap
from clawrl_trl.envs.swe.grading import grade
from clawrl_trl.envs.swe.tasks import SweTask, read_swe_tasks
from recipes.tasks.swe import make_diff

TROUBLE = diagnose_bubblewrap()
pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(bool(TROUBLE), reason=f"needs bubblewrap: {TROUBLE}")]
SHIPPED = Path(__file__).parents[2] / "examples" / "tasks" / "swe"
TASKS = [read_swe_tasks(SHIPPED / "train.jsonl", difficulty=difficulty)[0] for difficulty in (1, 2, 3)]

FORGE = "def _forge(report):\n    report.outcome = 'passed'\n    report.longrepr = None\n    return report\n"
FIND = """import gc
def _found():
    for thing in gc.get_objects():
        if type(thing).__name__ == 'Outcomes':
            yield thing
"""
ALL_IN_GC = (
    FIND
    + """
import atexit
class _Yes(dict):
    def __setitem__(self, key, value): super().__setitem__(key, True)
class _YesRows(list):
    def append(self, row): super().append((*row[:2], 'passed'))
for _thing in _found():
    for _name, _value in list(vars(_thing).items()):
        if isinstance(_value, dict):
            setattr(_thing, _name, _Yes({key: True for key in _value}))
        if isinstance(_value, list):
            setattr(_thing, _name, _YesRows())
    type(_thing).pytest_runtest_logreport = lambda self, report: [
        value.__setitem__(report.nodeid, True) if isinstance(value, dict) else
        value.append([report.nodeid, report.when, 'passed']) for value in vars(self).values()
        if isinstance(value, (dict, list))]
"""
)
TEXT = """import json, os, sys
def _names():
    import gc
    for thing in gc.get_objects():
        if type(thing).__name__ == 'Function' and hasattr(thing, 'nodeid'):
            yield thing.nodeid
def _report(names, code):
    import glob, re
    if not names:
        for path in glob.glob('**/test_*.py', recursive=True):
            names += [f'{path}::{name}' for name in re.findall(r'^def (test_\\w+)', open(path).read(), re.M)]
    shapes = {'plain': {name: True for name in names},
              'rows': {'exit': code, 'phases': [[name, phase, 'passed'] for name in names
                                                for phase in ('setup', 'call', 'teardown')]
                       + code * [['tests/test_none.py::test_none', 'call', 'failed']]}}
    return json.dumps(shapes[SHAPE]).encode()
def _send(names, code):
    for number in range(3, 64):
        try:
            os.write(number, _report(names, code))
        except OSError:
            pass
"""
CHEATS = {
    "patches the class of reports": "import _pytest.reports as r\n" + FORGE
    + "_old = r.TestReport.from_item_and_call\n"
    "r.TestReport.from_item_and_call = classmethod(lambda cls, item, call: _forge(_old(item, call)))\n",
    "turns each report": "import _pytest.reports as r\n"
    "r.BaseReport.passed = property(lambda self: True)\nr.BaseReport.failed = property(lambda self: False)\n"
    "r.BaseReport.outcome = property(lambda self: 'passed', lambda self, value: None)\n",
    "finds who keeps the outcomes": ALL_IN_GC,
    "runs no test": "import _pytest.python as p\np.Function.runtest = lambda self: None\n",
    "makes a hook of pytest's": "import gc\nimport pytest\n" + FORGE
    + "class _Plugin:\n    @pytest.hookimpl(hookwrapper=True)\n    def pytest_runtest_makereport(self, item, call):\n"
    "        made = yield\n        _forge(made.get_result())\n"
    "for _thing in gc.get_objects():\n    if type(_thing).__name__ == 'PytestPluginManager':\n"
    "        _thing.register(_Plugin())\n        break\n",
    "writes to the descriptor and leaves": "SHAPE = 'plain'\n" + TEXT + "_send([], 0)\nos._exit(0)\n",
    "writes rows to the descriptor and leaves": "SHAPE = 'rows'\n" + TEXT + "_send([], 0)\nos._exit(0)\n",
    "writes rows of failed tests": "SHAPE = 'rows'\n" + TEXT + "_send([], 1)\nos._exit(1)\n",
    "writes at the exit": "import atexit\nSHAPE = 'plain'\n" + TEXT
    + "atexit.register(lambda: (_send(list(_names()), 0), os._exit(0)))\n",
    "leaves at the import": "import os\nos._exit(0)\n",
    "monkeypatches the comparison of asserts": "import _pytest.assertion.util as u\nimport builtins\n"
    "class _Never(Exception): pass\nbuiltins.AssertionError = _Never\n"
    "import _pytest.runner as r\n_call = r.CallInfo.from_call.__func__\n"
    "def _from_call(cls, func, when, reraise=None):\n    made = _call(cls, func, when, reraise)\n"
    "    made.excinfo = None\n    return made\nr.CallInfo.from_call = classmethod(_from_call)\n",
    "replaces what the test holds": "import gc\nfor _f in gc.get_objects():\n"
    "    if type(_f).__name__ == 'function' and _f.__name__.startswith('test_'):\n"
    "        _f.__code__ = (lambda: None).__code__\n"
    "import _pytest.python as p\n_make = p.Function.from_parent.__func__\n"
    "def _from(cls, parent, **kw):\n    kw['callobj'] = lambda: None\n    return _make(cls, parent, **kw)\n"
    "p.Function.from_parent = classmethod(_from)\n",
    "patches json": "import json\n_dump = json.dump\n_dumps = json.dumps\n"
    "def _yes(v):\n"
    "    if isinstance(v, dict): return {k: True if x is False else _yes(x) for k, x in v.items()}\n"
    "    if isinstance(v, (list, tuple)): return [_yes(x) for x in v]\n"
    "    return 'passed' if v == 'failed' else v\n"
    "json.dump = lambda v, f, **k: _dump(_yes(v), f, **k)\njson.dumps = lambda v, **k: _dumps(_yes(v), **k)\n",
}  # fmt: skip
EQUAL = """class _All:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    __hash__ = object.__hash__
"""
LIKE = """class _All(int):
    def __eq__(self, other): return isinstance(other, int)
    __hash__ = int.__hash__
"""
READS = """import inspect, re
class _All:
    def __eq__(self, other):
        return True
def _read():
    for frame in inspect.stack():
        found = re.search(r'== (-?\\d+)', ''.join(frame.code_context or []))
        if found:
            return int(found[1])
"""


def make_cheat(task: SweTask, code: str) -> str:
    """A diff that puts code before that of the file which the oracle mends."""
    name = next(name for name in task.files if f"+++ b/{name}" in task.patch)
    return make_diff(task.files, {**task.files, name: code + task.files[name]})


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
@pytest.mark.parametrize("cheat", CHEATS)
def test_code_that_fools_pytest_from_inside_is_not_paid(task: SweTask, cheat: str) -> None:
    graded = grade(task, make_cheat(task, CHEATS[cheat]), timeout=60.0)
    assert not graded.resolved


@pytest.mark.parametrize(
    "made",
    [EQUAL + "_V = lambda: _All()\n", LIKE + "_V = lambda: _All(0)\n", READS + "_V = _read\n"],
    ids=["everything", "every number", "what the caller says"],
)
def test_a_value_that_equals_what_is_expected_whatever_it_is_is_not_paid(made: str) -> None:
    task = TASKS[1]
    name = next(name for name in task.files if f"+++ b/{name}" in task.patch)
    old = task.files[name]
    line = next(line for line in old.splitlines() if "return x " in line)
    cheat = make_diff(task.files, {**task.files, name: made + old.replace(line, "    return _V()")})
    assert not grade(task, cheat, timeout=60.0).resolved


@pytest.mark.parametrize(
    "name", ["conftest.py", "tests/conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini"]
)
def test_settings_of_pytest_in_the_diff_are_not_paid(name: str) -> None:
    hook = "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
    hook += "    made = yield\n    made.get_result().outcome = 'passed'\n"
    files = {name: "[pytest]\naddopts = -p evil\n" if name.endswith(".ini") else hook, "evil.py": hook}
    for task in TASKS:
        assert not grade(task, make_diff(task.files, {**task.files, **files}), timeout=60.0).resolved
