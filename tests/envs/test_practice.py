"""Practice: episodes of a shipped task set through a gateway, on record, resumed, and held back."""

import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.envs.base.actor import GatewayPolicy
from clawrl_trl.envs.catalogue import BUILTIN_ENVIRONMENTS, SPLITS, find_task_folder, get_environment
from clawrl_trl.envs.rollout.episode import Episode, Group
from clawrl_trl.envs.rollout.rollout import Rollout
from clawrl_trl.envs.runs.interactions import Interactions
from clawrl_trl.envs.runs.pace import Pace
from clawrl_trl.envs.runs.practice_options import PracticeOptions
from clawrl_trl.envs.runs.practice_run import PracticeRun
from clawrl_trl.envs.runs.practice_worker import FILE_NAME, order_tasks, play_episodes
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger

SHIPPED = Path(__file__).parents[2] / "examples" / "tasks"


def make_obliging_script() -> Callable[[list[dict[str, Any]] | None, int], Any]:
    """Does what "Set the fan to 4." asks; every third time something else. Other requests get samples."""
    requests = itertools.count(1)

    def script(messages: list[dict[str, Any]] | None, number: int) -> Any:
        if messages is None:
            return "settled"
        device, value = re.findall(r"the (\w+) (?:to|at) (\d+)", messages[-1]["content"])[0]
        call = {"value": int(value) + (next(requests) % 3 == 0)}
        function = {"name": device, "arguments": json.dumps(call)}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }

    return script


def make_options(**options: Any) -> PracticeOptions:
    fixed = {"env": "toolcall", "tasks": str(SHIPPED / "toolcall"), "difficulty": 1, "group_size": 2}
    return PracticeOptions(**{**fixed, "parallel_envs": 2, **options})


def test_episodes_are_on_record_and_not_played_again(scripted: Any, tmp_path: Path) -> None:
    server = scripted(make_obliging_script())
    policy = GatewayPolicy(server.base_url, stream_share=0.0)
    rows = list(play_episodes(tmp_path, make_options(episodes=5), policy))
    assert [row["index"] for row in rows] == [0, 1, 2] and all(len(row["episodes"]) == 2 for row in rows)
    outcomes = {episode["outcome"] for row in rows for episode in row["episodes"]}
    assert outcomes == {1.0, -1.0}
    lines = (tmp_path / FILE_NAME).read_text().splitlines()
    assert [json.loads(line)["group"] for line in lines] == [row["group"] for row in rows]
    again = list(play_episodes(tmp_path, make_options(episodes=8), policy))
    assert [row["index"] for row in again] == [3]
    assert list(play_episodes(tmp_path, make_options(episodes=8), policy)) == []
    policy.close()


