"""Terminal tasks as they are read, and the world that is made of them."""

import json
from pathlib import Path

import pytest

from clawrl_trl.envs.base.agent import WorldBroken
from clawrl_trl.envs.sandbox.bubblewrap import diagnose_bubblewrap
from clawrl_trl.envs.terminal.task_folder import TaskFolder, load_tasks, save_tasks
from clawrl_trl.envs.terminal.task_world import TaskWorld
from clawrl_trl.errors import UserError

TROUBLE = diagnose_bubblewrap()
sandboxed = [pytest.mark.sandbox, pytest.mark.skipif(bool(TROUBLE), reason=f"needs bubblewrap: {TROUBLE}")]

HARBOR = {
    "instruction.md": "Write 7 to a.txt.\n",
    "task.toml": 'version = "1.0"\n[metadata]\ndifficulty = "easy"\n[verifier]\ntimeout_sec = 20.0\n',
    "environment/Dockerfile": "FROM python:3.11-slim\n# a comment\nWORKDIR /app\nCOPY files/ ./\n",
    "environment/files/b.txt": "5\n",
    "tests/test.sh": '#!/bin/bash\n[ "$(cat /app/a.txt)" = 7 ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n',
    "solution/solve.sh": "#!/bin/bash\ncd /app\necho 7 > a.txt\n",
}
BENCH = {
    "task.yaml": "instruction: |-\n  Write 7 to a.txt.\ndifficulty: hard\nmax_test_timeout_sec: 90\n",
    "Dockerfile": "FROM ubuntu\nWORKDIR /app\nCOPY b.txt c.txt ./\nENV WHO=me\nRUN echo $WHO > who.txt \\\n && true\n",
    "b.txt": "5\n",
    "c.txt": "6\n",
    "run-tests.sh": "curl -LsSf https://example.invalid | sh\n",
    "tests/test_outputs.py": (
        "from pathlib import Path\n\ndef test_written():\n    assert Path('/app/a.txt').read_text() == '7\\n'\n\n"
        "def test_files():\n    assert [Path(f'/app/{n}.txt').read_text() for n in ('b', 'c', 'who')]"
        " == ['5\\n', '6\\n', 'me\\n']\n"
    ),
    "solution.sh": "echo 7 > /app/a.txt\n",
}


def task(files: dict[str, str], **changes: str | None) -> TaskFolder:
    changed = {**files, **changes}
    return TaskFolder("it", {name: text.encode() for name, text in changed.items() if text is not None})


def test_both_layouts_are_read(tmp_path: Path) -> None:
    task(HARBOR).write(tmp_path / "one")
    task(BENCH).write(tmp_path / "two")
    (tmp_path / "README.md").write_text("not a task")
    first, second = load_tasks(tmp_path)
    assert (first.id, first.instruction, first.difficulty, first.verifier_timeout) == (
        "one",
        "Write 7 to a.txt.",
        1,
        20.0,
    )
    assert (second.id, second.instruction, second.difficulty, second.verifier_timeout) == (
        "two",
        "Write 7 to a.txt.",
        3,
        90.0,
    )
    assert (first.solution, second.solution) == ("solution/solve.sh", "solution.sh")
    assert load_tasks(tmp_path / "one") == [first] and load_tasks(tmp_path, difficulty=3) == [second]


def test_a_file_of_tasks_says_the_same_as_folders(tmp_path: Path) -> None:
    task(HARBOR).write(tmp_path / "set" / "it")
    save_tasks(load_tasks(tmp_path / "set"), tmp_path / "set.jsonl")
    assert load_tasks(tmp_path / "set.jsonl") == load_tasks(tmp_path / "set")


