"""Browsers shared by the environments of a process, and the servers of tasks' files.

A browser costs seconds and hundreds of megabytes; so all environments with the same wishes share one, and the last to
close takes it down. A page costs a process; so an environment keeps its own from scene to scene, emptied in between.
What has died is replaced when the next scene is set.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clawrl_trl.envs.base.agent import WorldBroken
from clawrl_trl.envs.gui.browser import Browser
from clawrl_trl.envs.gui.file_server import FileServer
from clawrl_trl.envs.gui.page import ProtocolError, WebPage
from clawrl_trl.envs.gui.screen import Size
from clawrl_trl.envs.gui.tasks import Scene, WebTask
from clawrl_trl.envs.gui.web_scene import WebScene
from clawrl_trl.errors import UserError

BACKENDS = ("playwright", "selenium")

_lock = threading.Lock()
_browsers: dict[bool, Browser] = {}
_users: dict[bool, int] = {}


class Stage:
    """An environment's hold on a browser and on the files of its tasks.

    Args:
        backend (`str`): `"playwright"` or `"selenium"`.
        headless (`bool`, *optional*, defaults to `True`): Whether the browser shows no window.

    Raises:
        UserError: If there is no such back end.
    """

    def __init__(self, backend: str, *, headless: bool = True) -> None:
        if backend not in BACKENDS:
            raise UserError(f"There is no screen back end {backend!r}; there are {' and '.join(BACKENDS)}.")
        self._backend = backend
        self._headless = headless
        self._holds = False
        self._kept: WebPage | None = None
        self._files: FileServer | None = None
        self._addresses: dict[Path, str] = {}

    def prepare(self, tasks: Sequence[Any]) -> None:
        """Start what the tasks need, so that what is missing is missed before the first of them.

        Raises:
            UserError: If something is not installed.
        """
        if any(isinstance(task, WebTask) for task in tasks):
            self._kept = self._page(next(task.size for task in tasks if isinstance(task, WebTask)))

    def play(self, task: Any) -> Scene:
        """Set a task's scene.

        Raises:
            WorldBroken: If it can't be set.
        """
        if isinstance(task, WebTask):
            return self._web_scene(task)
        scene: Callable[[], Scene] = task.play
        return scene()

    def close(self) -> None:
        """Let go of the browser and stop serving; idempotent."""
        self.discard()
        if self._holds:
            self._holds = False
            _let_go(self._headless)

    def _web_scene(self, task: WebTask) -> WebScene:
        page = self._page(task.size)
        if page.files is not self._files:
            self._files, self._addresses = page.files, {}
        if task.root not in self._addresses:
            self._addresses[task.root] = page.files.add(task.root)
        return WebScene(task, page, self._addresses[task.root])

    def _page(self, size: Size) -> WebPage:
        """An empty page: the last one, or a new one where that is spoilt."""
        if self._kept is not None:
            try:
                self._kept.renew()
            except (WorldBroken, ProtocolError):
                self.discard()
        if self._kept is None:
            self._kept = self._new_page(size)
        return self._kept

    def _new_page(self, size: Size) -> WebPage:
        if self._backend == "selenium":
            from clawrl_trl.envs.gui.browser_selenium import SeleniumPage

            return SeleniumPage(size, headless=self._headless)
        browser = _browser(self._headless, new_user=not self._holds)
        self._holds = True
        return browser.page(size)

    def discard(self) -> None:
        """Give the page up, as emptying it may not mend what is wrong with it; the next scene gets another."""
        page, self._kept = self._kept, None
        if page is not None:
            with contextlib.suppress(WorldBroken):  # it is spoilt, and goes with its browser
                page.close()


def _browser(headless: bool, *, new_user: bool) -> Browser:
    """The shared browser, started if there is none that lives."""
    with _lock:
        found = _browsers.get(headless)
        if found is None or not found.alive:
            if found is not None:
                found.close()
            _browsers.pop(headless, None)
            _browsers[headless] = Browser(headless=headless)
        if new_user:
            _users[headless] = _users.get(headless, 0) + 1
        return _browsers[headless]


def _let_go(headless: bool) -> None:
    with _lock:
        _users[headless] -= 1
        last = _browsers.pop(headless, None) if _users[headless] == 0 else None
    if last is not None:
        last.close()
