"""The software environment: real repositories, real shell, real pytest, and every way to cheat we know of."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from cheat_files import PASS_ALL
from torchrl.envs import AsyncEnvPool
from torchrl.envs.utils import check_env_specs

from clawrl_trl.envs import SWEEnv, read_swe_tasks
from clawrl_trl.envs.base.agent import WorldBroken
from clawrl_trl.envs.sandbox.bubblewrap import diagnose_bubblewrap
from clawrl_trl.envs.sandbox.limits import Limits
from clawrl_trl.envs.swe.checkout import LIMITS, Checkout
from clawrl_trl.envs.swe.grading import _grade_unwritable_tests, _restore_base_files, grade, list_paths, read_log
from clawrl_trl.envs.swe.tasks import SENTINEL, SweTask, format_action
from clawrl_trl.errors import UserError
from recipes.tasks.swe import make_diff

TROUBLE = diagnose_bubblewrap()
pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(bool(TROUBLE), reason=f"needs bubblewrap: {TROUBLE}")]

FOLDER = Path(__file__).parents[2] / "examples" / "tasks" / "swe"
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n\n\ndef same(x):\n    return x\n",
    "tests/test_calc.py": "from calc import same\n\n\ndef test_same():\n    assert same(3) == 3\n",
    "tests/test_other.py": "from calc import same\n\n\ndef test_other():\n    assert same(4) == 4\n",
}
FIXED = {"calc.py": FILES["calc.py"].replace("a - b", "a + b")}
HIDDEN = {
    "tests/test_calc.py": "from calc import add, same\n\n\ndef test_same():\n    assert same(3) == 3\n\n\n"
    "def test_add():\n    assert add(1, 2) == 3\n"
}
TASK = SweTask(
    id="calc",
    problem_statement="add(1, 2) is -1.",
    test_patch=make_diff(FILES, {**FILES, **HIDDEN}),
    fail_to_pass=["tests/test_calc.py::test_add"],
    pass_to_pass=["tests/test_calc.py::test_same", "tests/test_other.py::test_other"],
    patch=make_diff(FILES, {**FILES, **FIXED}),
    files=FILES,
)
FIX = "sed -i 's/a - b/a + b/' calc.py"


def step(env: SWEEnv, state: Any, command: str) -> Any:
    return env.step(state.set("action", format_action(command)))["next"]


def play(env: SWEEnv, *commands: str) -> Any:
    state = env.reset()
    for command in commands:
        state = step(env, state, command)
    return state


@pytest.fixture
def env() -> Iterator[SWEEnv]:
    swe_env = SWEEnv([TASK])
    yield swe_env
    swe_env.close()


def test_specs() -> None:
    check_env_specs(SWEEnv([TASK]), break_when_any_done="both", seed=0)


@pytest.mark.parametrize(("image", "message"), [("some/image", "Tasks with images need Docker"), (None, "need git")])
def test_a_missing_program_is_told(
    image: str | None, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=message):
        SWEEnv([SweTask(**{**vars(TASK), "image": image})])


def test_a_fix_is_submitted_and_graded(env: SWEEnv) -> None:
    state = play(env, FIX, "git diff --stat")
    assert state["reward"].item() == 0.0 and "1 file changed" in state["message"]
    state = step(env, state, f"echo {SENTINEL}")
    assert state["terminated"] and state["reward"].item() == 1.0
    assert env.grade is not None and all(env.grade.passed.values())
    assert [message["role"] for message in json.loads(state["conversation"])][:2] == ["system", "user"]


def test_a_fix_in_a_file_of_another_encoding_counts(env: SWEEnv) -> None:
    first = r"printf '# coding: latin-1\nONE = len(\"\351\")\n' > latin"
    state = play(env, f"{first}; sed -i 's/a - b/(a + b) * ONE/' calc.py; cat calc.py >> latin; mv latin calc.py")
    state = step(env, state, f"echo {SENTINEL}")
    assert state["reward"].item() == 1.0, env.grade


def test_nothing_done_is_not_solved(env: SWEEnv) -> None:
    state = play(env, f"echo {SENTINEL}")
    assert state["terminated"] and state["reward"].item() == -1.0
    assert not grade(TASK, "").resolved and grade(TASK, "").passed["tests/test_calc.py::test_same"]


def test_commands_are_stateless_and_files_stay(env: SWEEnv) -> None:
    state = play(env, "cd tests; X=1; echo hi > /work/repo/note", 'pwd; echo "[$X]"; cat note; ls /tmp')
    assert state["message"] == "<returncode>0</returncode>\n<output>\n/work/repo\n[]\nhi\n</output>"


def test_what_goes_wrong_is_an_observation(env: SWEEnv) -> None:
    state = play(env, "echo out; echo err >&2; exit 3")
    assert state["message"] == "<returncode>3</returncode>\n<output>\nout\nerr\n</output>"
    assert "syntax error" in step(env, state, "if then")["message"]


def test_a_command_that_takes_too_long_is_ended() -> None:
    env = SWEEnv([TASK], command_timeout=1.0)
    state = play(env, "echo begun; sleep 60")
    assert state["message"].startswith("Error: the command was ended after 1 s.") and "begun" in state["message"]
    assert "hello" in step(env, state, "echo hello")["message"]
    env.close()


def test_no_time_left_ends_the_episode() -> None:
    env = SWEEnv([TASK], episode_timeout=0.0)
    state = play(env, FIX)
    assert state["terminated"] and state["reward"].item() == -1.0 and not state["dropped"]
    env.close()


def test_long_output_shows_its_beginning_and_end(env: SWEEnv) -> None:
    message = play(env, "python -c \"print('a' * 6000 + 'b' * 6000)\"")["message"]
    assert "a" * 5000 + "\n[... 2001 characters left out ...]\n" + "b" * 4999 + "\n" in message
    assert "a" * 5001 not in message


@pytest.mark.parametrize("text", ["no block", "```bash\nls\n```\n```bash\nls\n```", "```python\n1\n```"])
def test_one_block_a_turn(env: SWEEnv, text: str) -> None:
    state = env.reset()
    state = env.step(state.set("action", text))["next"]
    assert state["message"].startswith("Error: a reply must hold exactly one bash block") and not state["done"]


def test_the_bash_tool() -> None:
    env = SWEEnv([TASK], tool=True, system=None)
    state = env.reset()
    assert json.loads(state["tools"])[0]["function"]["name"] == "bash"

    def call(*arguments: dict[str, str]) -> str:
        calls = [{"id": f"c{i}", "function": {"name": "bash", "arguments": json.dumps(call_arguments)}}
                 for i, call_arguments in enumerate(arguments)]  # fmt: skip
        return json.dumps({"role": "assistant", "content": "", "tool_calls": calls})

    state = env.step(state.set("action", call({"command": "ls"})))["next"]
    assert "calc.py" in state["message"]
    for wrong in (call({}), call({"command": "ls"}, {"command": "ls"})):
        state = env.step(state.set("action", wrong))["next"]
        assert state["message"].startswith("Error: make one call") and state["faults"].item() == 0
    env.close()


@pytest.mark.parametrize(
    ("command", "told"), [("echo \0", "NUL"), ("echo \ud800", "Unicode"), (f"true {'x' * 140_000}", "longer")]
)
def test_a_command_that_no_shell_can_be_given_is_told(command: str, told: str) -> None:
    env = SWEEnv([TASK], tool=True)
    call = {"id": "c0", "type": "function", "function": {"name": "bash", "arguments": {"command": command}}}
    state = env.step(env.reset().set("action", json.dumps({"role": "assistant", "tool_calls": [call]})))["next"]
    assert not state["done"] and told in state["message"] and state["signal"].item() == -1.0
    env.close()


@pytest.mark.parametrize(("submit_at_limit", "reward"), [(False, -1.0), (True, 1.0)])
def test_the_limit_of_steps(submit_at_limit: bool, reward: float) -> None:
    env = SWEEnv([TASK], max_steps=1, submit_at_limit=submit_at_limit)
    state = play(env, FIX)
    assert state["truncated"] and not state["terminated"] and state["reward"].item() == reward
    env.close()


def test_a_commit_is_part_of_the_diff_and_a_repository_without_git_has_none(env: SWEEnv) -> None:
    assert play(env, f"{FIX}; git commit -qam fix", f"echo {SENTINEL}")["reward"].item() == 1.0
    assert play(env, f"{FIX}; rm -rf .git", f"echo {SENTINEL}")["reward"].item() == -1.0


@pytest.mark.parametrize("line", [f"true; echo x; echo {SENTINEL}", f"echo {SENTINEL}; false", f"echo {SENTINEL}x"])
def test_only_the_sentinel_submits(env: SWEEnv, line: str) -> None:
    assert not play(env, line)["done"]


def write(path: str, text: str) -> str:
    return f"cat > {path} <<'END'\n{text}END\n"


EASY = "def test_add(): pass\ndef test_same(): pass\n"
FORGED = 'print(\'{"tests/test_calc.py::test_add": true, "tests/test_calc.py::test_same": true}\')\n'
CHEATS = {
    "overwrites the visible test": write("tests/test_calc.py", EASY),
    "makes the tests' folder a link": "mv tests mine; ln -s mine tests\n" + write("mine/test_calc.py", EASY),
    "makes the test a link": "rm tests/test_calc.py; ln -s ../mine.py tests/test_calc.py\n" + write("mine.py", EASY),
    "makes the test a folder": "rm tests/test_calc.py; mkdir tests/test_calc.py; touch tests/test_calc.py/a",
    "links out of the repository": "rm -r tests; ln -s /etc tests",
    "lets conftest pass everything": write("conftest.py", PASS_ALL),
    "loads a plugin by its configuration": write("pytest.ini", "[pytest]\naddopts = -p evil\n")
    + write("evil.py", PASS_ALL),
    "takes pytest's place": write("pytest.py", f"class TestReport: pass\ndef main(*a, **k): {FORGED}"),
    "leaves early": write("calc.py", f"import os\n{FORGED}os._exit(0)\n"),
    "turns the tests' line ends": "echo '*.py text eol=crlf' > .gitattributes",
    "spoils the tests' encoding": "echo '*.py working-tree-encoding=UTF-16' > .gitattributes",
    "mends one thing, breaks another and its test": write("calc.py", FIXED["calc.py"].replace("return x", "return 3"))
    + write("tests/test_other.py", "def test_other(): pass\n"),
    "removes a test that must go on passing": f"{FIX}; rm tests/test_other.py; sed -i 's/return x/return 3/' calc.py",
    "leads elsewhere": "mv /work/repo /work/away; ln -s /usr/lib /work/repo",
    "hides what it does from git": "echo '*' > .gitignore\n" + write("tests/conftest.py", PASS_ALL),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_gains_nothing(env: SWEEnv, cheat: str) -> None:
    state = play(env, CHEATS[cheat], f"echo {SENTINEL}")
    assert not state["dropped"], state["reason"]
    assert state["reward"].item() == -1.0


def test_a_repository_that_is_gone_is_an_observation(env: SWEEnv) -> None:
    state = play(env, "rm -rf /work/repo", "ls")
    assert "No such file or directory" in state["message"] and not state["done"]


@pytest.mark.parametrize("cheat", ["overwrites the visible test", "makes the test a link", "makes the test a folder"])
def test_a_fix_counts_whatever_became_of_the_test_files(env: SWEEnv, cheat: str) -> None:
    state = play(env, FIX, CHEATS[cheat], f"echo {SENTINEL}")
    assert state["reward"].item() == 1.0, env.grade


def new_file(path: str, line: str, mode: str = "100644") -> str:
    head = f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{line}\n"
    return head + ("\\ No newline at end of file\n" if mode == "120000" else "")


@pytest.mark.parametrize(
    "text",
    [
        "no diff",
        new_file("../../out", "x"),
        new_file(".git/config", "x"),
        new_file("link", "/tmp", mode="120000") + new_file("link/x", "x"),
    ],
)
def test_a_diff_that_reaches_out_does_not_apply(text: str) -> None:
    assert grade(TASK, text).reason == "the diff does not apply"


def test_tests_that_do_not_end_are_failures() -> None:
    endless = make_diff(FILES, {**FILES, "calc.py": "while True:\n    pass\n"})
    assert grade(TASK, endless, timeout=5.0).reason == "the tests did not end within 5 s"


def test_a_configuration_that_the_oracle_changes_is_the_submissions_too() -> None:
    named = {"pytest.ini": "[pytest]\npython_functions = check_*\n"}
    hidden = {"tests/test_calc.py": HIDDEN["tests/test_calc.py"].replace("test_add", "check_add")}
    task = SweTask(
        id="named",
        problem_statement="",
        test_patch=make_diff(FILES, {**FILES, **hidden}),
        fail_to_pass=["tests/test_calc.py::check_add"],
        patch=make_diff(FILES, {**FILES, **FIXED, **named}),
        files=FILES,
    )
    assert grade(task, task.patch).resolved
    without = SweTask(**{**vars(task), "patch": TASK.patch})
    assert not grade(without, task.patch).resolved


def test_a_name_that_is_no_text_is_cleared_away_too() -> None:
    with Checkout(TASK) as checkout:
        checkout.run(r"mkdir $'t\xff'; touch $'t\xff/conftest.py'", 10.0)
        assert _restore_base_files(checkout, TASK)
        assert checkout.run("find . -name conftest.py", 10.0).stdout == ""


def test_a_folder_where_a_new_hidden_test_must_be_is_cleared_away() -> None:
    hidden = {**FILES, "tests/test_new.py": HIDDEN["tests/test_calc.py"]}
    names = ["tests/test_new.py::test_add"]
    task = SweTask(**{**vars(TASK), "test_patch": make_diff(FILES, hidden), "fail_to_pass": names, "pass_to_pass": []})
    in_the_way = make_diff(FILES, {**FILES, **FIXED, "tests/test_new.py/a": "x\n"})
    assert grade(task, in_the_way).resolved


def test_tests_that_fit_the_base_commit_are_the_diffs_fault() -> None:
    assert not _grade_unwritable_tests(TASK, TASK.patch, LIMITS, None).resolved


def test_hidden_tests_that_do_not_fit_break_the_world() -> None:
    task = SweTask(**{**vars(TASK), "test_patch": TASK.test_patch.replace("assert same(3)", "assert other(3)")})
    with pytest.raises(WorldBroken, match="don't apply"):
        grade(task, TASK.patch)
    env = SWEEnv([task])
    state = play(env, FIX, f"echo {SENTINEL}")
    assert state["dropped"] and "don't apply" in state["reason"] and state["reward"].isnan().all()
    env.close()


def git(folder: Path, *arguments: str) -> str:
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    command = ["git", "-c", "protocol.file.allow=always", *arguments]
    result = subprocess.run(command, cwd=folder, env={**os.environ, **who}, capture_output=True, text=True, check=True)
    return result.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str]:
    folder = tmp_path / "repositories" / "one__two"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "base")
    base = git(folder, "rev-parse", "HEAD")
    (folder / "calc.py").write_text(FIXED["calc.py"])
    git(folder, "commit", "-qam", "the fix")
    return folder, base


@pytest.mark.parametrize("bundled", [False, True])
def test_a_local_repository_or_bundle_at_its_commit(
    tmp_path: Path, repository: tuple[Path, str], bundled: bool
) -> None:
    folder, base = repository
    if bundled:
        git(folder, "bundle", "create", "-q", str(tmp_path / "repositories" / "two.bundle"), "--all")
        folder.rename(tmp_path / "elsewhere")
    row = {
        "instance_id": "two-1",
        "repo": "one/two",
        "base_commit": base,
        "problem_statement": "",
        "patch": TASK.patch,
        "test_patch": TASK.test_patch,
        "FAIL_TO_PASS": json.dumps(TASK.fail_to_pass),
        "PASS_TO_PASS": json.dumps(TASK.pass_to_pass),
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    [task] = read_swe_tasks(tmp_path / "rows.jsonl")
    env = SWEEnv([task])
    state = play(env, "git log --all --format=%H; git status --short; grep return calc.py")
    assert f"\n{base}\n    return a - b\n" in state["message"]
    assert step(env, state, f"git cat-file -p {base}~0 | head -1; git rev-list --all --count")["message"].endswith(
        "1\n</output>"
    )
    assert play(env, *[action[len("```bash\n") : -len("\n```")] for action in task.oracle()])["reward"].item() == 1.0
    env.close()


def test_a_commit_that_is_not_there_drops_the_episode(repository: tuple[Path, str]) -> None:
    task = SweTask(**{**vars(TASK), "files": {}, "repository": repository[0], "base_commit": "1" * 40})
    env = SWEEnv([task])
    state = env.reset()
    assert state["dropped"] and "git can't set the repository up" in state["reason"]
    env.close()


def test_an_own_test_command() -> None:
    task = SweTask(
        **{
            **vars(TASK),
            "test_command": "python -m unittest -v tests.test_unit",
            "test_patch": make_diff(
                FILES,
                {**FILES, "tests/test_unit.py": "import unittest\nfrom calc import add\n\n\n"
                 "class T(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n"},
            ),
            "fail_to_pass": ["test_add (tests.test_unit.T.test_add)"],
            "pass_to_pass": [],
        }
    )  # fmt: skip
    assert grade(task, TASK.patch).resolved and not grade(task, "").resolved


def test_names_as_swe_bench_has_them() -> None:
    cases = """import pytest
