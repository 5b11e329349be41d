"""Web task under way: a page of a browser, the server of its files, and the task's checks."""

from collections.abc import Sequence

from clawrl_trl.envs.base.episode import WorldBroken
from clawrl_trl.envs.gui.devtools import ProtocolError
from clawrl_trl.envs.gui.page import WebPage
from clawrl_trl.envs.gui.tasks import WebTask

_WAIT_UNTIL_READY = """new Promise((done, fail) => {
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
            screen.evaluate_isolated("1")  # on the empty page, so that the names it reads are the browser's alone
            # Before the page is opened: its scripts read the constant while they load.
            screen.define_constant("TASK", dict(task.data))
            screen.open(address + task.page)
            if task.setup:
                screen.evaluate(f"(() => {{ {task.setup} }})()")
            if task.ready:
                screen.evaluate(_WAIT_UNTIL_READY % task.ready)
            screen.settle()
            self.instruction = task.instruction or str(screen.evaluate(task.ask))
        except ProtocolError as error:
            raise WorldBroken(f"the page of {task.id} does not start: {error}") from None

    def measure_progress(self) -> float:
        results = self._evaluate_conditions(self.task.checks)
        return sum(results) / max(1, len(results))

    def has_ended(self) -> bool:
        return bool(self.task.ends) and self._evaluate_conditions([self.task.ends])[0]

    def compute_outcome(self) -> float:
        if not self.task.outcome:
            return 1.0 if self.measure_progress() == 1.0 else -1.0
        try:
            return float(self.screen.evaluate_isolated(self.task.outcome))
        except (ProtocolError, TypeError, ValueError) as error:
            raise WorldBroken(f"the outcome of {self.task.id} can't be told: {error}") from None

    def close(self) -> None:
        return

    def _evaluate_conditions(self, conditions: Sequence[str]) -> list[bool]:
        """Evaluate conditions on the page; one that throws (the page has moved on) does not hold."""
        return [self._holds(condition) for condition in conditions]

    def _holds(self, condition: str) -> bool:
        try:
            # `true` itself: a page could make an object that merely counts as true.
            return self.screen.evaluate_isolated(condition) is True
        except ProtocolError:
            return False
