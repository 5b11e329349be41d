"""The Selenium back end does what the Playwright one does."""

from pathlib import Path

import pytest

from clawrl_trl.envs.gui.env import GUIEnv
from clawrl_trl.envs.gui.oracle import solve
from clawrl_trl.envs.gui.tasks import read_tasks

pytestmark = pytest.mark.browser

SHIPPED = Path(__file__).parents[2] / "examples" / "tasks" / "gui"
KINDS = read_tasks(SHIPPED / "train.jsonl")[4::5] + read_tasks(SHIPPED / "folders")
ONE_OF_EACH = list({task.page: task for task in KINDS}.values())


def test_oracles_solve_a_task_on_each_page() -> None:
    env = GUIEnv(ONE_OF_EACH, backend="selenium")
    try:
        for task in ONE_OF_EACH:
            state = env.reset()
            assert state["screenshot"].shape == (3, 240, 320)
            assert solve(env, state)["reward"].item() == 1.0, task.id
    finally:
        env.close()