from calc import add


@pytest.mark.parametrize("case", ["one case", "one more"])
def test_add(case):
    assert add(1, 2) == 3 and case != WRONG
"""

    def make_task(name: str, wrong: str = "None") -> SweTask:
        hidden = {**FILES, "test_cases.py": cases.replace("WRONG", wrong)}
        more = {"test_patch": make_diff(FILES, hidden), "fail_to_pass": [name], "pass_to_pass": []}
        return SweTask(**{**vars(TASK), **more})

    assert grade(make_task("test_cases.py::test_add[one"), TASK.patch).resolved
    assert not grade(make_task("test_cases.py::test_add[one", wrong="'one more'"), TASK.patch).resolved
    bare = SweTask(**{**vars(TASK), "fail_to_pass": ["test_add"], "pass_to_pass": ["test_same"]})
    assert grade(bare, TASK.patch).resolved and not grade(bare, "").resolved
    missing = SweTask(**{**vars(TASK), "fail_to_pass": ["test_nothing"], "pass_to_pass": []})
    assert not grade(missing, TASK.patch).resolved


def test_logs_of_pytest_and_unittest() -> None:
    log = "PASSED t.py::test_a[x y]\nFAILED t.py::test_b - assert 1\nXFAIL t.py::test_c\nERROR t.py::test_d\n"
    log += "test_e (m.T) ... ok\ntest_f (m.T.test_f) ... FAIL\n"
    results = read_log(log)
    assert results == {
        "t.py::test_a[x": True,  # a name ends at a blank, as in SWE-bench's own reading
        "t.py::test_b": False,
        "t.py::test_c": True,
        "t.py::test_d": False,
        "test_e (m.T)": True,
        "test_f (m.T.test_f)": False,
    }


def test_paths_of_a_diff() -> None:
    assert list_paths(TASK.patch) == {"calc.py"}
    moved = "diff --git a/old.py b/new.py\nsimilarity index 100%\nrename from old.py\nrename to new.py\n"
    assert list_paths(moved) == {"old.py", "new.py"}


def test_in_a_pool_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tasks = read_swe_tasks(FOLDER / "train.jsonl", difficulty=1)
    pool = AsyncEnvPool(
        [lambda i=i: SWEEnv(tasks, first_task=i, max_steps=2) for i in range(2)], backend="threading", stack="lazy"
    )
    try:
        state = pool.reset()
        for turn in range(2):
            for i in range(2):
                state[i].set("action", tasks[i].oracle()[turn])
            state = pool.step(state)["next"]
        assert state["reward"].flatten().tolist() == [1.0] * 2
    finally:
        pool.close()
    assert list(tmp_path.iterdir()) == []


def test_many_episodes_leave_nothing(env: SWEEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert play(env, FIX, f"echo {SENTINEL}")["reward"].item() == 1.0
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    process = psutil.Process()
    before = process.num_fds(), len(process.children(recursive=True))
    for command in (FIX, "sleep 300 & mkdir -p a/b && chmod 0 a", "true") * 2:
        assert play(env, command, f"echo {SENTINEL}")["done"]
    play(env, "sleep 300 &")
    env.close()
    assert (process.num_fds(), len(process.children(recursive=True))) == before
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_ends_the_command_not_the_episode() -> None:
    env = SWEEnv([TASK], limits=Limits(disk_mb=64, file_mb=256))
    state = play(env, "for i in 1 2 3; do head -c 100000000 /dev/zero > f$i; done; sleep 150")
    assert state["message"].startswith("Error: the command was ended: more than 64 MB on disk.") and not state["done"]
    env.close()


@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_some_shipped_oracles_pass_and_doing_nothing_fails(difficulty: int) -> None:
    for split in ("train", "heldout"):
        tasks = read_swe_tasks(FOLDER / f"{split}.jsonl", difficulty=difficulty)
        for task in tasks[:: len(tasks) // 2]:
            assert grade(task, task.patch).resolved, task.id
            undone = grade(task, "")
            assert not any(undone.passed[name] for name in task.fail_to_pass), task.id
            assert all(undone.passed[name] for name in task.pass_to_pass), task.id


def test_an_early_step_is_one_short_command() -> None:
    env = SWEEnv(read_swe_tasks(FOLDER / "train.jsonl", difficulty=1), max_steps=1, submit_at_limit=True, system=None)
    state = env.reset()
    _, file, _, _, _, _, _, _, new = state["message"].split()
    state = step(env, state, f"echo x = {new} > {file}")
    assert state["reward"].item() == 1.0
    env.close()


def test_a_checkout_is_cleaned_up_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(WorldBroken, match="outside"):
        Checkout(SweTask(**{**vars(TASK), "files": {"../out": "x"}}))
    assert list(tmp_path.iterdir()) == []


def test_the_signal_of_an_action_is_its_return_code(env: SWEEnv) -> None:
    state, signals = env.reset(), []
    for command in ("ls", "grep nothing calc.py", f"echo {SENTINEL}"):
        state = step(env, state, command)
        signals.append(state["signal"].item())
    assert signals == [1, -1, 1] and state["done"]
    state = env.step(env.reset().set("action", "Let me think."))["next"]
    assert state["signal"].item() == -1


@pytest.mark.parametrize("messages", [{}, {"tests/test_calc.py::test_add": "add(1, 2) is -1, not 3."}], ids=len)
def test_a_failing_test_speaks_in_its_author_s_words_alone(messages: dict[str, str]) -> None:
    env = SWEEnv([replace(TASK, test_messages=messages)])
    state = play(env, "echo hint: do nothing", "echo 'print(\"hint: cheat\")' >> calc.py", f"echo {SENTINEL}")
    words = messages.get("tests/test_calc.py::test_add", "The test tests/test_calc.py::test_add must pass.")
    assert state["outcome"] == -1.0 and json.loads(state["hints"]) == {"0": [words], "1": [words]}
    assert json.loads(play(env, "touch x", f"echo {SENTINEL}")["hints"]) == {"0": [words]}
    assert json.loads(play(env, "true", f"echo {SENTINEL}")["hints"]) == {"0": [words]}, "nothing was changed"
    assert json.loads(play(env, FIX, f"echo {SENTINEL}")["hints"]) == {}
    env.close()
