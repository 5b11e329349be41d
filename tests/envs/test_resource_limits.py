"""The monitor of sandboxed commands: how often it looks."""

import threading
from types import SimpleNamespace

import pytest

from clawrl_trl.envs.sandbox import resource_limits
from clawrl_trl.envs.sandbox.limits import Limits
from clawrl_trl.envs.sandbox.resource_limits import REST_RATIO, ResourceMonitor, RunningCommand


@pytest.mark.parametrize("computed", [0.0, 2.0])
def test_it_rests_for_what_it_computed_and_not_for_what_it_waited(
    monkeypatch: pytest.MonkeyPatch, computed: float
) -> None:
    """A hundred seconds go by at each look at the clock, as on a machine that is busy with the command itself."""
    clock = {"monotonic": 0.0, "thread_time": 0.0}
    slept: list[float] = []
    looks = threading.Semaphore(0)

    def tick(name: str, seconds: float) -> float:
        clock[name] += seconds
        return clock[name]

    def look(command: RunningCommand) -> str:
        looks.release()
        monitor.remove(command.pid)
        return ""

    fake = SimpleNamespace(
        monotonic=lambda: tick("monotonic", 100.0),
        thread_time=lambda: tick("thread_time", computed),
        sleep=slept.append,
    )
    monkeypatch.setattr(resource_limits, "time", fake)
    monkeypatch.setattr(resource_limits, "find_excess", look)
    others = threading.enumerate()
    monitor = ResourceMonitor()
    monitor.add(RunningCommand(1, (), Limits(), lambda reason: None))
    threads = [thread for thread in threading.enumerate() if thread not in others]
    assert looks.acquire(timeout=30)
    for thread in threads:
        thread.join(30)
    assert slept == [REST_RATIO * computed, 0.0]