def test_a_run_that_goes_on_plays_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are on record in the order in which they ended; of the first three the second was not through."""
    given: list[int] = []

    def play(self: Rollout, tasks: Iterable[int]) -> Iterator[Group]:
        for task in tasks:
            given.append(task)
            policy.requests += 10
            policy.failures += 1
            yield Group(str(task), [Episode(task, "task", "session", 1.0, "", 1, (), 0.1)], {})

    monkeypatch.setattr(Rollout, "play", play)
    options = make_options(episodes=10)
    _, count = options.load_environments("train")
    order = list(itertools.islice(order_tasks(count, options.seed), 5))
    record = Interactions(tmp_path / FILE_NAME)
    for task, requests in ((order[2], 10), (order[0], 20)):
        episodes = [{"task": task, "outcome": 1.0}]
        record.append({"episodes": episodes, "settled": {}, "requests": requests, "failed": 2})
    policy = GatewayPolicy("http://127.0.0.1:9")
    rows = list(play_episodes(tmp_path, options, policy))
    policy.close()
    assert given == [order[1], order[3], order[4]]
    assert [(row["requests"], row["failed"]) for row in rows] == [(30, 3), (40, 4), (50, 5)]


def test_a_reader_that_leaves_ends_the_wait_for_the_trainer(
    scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = itertools.count()

    def wait(self: Pace, is_stopped: Callable[[], bool]) -> None:
        while next(begun) and not is_stopped():
            time.sleep(0.01)

    monkeypatch.setattr(Pace, "wait", wait)
    policy = GatewayPolicy(scripted(make_obliging_script()).base_url, stream_share=0.0)
    ledger = Ledger.open(tmp_path / "ledger.db")
    rows = play_episodes(tmp_path, make_options(episodes=8), policy, ledger=ledger)
    assert next(rows)["index"] == 0
    rows.close()  # type: ignore[attr-defined]
    ledger.close()
    policy.close()


@pytest.mark.parametrize(
    ("settled", "outcome", "warned"),
    [
        ({"samples": 0, "constant": 0}, 1.0, True),
        ({"samples": 0, "constant": 2}, 1.0, False),
        ({"samples": 0, "constant": 0}, None, False),
        ({}, 1.0, False),
    ],
)
def test_a_run_that_makes_nothing_to_train_says_so_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    settled: dict[str, int],
    outcome: float | None,
    warned: bool,
) -> None:
    episode = Episode(0, "task", "session-7", outcome, "", 1, (), 0.1)
    groups = [Group(name, [episode], settled) for name in "ab"]
    monkeypatch.setattr(Rollout, "play", lambda self, tasks: iter(groups))
    policy = GatewayPolicy("http://127.0.0.1:9")
    rows = list(play_episodes(tmp_path, make_options(episodes=2), policy))
    policy.close()
    warnings = [record.getMessage() for record in caplog.records if "can be trained" in record.getMessage()]
    assert len(warnings) == warned and all("session-7" in warning for warning in warnings)
    run = PracticeRun(make_options(episodes=2), ServeSettings(run=str(tmp_path)), "http://127.0.0.1:9/v1")
    assert ("nothing to train" in run.describe_progress(rows)[2]) == warned


def test_the_order_of_tasks_is_the_seed_s() -> None:
    first = list(itertools.islice(order_tasks(5, 1), 15))
    assert first == list(itertools.islice(order_tasks(5, 1), 15)) != list(itertools.islice(order_tasks(5, 2), 15))
    assert all(sorted(first[start : start + 5]) == list(range(5)) for start in (0, 5, 10))


@pytest.mark.parametrize("name", sorted(BUILTIN_ENVIRONMENTS))
def test_every_setting_has_its_tasks(name: str) -> None:
    kind = get_environment(name)
    for split in ("train", "heldout"):
        everything = kind.read_tasks(SHIPPED / name, split)
        by_step = [kind.read_tasks(SHIPPED / name, split, step) for step in (1, 2, 3)]
        assert sum(map(len, by_step)) == len(everything)
    assert len(kind.read_tasks(SHIPPED / name, "train")) + len(everything) >= 60


def test_tasks_that_are_not_split_are(tmp_path: Path) -> None:
    kind, own = get_environment("swe"), tmp_path / "own.jsonl"
    rows = (SHIPPED / "swe" / "train.jsonl").read_text().splitlines(keepends=True)
    own.write_text("".join(rows[:11]))
    train, heldout = ({task.id for task in kind.read_tasks(own, split)} for split in ("train", "heldout"))
    assert (len(train), len(heldout)) == (9, 2) and not train & heldout
    own.write_text("".join(reversed(rows[:11])))
    assert heldout == {task.id for task in kind.read_tasks(own, "heldout")}, "whatever the order"
    own.write_text(rows[0])
    assert [len(kind.read_tasks(own, split)) for split in ("train", "heldout")] == [1, 1]


def test_what_is_held_out_is_so_at_every_difficulty(tmp_path: Path) -> None:
    kind, own = get_environment("swe"), tmp_path / "own.jsonl"
    own.write_text((SHIPPED / "swe" / "train.jsonl").read_text())
    heldout = {task.id for task in kind.read_tasks(own, "heldout")}
    by_step = [{task.id for task in kind.read_tasks(own, "heldout", step)} for step in (1, 2, 3)]
    assert set.union(*by_step) == heldout


def test_splits_may_be_parquet(tmp_path: Path) -> None:
    fields = {"problem_statement": "?", "test_patch": "", "FAIL_TO_PASS": "[]", "image_name": "x"}
    for split in SPLITS:
        rows = [{"instance_id": f"{split}-{number}", **fields} for number in range(3)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{split}.parquet")
    for split in SPLITS:
        ids = [task.id for task in get_environment("swe").read_tasks(tmp_path, split)]
        assert ids == [f"{split}-{number}" for number in range(3)]


@pytest.mark.parametrize("there", ["train.jsonl", "heldout.parquet", "train"])
@pytest.mark.parametrize("split", SPLITS)
def test_one_split_without_the_other_is_refused(tmp_path: Path, there: str, split: str) -> None:
    (tmp_path / there).mkdir()
    with pytest.raises(UserError, match=r"is split, but has no (train|heldout)\.jsonl"):
        get_environment("swe").read_tasks(tmp_path, split)


def test_what_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="terminal"):
        get_environment("kitchen")
    with pytest.raises(UserError, match="no such file or folder"):
        find_task_folder("nowhere", "terminal", SHIPPED)
    assert find_task_folder(None, "gui", SHIPPED) == SHIPPED / "gui"
    assert find_task_folder(str(tmp_path), "gui", SHIPPED) == tmp_path
    with pytest.raises(UserError):
        get_environment("toolcall").read_tasks(SHIPPED / "toolcall", "train", difficulty=9)
