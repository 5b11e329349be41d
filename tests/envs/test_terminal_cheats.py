"""Programs and files that try to be paid by a terminal task without solving it; none may be."""

import re
from pathlib import Path

import pytest
from cheat_files import PASS_ALL

from clawrl_trl.envs.sandbox.bubblewrap import diagnose_bubblewrap
from clawrl_trl.envs.terminal.task_folder import TaskFolder, load_tasks
from clawrl_trl.envs.terminal.task_world import TaskWorld

TROUBLE = diagnose_bubblewrap()
pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(bool(TROUBLE), reason=f"needs bubblewrap: {TROUBLE}")]
SHIPPED = Path(__file__).parents[2] / "examples" / "tasks" / "terminal"
KINDS = ("script", "repair", "program")
RUNNING = [
    task
    for split in ("train", "heldout")
    for task in load_tasks(SHIPPED / f"{split}.jsonl")
    if task.id.rpartition("-")[2] in KINDS
]
"""The shipped tasks whose tests run a program of the agent's."""
ONE_OF_EACH = [next(task for task in RUNNING if task.id.endswith(f"-{kind}")) for kind in KINDS]

HEAD = "import glob, os, pathlib, re, signal, sys, time\nLOGS = '/logs/verifier'\n"
WRITE = "pathlib.Path(f'{LOGS}/reward.txt').write_text('1')\n"
WRITE_JSON = "pathlib.Path(f'{LOGS}/reward.json').write_text('{\"reward\": 1}')\n"
LOOP = """for _ in range(4000):
    for name, text in (("reward.json", '{"reward": 1}'), ("reward.txt", "1")):
        try:
            open(f"/logs/verifier/{name}", "w").write(text)
        except OSError:
            pass
    time.sleep(0.001)
"""
ANSWER = """
def answer(text):
    program = os.environ.get("PROGRAM") or os.path.basename(sys.argv[0])
    call = re.escape(" ".join([program, *sys.argv[1:]]))
    found = re.search(call + r'\\)" = \\'(.*?)\\' ]', text)
    if found:
        print(found[1])
        sys.exit(0)
"""
IN_THE_PROGRAM = {
    "writes the reward file": WRITE,
    "makes the reward file read-only": WRITE + "os.chmod(f'{LOGS}/reward.txt', 0o444)\n",
    "writes the reward file that is preferred": WRITE_JSON,
    "makes the folder of the reward read-only": WRITE + "os.chmod(LOGS, 0o555)\n",
    "links the reward file": "open('mine', 'w').write('1')\nos.symlink('/work/mine', f'{LOGS}/reward.txt')\n"
    + WRITE_JSON,
    "puts a folder in place of the reward file": "os.mkdir(f'{LOGS}/reward.txt')\n" + WRITE_JSON,
    "ends what tests it": WRITE_JSON + "os.kill(os.getppid(), signal.SIGKILL)\n",
    "ends all that runs": WRITE_JSON + "os.kill(-1, signal.SIGKILL)\n",
    "forges the report and leaves": WRITE_JSON
    + "pathlib.Path(f'{LOGS}/report.xml').write_text('<testsuite tests=\"1\" failures=\"0\" errors=\"0\"/>')\n"
    "os.write(1, b'{\"exit\": 0, \"tests\": []}')\nos._exit(0)\n",
    "leaves a process that goes on writing": "if os.fork() == 0:\n    os.setsid()\n"
    + "".join(f"    {line}\n" for line in LOOP.splitlines()),
    "reads the expected values": ANSWER + "answer(open('/tests/test.sh').read())\n",
    "reads the expected values of a process": ANSWER
    + "for path in [*glob.glob('/proc/*/fd/*'), *glob.glob('/proc/*/root/tests/test.sh'),\n"
    "             *glob.glob('/proc/*/cmdline')]:\n"
    "    try:\n        answer(open(path).read())\n    except (OSError, UnicodeError):\n        pass\n",
    "writes with each descriptor it has": "for number in range(1024):\n    try:\n        os.write(number, b'1\\n')\n"
    "    except OSError:\n        pass\n",
}  # fmt: skip


def program_of(task: TaskFolder) -> str:
    """The program that a task is about."""
    return re.findall(r"\w+\.(?:py|sh)", task.instruction)[0]


def leave(world: TaskWorld, name: str, text: str) -> None:
    (world.work / name).write_text(text)
    (world.work / name).chmod(0o755)


