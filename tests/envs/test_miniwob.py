"""MiniWoB++ in the GUI environment: every task loads, and many are solved from the outline alone."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from clawrl_trl.envs.gui.env import GUIEnv
from clawrl_trl.envs.gui.miniwob_oracles import ORACLES
from clawrl_trl.envs.gui.miniwob_tasks import FLIGHT_SIZE, SIZE, miniwob_names, miniwob_tasks
from clawrl_trl.envs.gui.oracle import solve, step_with_calls
from clawrl_trl.errors import UserError

FLIGHTS = [name for name in miniwob_names() if name.startswith("flight.")]


def test_every_registered_task_is_known() -> None:
    spec = find_spec("miniwob")
    assert spec is not None and spec.origin is not None
    registered = re.findall(r'id="miniwob/(.*)-v\d+"', (Path(spec.origin).parent / "registration.py").read_text())
    assert len(registered) > 100 and set(registered) <= set(miniwob_names())


def test_an_unknown_task_is_told() -> None:
    with pytest.raises(UserError, match="no task 'fly'"):
        miniwob_tasks(["fly"])


@pytest.mark.browser
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("names", "size"), [(None, SIZE), (FLIGHTS, FLIGHT_SIZE)], ids=["all", "flights"])
def test_every_task_loads_and_resets(names: list[str] | None, size: tuple[int, int]) -> None:
    tasks = miniwob_tasks(names)
    env = GUIEnv(tasks)
    try:
        for task in tasks:
            state = env.reset()
            assert not state["dropped"], (task.id, state["reason"])
            assert env.scene is not None and env.scene.instruction.strip(), task.id
            assert state["screenshot"].shape == (3, size[1], size[0])
            assert state["screenshot"].float().std() > 5, f"{task.id} shows nothing"
            assert state["progress"].item() == 0.0 and "START" not in state["outline"], task.id
    finally:
        env.close()


@pytest.mark.browser
@pytest.mark.timeout(1200)
def test_oracles_solve_tasks_through_the_environments_actions() -> None:
    assert len(ORACLES) >= 25
    tasks = miniwob_tasks(sorted(ORACLES), seeds=[1])
    env = GUIEnv(tasks)
    try:
        for task in tasks:
            state = solve(env, env.reset(), ORACLES[task.id.removesuffix("-1")])
            assert state["reward"].item() == 1.0 and state["terminated"] and not state["dropped"], task.id
    finally:
        env.close()


@pytest.mark.browser
def test_a_seed_makes_the_problem_and_giving_up_loses_it() -> None:
    env = GUIEnv(miniwob_tasks(["click-button"], seeds=[1, 1, 2]))
    try:
        outlines = []
        for _ in range(3):
            state = env.reset()
            outlines.append(state["message"])
            assert step_with_calls(env, state, {"action": "terminate"})["reward"].item() == -1.0
        assert outlines[0] == outlines[1] != outlines[2]
    finally:
        env.close()
