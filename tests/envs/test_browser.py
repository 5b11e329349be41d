"""The browser that environments share: who starts it, who ends it, and what remains."""

import os
import signal
import threading
from pathlib import Path

import psutil
import pytest
import torch
from child_processes import living_children

from clawrl_trl.envs.base.agent import WorldBroken
from clawrl_trl.envs.gui.browser import Browser
from clawrl_trl.envs.gui.browser_pool import BACKENDS
from clawrl_trl.envs.gui.env import Backend, GUIEnv
from clawrl_trl.envs.gui.oracle import step_with_calls
from clawrl_trl.envs.gui.tasks import read_tasks
from clawrl_trl.errors import UserError

pytestmark = pytest.mark.browser

TASKS = read_tasks(Path(__file__).parents[2] / "examples" / "tasks" / "gui" / "heldout.jsonl", difficulty=1)


def list_own_processes() -> list[psutil.Process]:
    """Living processes that this one started, but for the browser's own children."""
    return living_children(without="--type=")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_dead_browser_is_dropped_and_replaced(backend: Backend) -> None:
    before = {process.pid for process in list_own_processes()}
    env = GUIEnv(TASKS, backend=backend)
    try:
        state = env.reset()
        (chromium,) = (process for process in list_own_processes() if process.name() in ("chromium", "chrome"))
        os.kill(chromium.pid, signal.SIGKILL)
        state = step_with_calls(env, state, {"action": "left_click", "ref": 1})
        assert state["dropped"] and torch.isnan(state["reward"]).all()
        assert not env.reset()["dropped"]
    finally:
        env.close()
    assert not [
        process for process in list_own_processes() if process.pid not in before and "crashpad" not in process.name()
    ]


def test_nothing_is_left_when_the_last_environment_closes() -> None:
    threads = set(threading.enumerate())
    before = {process.pid for process in list_own_processes()}
    first, second = GUIEnv(TASKS), GUIEnv(TASKS)
    first.reset(), second.reset()
    started = [process for process in list_own_processes() if process.pid not in before]
    first.close()
    assert started and not second.reset()["dropped"]
    second.close()
    second.close()
    psutil.wait_procs(started, timeout=30)
    assert not [process for process in list_own_processes() if process.pid not in before]
    remaining = set(threading.enumerate()) - threads
    for thread in remaining:
        thread.join(30)  # asyncio has a thread for each child, which ends a moment after the child
    assert not [thread for thread in remaining if thread.is_alive()]


def test_it_is_asked_from_many_threads_and_does_not_wait_for_ever() -> None:
    browser = Browser()
    try:
        pages = [browser.open_page((40, 30)) for _ in range(2)]
        answers: list[object] = []
        threads = [
            threading.Thread(target=lambda page=page, n=n: answers.append(page.evaluate(f"{n} + 1")))
            for n in range(4)
            for page in pages
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(answers) == [1, 1, 2, 2, 3, 3, 4, 4]
        with pytest.raises(WorldBroken, match="did not answer"):
            browser.call(pages[0]._send("Runtime.evaluate", {"expression": "for (;;);"}), 0.5)
        assert pages[1].evaluate("1") == 1
    finally:
        browser.close()
    with pytest.raises(WorldBroken, match="closed"):
        pages[1].evaluate("1")


def test_a_missing_chromium_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLAWRL_CHROMIUM", str(tmp_path / "nothing"))
    with pytest.raises(UserError, match="CLAWRL_CHROMIUM names no file"):
        Browser()
    monkeypatch.setenv("CLAWRL_CHROMIUM", "/bin/false")
    with pytest.raises(UserError, match="Chromium does not start"):
        Browser()