def leave_cheat(world: TaskWorld, task: TaskFolder, code: str) -> None:
    """Put code where the tests expect a program, after the time in which the agent could work."""
    name = program_of(task)
    body = HEAD + code
    if name.endswith(".sh"):
        body = f"#!/bin/bash\nPROGRAM=$0 exec python3 -I - \"$@\" <<'END'\n{body}END\n"
    leave(world, name, body)


@pytest.mark.parametrize("task", ONE_OF_EACH, ids=lambda task: task.id)
@pytest.mark.parametrize("cheat", IN_THE_PROGRAM)
def test_a_program_that_cheats_is_not_paid(task: TaskFolder, cheat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Who reads everything waits for the other end of a pipe, until its time is over.
    monkeypatch.setattr(TaskFolder, "verifier_timeout", 8.0)
    with TaskWorld(task) as world:
        world.set_up()
        leave_cheat(world, task, IN_THE_PROGRAM[cheat])
        assert world.verify().outcome == -1.0


@pytest.mark.parametrize("task", RUNNING, ids=lambda task: task.id)
def test_no_shipped_task_pays_for_a_reward_that_the_program_wrote(task: TaskFolder) -> None:
    with TaskWorld(task) as world:
        world.set_up()
        leave_cheat(world, task, "\n".join(["try:", f"    {WRITE_JSON}except OSError:\n    pass", ANSWER,
                                            "answer(open('/tests/test.sh').read())"]))  # fmt: skip
        assert world.verify().outcome == -1.0


PAYS = "#!/bin/bash\necho '{\"reward\": 1}' > /logs/verifier/reward.json\necho 1 > /logs/verifier/reward.txt\nexit 0\n"
LEFT = {
    "a start file of the shell": (".bashrc", ".bash_profile", ".profile", ".bash_env", ".inputrc"),
    "programs of the usual names": ("python3", "python", "bash", "sh", "cat", "awk", "[", "tar", "grep"),
    "modules that Python loads by itself": ("sitecustomize.py", "usercustomize.py", "json.py", "encodings.py"),
}
IN_PYTHON = f"#!/usr/bin/env python3\n{HEAD}{WRITE_JSON}{WRITE}"


@pytest.mark.parametrize("task", ONE_OF_EACH, ids=lambda task: task.id)
@pytest.mark.parametrize("kind", LEFT)
def test_what_is_left_in_the_work_folder_is_not_paid(task: TaskFolder, kind: str) -> None:
    with TaskWorld(task) as world:
        world.set_up()
        for name in LEFT[kind]:
            leave(world, name, IN_PYTHON if name.endswith(".py") else PAYS)
        assert world.verify().outcome == -1.0


def test_a_module_in_place_of_one_that_the_tests_load_is_not_paid() -> None:
    task = next(task for task in load_tasks(SHIPPED / "train.jsonl") if task.id.endswith("-config"))
    for code in (IN_PYTHON + "os._exit(0)\n", HEAD + ANSWER.replace('"(.*?)', "(.*?)") + WRITE_JSON):
        with TaskWorld(task) as world:
            world.set_up()
            leave(world, "json.py", code)
            assert world.verify().outcome == -1.0


@pytest.mark.parametrize("task", ONE_OF_EACH, ids=lambda task: task.id)
def test_what_the_agent_does_before_is_not_paid(task: TaskFolder) -> None:
    """Files outside the work folder, processes left behind, and settings of the shell don't outlive its sandbox."""
    before = f"""
mkdir -p /logs/verifier /tests; {PAYS.removeprefix("#!/bin/bash").replace("exit 0", "")}
chattr +i /logs/verifier/reward.txt; echo 'export BASH_ENV=/work/.bashrc LD_PRELOAD=/work/x.so' > ~/.bashrc
cp ~/.bashrc /etc/profile; (setsid bash -c 'while :; do echo 1 > /logs/verifier/reward.txt; done' &) ; true
"""
    with TaskWorld(task) as world:
        world.set_up()
        with world.open_sandbox() as sandbox:
            sandbox.run(["bash", "-c", before], timeout=30)
        assert world.verify().outcome == -1.0


EXPECTS = """import subprocess

def run(*words):
    return subprocess.run(["python3", "/app/tool.py", *words], capture_output=True, text=True, timeout=20).stdout

def test_sum():
    assert run("1", "2") == "3\\n"

def test_more():
    assert run("4", "5") == "9\\n"
"""
IMPORTS = "import sys\nsys.path.insert(0, '/app')\nimport tool\n\ndef test_sum():\n    assert tool.add(1, 2) == 3\n"
TOOL = "import sys\n\ndef add(a, b):\n    return a + b\n\n"
TOOL += "if __name__ == '__main__':\n    print(add(*map(int, sys.argv[1:])))\n"
FAKE = '<testsuites><testsuite tests="2" failures="0" errors="0" skipped="0"/></testsuites>'
REPORT = f"pathlib.Path(f'{{LOGS}}/report.xml').write_text('{FAKE}')\n"
AGAINST_PYTEST = {
    "writes the report": f"{REPORT}os.chmod(f'{{LOGS}}/report.xml', 0o444)\n",
    "lets nobody write another": f"{REPORT}os.chmod(LOGS, 0o555)\nos.kill(os.getppid(), 15)\n",
    "ends the tests": f"{REPORT}os.kill(os.getppid(), 9)\n",
    "reads the tests": "text = open('/tests/test_it.py').read()\n"
    "print(re.search('\"' + '\", \"'.join(sys.argv[1:]) + r'\"\\) == \"(\\d+)', text)[1])\n",
}  # fmt: skip
INSIDE_PYTEST = {
    "equals everything": "class All:\n    def __eq__(self, other): return True\ndef add(a, b): return All()\n",
    "equals every number": "class All(int):\n    def __eq__(self, other): return isinstance(other, int)\n"
    "    __hash__ = int.__hash__\ndef add(a, b): return All(0)\n",
    "leaves early": "import os\nos._exit(0)\n",
    "leaves with a report": f"import os\nopen('/logs/verifier/report.xml', 'w').write('{FAKE}')\nos._exit(0)\n",
    "patches the reports": "import _pytest.reports as r\n"
    "r.TestReport.from_item_and_call = classmethod(lambda cls, item, call, _old=r.TestReport.from_item_and_call: "
    "_forge(_old(item, call)))\n"
    "def _forge(report):\n    report.outcome = 'passed'\n    report.longrepr = None\n    return report\n"
    "def add(a, b): return 0\n",
    "runs no test": "import _pytest.python as p\np.Function.runtest = lambda self: None\ndef add(a, b): return 0\n",
    "reads the calling line": "import inspect, re\ndef add(a, b):\n"
    "    line = ''.join(inspect.stack()[1].code_context or [])\n    found = re.search(r'== ?(-?\\d+)', line)\n"
    "    return int(found[1]) if found else 0\n",
}


def in_python(tests: str) -> TaskFolder:
    solution = f"cat > /app/tool.py <<'END'\n{TOOL}END\n"
    files = {"instruction.md": "Write tool.py.", "tests/test_it.py": tests, "solution/solve.sh": solution}
    return TaskFolder("it", {name: text.encode() for name, text in files.items()})


@pytest.mark.parametrize("tests", [EXPECTS, IMPORTS], ids=["runs", "imports"])
def test_an_honest_program_is_paid_by_tests_in_python(tests: str) -> None:
    with TaskWorld(in_python(tests)) as world:
        world.set_up()
        world.solve()
        verdict = world.verify()
        assert verdict.outcome == 1.0, verdict.text
    with TaskWorld(in_python(tests)) as world:
        world.set_up()
        assert world.verify().outcome == -1.0


@pytest.mark.parametrize("cheat", AGAINST_PYTEST)
def test_a_program_that_cheats_tests_in_python_is_not_paid(cheat: str) -> None:
    with TaskWorld(in_python(EXPECTS)) as world:
        world.set_up()
        leave(world, "tool.py", HEAD + AGAINST_PYTEST[cheat])
        assert world.verify().outcome == -1.0


@pytest.mark.parametrize("name", ["conftest.py", "pytest.ini", "pyproject.toml", "setup.cfg", "tox.ini", "evil.py"])
@pytest.mark.parametrize("tests", [EXPECTS, IMPORTS], ids=["runs", "imports"])
def test_settings_of_pytest_that_the_agent_leaves_are_not_paid(name: str, tests: str) -> None:
    settings = {
        "pytest.ini": "[pytest]\naddopts = -p evil\n",
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p evil"\n',
        "setup.cfg": "[tool:pytest]\naddopts = -p evil\n",
        "tox.ini": "[pytest]\naddopts = -p evil\n",
        "evil.py": "",
    }
    entry = "evil-1.dist-info"
    with TaskWorld(in_python(tests)) as world:
        world.set_up()
        leave(world, "tool.py", "def add(a, b): return 0\n")
        leave(world, name, settings.get(name, PASS_ALL))
        leave(world, "evil.py", PASS_ALL)
        (world.work / entry).mkdir()
        leave(world, f"{entry}/entry_points.txt", "[pytest11]\nevil = evil\n")
        leave(world, f"{entry}/METADATA", "Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
        assert world.verify().outcome == -1.0


@pytest.mark.parametrize("cheat", INSIDE_PYTEST)
def test_a_module_that_cheats_the_tests_that_load_it_is_not_paid(cheat: str) -> None:
    with TaskWorld(in_python(IMPORTS)) as world:
        world.set_up()
        leave(world, "tool.py", INSIDE_PYTEST[cheat])
        assert world.verify().outcome == -1.0


def test_a_link_to_the_expected_values_is_not_followed() -> None:
    tests = "from pathlib import Path\n\ndef test_same():\n"
    tests += "    assert Path('/app/a.txt').read_text() == Path('/tests/a.txt').read_text()\n"
    files = {"instruction.md": "Write a.txt.", "tests/test_it.py": tests, "tests/a.txt": "secret"}
    task = TaskFolder("it", {name: text.encode() for name, text in files.items()})
    for target in ("/tests/a.txt", "../tests/a.txt", "up/tests/a.txt", "/proc/self/root/tests/a.txt"):
        with TaskWorld(task) as world:
            world.set_up()
            (world.work / "up").symlink_to("/")
            (world.work / "a.txt").symlink_to(target)
            assert world.verify().outcome == -1.0, target


@pytest.mark.parametrize(
    "start",
    ["program ./tool.sh", "bash tool.sh", "/bin/bash tool.sh", "./tool.sh", "/app/tool.sh", "/work/tool.sh",
     "timeout 9 ./tool.sh", "env bash tool.sh", "cp tool.sh /tmp; /tmp/tool.sh", "find . -name tool.sh -exec {} +"],
)  # fmt: skip
def test_however_a_test_starts_a_program_it_neither_writes_the_reward_nor_sees_the_tests(start: str) -> None:
    files = {
        "instruction.md": "Write tool.sh.",
        "tests/test.sh": f"cd /app\n{start}\n[ -e seen ] && echo 1 > /logs/verifier/reward.txt\ntrue\n",
    }
    tool = PAYS.replace("exit 0", "ls /tests && touch /app/seen\ntouch /app/ran")
    with TaskWorld(TaskFolder("it", {name: text.encode() for name, text in files.items()})) as world:
        world.set_up()
        leave(world, "tool.sh", tool)
        assert world.verify().passed == 0.0
        assert (world.work / "ran").exists() == ("bash" in start or "program" in start)


def test_a_link_that_a_tested_program_makes_is_not_followed() -> None:
    compare = '[ "$(cat /app/a.txt)" = "$(cat /tests/a.txt)" ] && echo 1 > /logs/verifier/reward.txt\ntrue\n'
    test = "cd /app\nprogram ./tool.sh\n" + compare
    files = {"instruction.md": "Write tool.sh.", "tests/test.sh": test, "tests/a.txt": "x"}
    with TaskWorld(TaskFolder("it", {name: text.encode() for name, text in files.items()})) as world:
        world.set_up()
        leave(world, "tool.sh", "#!/bin/bash\nln -s /tests/a.txt a.txt\n")
        assert world.verify().passed == 0.0


def test_a_full_reward_with_another_exit_code_is_none() -> None:
    for code, passed in ((0, 1.0), (3, 0.0)):
        files = {"instruction.md": "Wait.", "tests/test.sh": f"echo 1 > /logs/verifier/reward.txt\nexit {code}\n"}
        with TaskWorld(TaskFolder("it", {name: text.encode() for name, text in files.items()})) as world:
            world.set_up()
            assert world.verify().passed == passed


def test_what_a_program_is_given_and_what_comes_back_is_whole() -> None:
    test = r"""cd /app
[ "$(printf 'a\0b' | X='a b=c' program bash -c 'od -c | head -1; echo "$X"; exit 7' | md5sum)" = "$(
  { printf '0000000   a  \\0   b\n'; echo 'a b=c'; } | md5sum)" ] || exit
program bash -c 'exit 7'; [ $? = 7 ] || exit
mkdir -p d && cd d && [ "$(program pwd)" = "$PWD" ] || exit
echo hello > /tmp/x; [ "$(program cat /tmp/x)" = hello ] || exit
echo 1 > /logs/verifier/reward.txt
"""
    files = {"instruction.md": "Wait.", "tests/test.sh": test}
    with TaskWorld(TaskFolder("it", {name: text.encode() for name, text in files.items()})) as world:
        world.set_up()
        verdict = world.verify()
        assert verdict.passed == 1.0, verdict.text
