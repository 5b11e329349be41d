"""A web task under way: a page of a browser, the server of its files, and what its checks say."""

from collections.abc import Sequence

from clawrl_trl.envs.base.agent import WorldBroken
from clawrl_trl.envs.gui.page import ProtocolError, WebPage
from clawrl_trl.envs.gui.tasks import WebTask

_READY = """new Promise((done, fail) => {
  const until = performance.now() + 10000;
  const look = () => (%s) ? done(true)
    : performance.now() > until ? fail(new Error("the page is not ready"))
    : setTimeout(look, 20);
  look();
})"""


class WebScene:
    """A web task on a page.

    Args:
        task ([`WebTask`]): The task.
        screen ([`WebPage`]): An empty page, which stays the caller's.
        address (`str`): Where the task's root is served.

    Raises:
        WorldBroken: If the page does not load as the task says.
    """

    def __init__(self, task: WebTask, screen: WebPage, address: str) -> None:
        self.task = task
        self.screen = screen
        try:
            screen.read("1")  # while the page is empty, what it names is the browser's
            screen.provide("TASK", dict(task.data))
            screen.open(address + task.page)
            if task.setup:
                screen.evaluate(f"(() => {{ {task.setup} }})()")
            if task.ready:
                screen.evaluate(_READY % task.ready)
            screen.settle()
            self.instruction = task.instruction or str(screen.evaluate(task.ask))
        except ProtocolError as error:
            raise WorldBroken(f"the page of {task.id} does not start: {error}") from None

    def progress(self) -> float:
        held = self._hold(self.task.checks)
        return sum(held) / max(1, len(held))

    def over(self) -> bool:
        return bool(self.task.ends) and self._hold([self.task.ends])[0]

    def outcome(self) -> float:
        if not self.task.outcome:
            return 1.0 if self.progress() == 1.0 else -1.0
        try:
            return float(self.screen.read(self.task.outcome))
        except (ProtocolError, TypeError, ValueError) as error:
            raise WorldBroken(f"the outcome of {self.task.id} can't be told: {error}") from None

    def close(self) -> None:
        return

    def _hold(self, conditions: Sequence[str]) -> list[bool]:
        """Evaluate conditions on the page; one that throws (the page has moved on) does not hold."""
        return [self._holds(condition) for condition in conditions]

    def _holds(self, condition: str) -> bool:
        try:
            return self.screen.read(condition) is True
        except ProtocolError:
            return False