def test_mistakes_of_the_user(tmp_path: Path) -> None:
    def read(row: object) -> None:
        (tmp_path / "set.jsonl").write_text(json.dumps(row) + "\n")
        load_tasks(tmp_path / "set.jsonl")

    files = {"instruction.md": "Do it.", "tests/test.sh": "true"}
    read({"id": "a", "files": files})
    for row, message in (
        ({"id": "a"}, "is no task"),
        ([1], "is no task"),
        ({"id": "a", "files": {**files, "../x": ""}}, "outside its folder"),
        ({"id": "a", "files": {"tests/test.sh": ""}}, "no instruction"),
        ({"id": "a", "files": {"instruction.md": "Do it."}}, "no tests"),
        ({"id": "a", "files": {"task.yaml": "{", "tests/test.sh": ""}}, "settings"),
        ({"id": "a", "files": {**files, "task.toml": "[verifier]\ntimeout_sec = 'long'"}}, "no number of seconds"),
    ):
        with pytest.raises(UserError, match=message):
            read(row)
    with pytest.raises(UserError, match="There are no tasks"):
        load_tasks(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no task"):
        load_tasks(tmp_path / "empty")
    (tmp_path / "twice.jsonl").write_text(2 * (json.dumps({"id": "a", "files": files}) + "\n"))
    with pytest.raises(UserError, match="two tasks named 'a'"):
        load_tasks(tmp_path / "twice.jsonl")


def test_the_oracles_actions() -> None:
    call, answer = task(HARBOR).oracle()
    assert '"command": "echo 7 > a.txt"' in call and answer == "Done."
    assert task(HARBOR, **{"solution/solve.sh": None}).oracle() == []


class TestWorld:
    pytestmark = sandboxed

    @pytest.mark.parametrize("files", [HARBOR, BENCH], ids=["harbor", "terminal-bench"])
    def test_the_oracle_passes_and_nothing_done_does_not(self, files: dict[str, str]) -> None:
        outcomes = []
        for solve in (True, False):
            with TaskWorld(task(files)) as world:
                world.set_up()
                assert (world.work / "b.txt").read_text() == "5\n"
                if solve:
                    assert world.solve().exit_code == 0
                outcomes.append(world.verify().outcome)
            assert not world.work.exists()
        assert outcomes == ([1.0, -1.0] if files is HARBOR else [1.0, 0.0])

    @pytest.mark.parametrize(
        ("test", "passed"),
        [
            ("echo 0.25 > /logs/verifier/reward.txt", 0.25),
            ("echo 7 > /logs/verifier/reward.txt", 1.0),
            ("echo -1 > /logs/verifier/reward.txt", 0.0),
            ("echo nan > /logs/verifier/reward.txt", 0.0),
            ("echo '{\"reward\": 0.5}' > /logs/verifier/reward.json", 0.5),
            ("echo '[1]' > /logs/verifier/reward.json", 0.0),
            ("true", 0.0),
            ("sleep 1000", 0.0),
        ],
    )
    def test_rewards(self, test: str, passed: float) -> None:
        toml = "[verifier]\ntimeout_sec = 3.0\n"
        with TaskWorld(task(HARBOR, **{"tests/test.sh": test, "task.toml": toml})) as world:
            world.set_up()
            assert world.verify().passed == passed

    def test_a_reward_that_is_a_link_or_a_pipe_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "one").write_text("1")
        for test in (f"ln -s {tmp_path}/one /logs/verifier/reward.txt", "mkfifo /logs/verifier/reward.txt"):
            with TaskWorld(task(HARBOR, **{"tests/test.sh": test})) as world:
                world.set_up()
                assert world.verify().passed == 0.0

    def test_what_is_tested_cannot_end_the_tests_with_a_reward_of_its_own(self) -> None:
        test = "bash /app/tool.sh\necho 0 > /logs/verifier/reward.txt\n"
        with TaskWorld(task(HARBOR, **{"tests/test.sh": test})) as world:
            world.set_up()
            (world.work / "tool.sh").write_text("echo 1 > /logs/verifier/reward.txt; kill -9 $PPID")
            assert world.verify().passed == 0.0

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("conftest.py", "def pytest_collection_modifyitems(items):\n    items.clear()\n"),
            ("pytest.ini", "[pytest]\naddopts = --collect-only\n"),
            ("pytest.py", "raise SystemExit(0)\n"),
            ("sitecustomize.py", "import os; os._exit(0)\n"),
            (".bashrc", "exit 0\n"),
        ],
    )
    def test_what_the_agent_leaves_does_not_turn_pytest(self, name: str, text: str) -> None:
        with TaskWorld(task(BENCH)) as world:
            world.set_up()
            (world.work / name).write_text(text)
            assert world.verify().passed == 0.5

    def test_tests_can_neither_be_seen_nor_changed_before(self) -> None:
        with TaskWorld(task(HARBOR)) as world:
            world.set_up()
            with world.open_sandbox() as sandbox:
                result = sandbox.run(["bash", "-c", "ls /tests /logs /solution; touch /tests"], timeout=60)
            assert result.exit_code != 0 and result.stdout == ""

    @pytest.mark.parametrize(
        "dockerfile",
        [
            "FROM x\nCOPY files/ /etc/\n",
            "FROM x\nVOLUME /data\n",
            "FROM x\nCOPY none.txt ./\n",
            "FROM x\nRUN exit 3\n",
            "FROM x\nWORKDIR /app\nRUN ln -s /etc out\nCOPY files/ out/\n",
            "FROM x\nWORKDIR ../../etc\nCOPY files/ ./\n",
            "FROM x\nWORKDIR /app\nRUN ln -s /etc b.txt\nCOPY files/ ./\n",
            "FROM x\nCOPY files/\n",
            "FROM x\nCOPY 'files/ ./\n",
            "FROM x\nCOPY --from=other /bin/x ./\n",
        ],
    )
    def test_a_world_that_needs_docker_is_broken(self, dockerfile: str) -> None:
        with TaskWorld(task(HARBOR, **{"environment/Dockerfile": dockerfile})) as world, pytest.raises(WorldBroken):
            world.set_up()

    def test_without_a_sandbox_where_the_user_insists(self) -> None:
        for solve in (True, False):
            with TaskWorld(task(HARBOR), backend="none") as world:
                world.set_up()
                if solve:
                    world.solve()
                assert world.verify().outcome == (1.0 if solve else -1.0)
