"""The shipped terminal tasks, their generator, and `clawrl tasks check`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clawrl_trl.envs import TerminalEnv
from clawrl_trl.envs.check_tasks import TaskCheck, check_tasks, find_task_sets
from clawrl_trl.envs.sandbox.bubblewrap import diagnose_bubblewrap
from clawrl_trl.envs.terminal.task_folder import TaskFolder, load_tasks, save_tasks
from clawrl_trl.errors import UserError
from recipes.tasks import terminal

TROUBLE = diagnose_bubblewrap()
sandboxed = [pytest.mark.sandbox, pytest.mark.skipif(bool(TROUBLE), reason=f"needs bubblewrap: {TROUBLE}")]
SHIPPED = Path(__file__).parents[2] / "examples" / "tasks" / "terminal"


def test_what_is_shipped_is_what_the_generator_makes(tmp_path: Path) -> None:
    for split, tasks in terminal.generate().items():
        save_tasks(tasks, tmp_path / split)
        assert (tmp_path / split).read_text() == (SHIPPED / f"{split}.jsonl").read_text()


def test_another_seed_makes_other_tasks() -> None:
    instructions = [[task.instruction for task in terminal.generate(seed)["train"]] for seed in (1, 2)]
    assert instructions[0] != instructions[1]


def test_steps_and_splits() -> None:
    splits = {split: load_tasks(SHIPPED / f"{split}.jsonl") for split in terminal.SPLITS}
    for split, tasks in splits.items():
        for step in (1, 2, 3):
            assert sum(task.difficulty == step for task in tasks) == terminal.SPLITS[split]
    easy = [{task.instruction for task in tasks if task.difficulty == 1} for tasks in splits.values()]
    assert not easy[0] & easy[1]
    worlds = [
        {(t.instruction, *sorted(t.select_files("environment").items())) for t in tasks} for tasks in splits.values()
    ]
    assert not worlds[0] & worlds[1]
    assert sum(map(len, worlds)) == sum(map(len, splits.values()))


def test_the_easiest_step_is_one_short_command() -> None:
    for split in terminal.SPLITS:
        for task in load_tasks(SHIPPED / f"{split}.jsonl", difficulty=1):
            command = json.loads(task.oracle()[0].split("\n")[1])["arguments"]["command"]
            assert len(task.instruction.split()) <= 10 and len(command.split()) <= 4 and "\n" not in command


def test_task_sets_are_found_at_any_depth(tmp_path: Path) -> None:
    rows = {
        "a/swe.jsonl": {"instance_id": "x"},
        "a/tools.jsonl": {"question": "x"},
        "b/gui.jsonl": {"page": "x"},
        "b/terminal.jsonl": {"id": "x", "files": {}},
        "b/other.jsonl": {"text": "x"},
    }
    for name, row in rows.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(row) + "\n")
    (tmp_path / "c" / "one").mkdir(parents=True)
    (tmp_path / "c" / "one" / "instruction.md").write_text("Do it.")
    (tmp_path / "c" / "one" / "more.jsonl").write_text('{"page": "x"}')
    task_sets = [(kind, str(path.relative_to(tmp_path))) for kind, path in find_task_sets(tmp_path)]
    assert task_sets == [
        ("swe", "a/swe.jsonl"),
        ("toolcall", "a/tools.jsonl"),
        ("gui", "b/gui.jsonl"),
        ("terminal", "b/terminal.jsonl"),
        ("terminal", "c"),
    ]
    assert list(find_task_sets(tmp_path / "c" / "one")) == [("terminal", tmp_path / "c" / "one")]
    with pytest.raises(UserError, match="There are no tasks"):
        next(check_tasks(tmp_path / "nowhere"))


def test_what_counts_as_sound() -> None:
    assert TaskCheck("a", "", 1.0, -1.0).ok and TaskCheck("a", "", 1.0, 0.0).ok
    for solved, untouched in ((0.5, -1.0), (1.0, 1.0), (float("nan"), -1.0), (1.0, float("nan"))):
        assert not TaskCheck("a", "", solved, untouched).ok


class TestOracles:
    pytestmark = sandboxed

    @pytest.mark.parametrize("split", list(terminal.SPLITS))
    def test_every_oracle_passes_and_doing_nothing_gets_the_least(self, split: str) -> None:
        for checked in check_tasks(SHIPPED / f"{split}.jsonl"):
            assert (checked.solved, checked.untouched) == (1.0, -1.0), checked

    def test_the_oracles_own_actions_solve_tasks_in_the_environment(self) -> None:
        tasks = load_tasks(SHIPPED / "heldout.jsonl")[::4]
        env = TerminalEnv(tasks, tool_timeout=60)
        for task in tasks:
            state = env.reset()
            for action in task.oracle():
                state = env.step(state.set("action", action))["next"]
            assert state["task_id"] == task.id and state["outcome"].item() == 1.0, state["conversation"]
        env.close()

    def test_the_command(self, tmp_path: Path) -> None:
        good = load_tasks(SHIPPED / "train.jsonl")[0]
        always = b"echo 1 > /logs/verifier/reward.txt"
        free = TaskFolder("free", {**good.files, "tests/test.sh": always})
        stuck = TaskFolder("stuck", {k: v for k, v in good.files.items() if not k.startswith("solution")})
        save_tasks([good, free, stuck], tmp_path / "set.jsonl")
        command = [sys.executable, "-m", "clawrl_trl.cli.main", "tasks", "check", str(tmp_path)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 1, result.stderr
        assert "free: oracle +1, nothing done +1" in result.stdout and "stuck: oracle +nan" in result.stdout
        assert result.stdout.endswith("3 tasks, 1 of them sound, 2 not.\n") and good.id not in result.stdout
        rows = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False).stdout.splitlines()
        assert [json.loads(row)["ok"] for row in rows] == [True, False, False]
