"""SWE-bench's format: what is read, and what is refused."""

import json
import subprocess
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from clawrl_trl.envs.swe.tasks import read_swe_tasks
from clawrl_trl.errors import UserError
from clawrl_trl.messages import Json
from recipes.tasks import swe as taskgen
from recipes.tasks.splits import SPLITS, write_splits

FOLDER = Path(__file__).parents[2] / "examples" / "tasks" / "swe"


def a_row(**more: object) -> Json:
    return {
        "instance_id": "one__two-1",
        "repo": "one/two",
        "base_commit": "0" * 40,
        "problem_statement": "It breaks.",
        "patch": "",
        "test_patch": "",
        "FAIL_TO_PASS": '["t.py::test_a"]',
        "PASS_TO_PASS": "[]",
        **more,
    }


def test_jsonl_and_parquet_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repositories" / "one__two").mkdir(parents=True)
    lines = tmp_path / "rows.jsonl"
    lines.write_text(json.dumps(a_row()) + "\n")
    table = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([a_row()]), table)
    monkeypatch.setenv("SWE_BENCH_PATH", str(table))
    assert read_swe_tasks() == read_swe_tasks(lines)
    [task] = read_swe_tasks(lines)
    assert task.fail_to_pass == ["t.py::test_a"] and task.pass_to_pass == []
    assert task.repository == tmp_path / "repositories" / "one__two"


@pytest.mark.parametrize("name", ["one__two", "one/two.git", "two.bundle"])
def test_a_repository_is_found_by_its_usual_names(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(a_row()))
    place = tmp_path / "shelf" / name
    place.mkdir(parents=True)
    assert read_swe_tasks(tmp_path, repositories=tmp_path / "shelf")[0].repository == place
    monkeypatch.setenv("SWE_BENCH_REPOS", str(tmp_path / "shelf"))
    assert read_swe_tasks(tmp_path)[0].repository == place


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (a_row(), "its repository is not at"),
        (a_row(repository="nowhere"), "its repository is not at"),
        ({"instance_id": "x"}, "x in .* is no SWE-bench task: KeyError 'problem_statement'"),
        (a_row(files={"a": ""}, FAIL_TO_PASS="oops"), "is no SWE-bench task"),
        (a_row(files={"a": ""}, FAIL_TO_PASS=[1]), "must be a list of names"),
    ],
)
def test_a_wrong_row_is_the_users_mistake(tmp_path: Path, row: Json, message: str) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserError, match=message):
        read_swe_tasks(tmp_path / "rows.jsonl")


def test_a_wrong_file_is_the_users_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWE_BENCH_PATH", raising=False)
    with pytest.raises(UserError, match="set SWE_BENCH_PATH"):
        read_swe_tasks()
    with pytest.raises(UserError, match="There are no SWE tasks"):
        read_swe_tasks(tmp_path)
    (tmp_path / "a.jsonl").write_text("{")
    with pytest.raises(UserError, match="line 1 is no JSON object"):
        read_swe_tasks(tmp_path)
    (tmp_path / "a.jsonl").write_text((json.dumps(a_row(files={"a": ""})) + "\n") * 2)
    with pytest.raises(UserError, match="same instance_id"):
        read_swe_tasks(tmp_path)
    (tmp_path / "b.parquet").write_text("no")
    with pytest.raises(UserError, match="is no parquet file"):
        read_swe_tasks(tmp_path / "b.parquet")


def test_the_shipped_tasks_are_what_the_seed_gives(tmp_path: Path) -> None:
    write_splits(tmp_path, taskgen.generate())
    for split in SPLITS:
        assert (tmp_path / f"{split}.jsonl").read_text() == (FOLDER / f"{split}.jsonl").read_text()


def test_the_shipped_splits_are_apart_and_the_first_step_is_short() -> None:
    train, heldout = (read_swe_tasks(FOLDER / f"{split}.jsonl") for split in SPLITS)
    assert not {task.problem_statement for task in train} & {task.problem_statement for task in heldout}
    assert (len(train), len(heldout)) == (120, 60)
    assert len(read_swe_tasks(FOLDER / "train.jsonl", difficulty=1)) == 40
    for task in (*train, *heldout):
        assert task.fail_to_pass and task.pass_to_pass and task.patch and not task.repository
        assert task.difficulty > 1 or len(task.problem_statement.split()) < 12


def test_a_diff_of_the_generator_is_one_that_git_takes(tmp_path: Path) -> None:
    before = {"a.py": "x = 1\ny = 2\n", "b.py": "z\n"}
    after = {"a.py": "x = 1\ny = 3\n", "b.py": "z\n", "c/d.py": "new\n"}
    for name, content in before.items():
        (tmp_path / name).write_text(content)
    subprocess.run(["git", "apply", "-"], input=taskgen.make_diff(before, after), text=True, cwd=tmp_path, check=True)
    assert {name: (tmp_path / name).read_text() for name in after} == after
