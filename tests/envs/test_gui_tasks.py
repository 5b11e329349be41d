"""The GUI task sets: read, made from their seed, and each solvable and not solved by doing nothing."""

import json
from pathlib import Path

import pytest

from clawrl_trl.envs.gui.env import GUIEnv
from clawrl_trl.envs.gui.oracle import solve
from clawrl_trl.envs.gui.screen import Element, ScreenError
from clawrl_trl.envs.gui.tasks import read_tasks, resolve_step
from clawrl_trl.errors import UserError
from recipes.tasks import gui as generator
from recipes.tasks.splits import SPLITS, write_splits

SHIPPED = Path(__file__).parents[2] / "examples" / "tasks" / "gui"
ROW = {"id": "a", "page": "p.html", "instruction": "Do.", "checks": ["true"], "oracle": []}


def write_task_file(folder: Path, *rows: object) -> Path:
    (folder / "pages").mkdir(exist_ok=True)
    (folder / "pages" / "p.html").write_text("<button>OK</button>")
    (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "tasks.jsonl"


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_the_shipped_tasks_come_from_their_seed(split: str) -> None:
    lines = (SHIPPED / f"{split}.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == json.loads(json.dumps(generator.generate()[split]))


def test_writing_is_reproducible(tmp_path: Path) -> None:
    write_splits(tmp_path, generator.generate())
    for split in SPLITS:
        assert (tmp_path / f"{split}.jsonl").read_bytes() == (SHIPPED / f"{split}.jsonl").read_bytes()


def test_no_task_is_in_both_splits() -> None:
    train, heldout = (
        {(task.instruction, json.dumps(task.data)) for task in read_tasks(SHIPPED / f"{split}.jsonl")}
        for split in ("train", "heldout")
    )
    assert len(train) == 120 and len(heldout) == 60 and not train & heldout


def test_the_easiest_step_is_short() -> None:
    for task in read_tasks(SHIPPED / "train.jsonl", difficulty=1):
        assert len(task.oracle) == 1 and len(task.instruction.split()) <= 6 and len(task.data["items"]) <= 4


def test_no_page_is_told_the_solution() -> None:
    for task in read_tasks(SHIPPED / "train.jsonl"):
        assert not {"goal", "answer", "checks", "oracle"} & set(task.data)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"colour": 1}, "no such field: colour"),
        ({"checks": []}, "at least one check"),
        ({"checks": "true"}, "needs checks, a list"),
        ({"instruction": ""}, "needs an instruction"),
        ({"page": "q.html"}, "there is no page"),
        ({"id": 3}, "needs id, a str"),
    ],
)
def test_a_task_that_is_not_of_the_form_is_told(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        read_tasks(write_task_file(tmp_path, {**ROW, **change}))


def test_other_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="same id"):
        read_tasks(write_task_file(tmp_path, ROW, ROW))
    with pytest.raises(UserError, match="of difficulty 3"):
        read_tasks(write_task_file(tmp_path, ROW), difficulty=3)
    with pytest.raises(UserError, match="line 1 must be a JSON object"):
        read_tasks(write_task_file(tmp_path, [1]))
    (tmp_path / "tasks.jsonl").write_text("{")
    with pytest.raises(UserError, match="line 1 is no JSON"):
        read_tasks(tmp_path / "tasks.jsonl")
    with pytest.raises(UserError, match="holds no GUI tasks"):
        read_tasks(tmp_path / "nothing")


def test_an_oracle_names_elements_by_their_label() -> None:
    outline = [Element(4, "button", "OK"), Element(7, "textbox", "")]
    assert resolve_step({"action": "left_click", "element": 'button "OK"'}, outline) == {
        "action": "left_click",
        "ref": 4,
    }
    assert resolve_step({"action": "type", "element": "textbox", "text": "a"}, outline)["ref"] == 7
    with pytest.raises(ScreenError):
        resolve_step({"action": "left_click", "element": 'link "OK"'}, outline)


@pytest.mark.browser
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", ["train.jsonl", "heldout.jsonl", "folders"])
def test_oracles_solve_every_shipped_task_and_doing_nothing_none(path: str) -> None:
    tasks = read_tasks(SHIPPED / path)
    env = GUIEnv(tasks)
    try:
        for task in tasks:
            state = env.reset()
            assert env.task is task and env.scene is not None
            assert env.scene.compute_outcome() == -1.0, task.id
            solved = solve(env, state)
            assert solved["reward"].item() == 1.0 and solved["progress"].item() == 1.0, task.id
            assert not solved["dropped"] and not solved["truncated"], task.id
    finally:
        env.close()
