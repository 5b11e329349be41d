"""Browsers shared by the environments of a process, and the servers of tasks' files.

A browser costs seconds and hundreds of megabytes, so all environments with the same settings share one, and the last
to close ends it. A page costs a process, so an environment keeps its own from scene to scene, reset in between. A
browser or page that has died is replaced when the next scene is opened.
"""

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from clawrl_trl.envs.base.episode import WorldBroken
from clawrl_trl.envs.gui.browser import Browser
from clawrl_trl.envs.gui.devtools import ProtocolError
from clawrl_trl.envs.gui.file_server import FileServer
from clawrl_trl.envs.gui.page import WebPage
from clawrl_trl.envs.gui.screen import Size
from clawrl_trl.envs.gui.tasks import Scene, WebTask, WindowTask
from clawrl_trl.envs.gui.web_scene import WebScene
from clawrl_trl.errors import UserError

BACKENDS = ("playwright", "selenium")

_lock = threading.Lock()
_browsers: dict[bool, Browser] = {}
_users: dict[bool, int] = {}


class BrowserLease:
    """An environment's lease of a shared browser, with a page of its own and the addresses of its tasks' files.

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
        self._has_browser = False
        self._page: WebPage | None = None
        self._files: FileServer | None = None
        self._addresses: dict[Path, str] = {}

    def prepare(self, tasks: Sequence[object]) -> None:
        """Start what the tasks need, so that a missing program is reported before the first of them.

        Raises:
            UserError: If something is not installed.
        """
        if any(isinstance(task, WebTask) for task in tasks):
            self._page = self._take_page(next(task.size for task in tasks if isinstance(task, WebTask)))

    def open_scene(self, task: object) -> Scene:
        """Open a task's scene: on the leased page, or in a window of its own.

        Raises:
            WorldBroken: If it can't be opened.
        """
        if isinstance(task, WebTask):
            return self._open_web_scene(task)
        return cast(WindowTask, task).open_scene()

    def close(self) -> None:
        """Close the page and release the browser; idempotent."""
        self.discard_page()
        if self._has_browser:
            self._has_browser = False
            _release_browser(self._headless)

    def _open_web_scene(self, task: WebTask) -> WebScene:
        page = self._take_page(task.size)
        # Another browser came in place of one that died, with a server of its own.
        if page.files is not self._files:
            self._files, self._addresses = page.files, {}
        if task.root not in self._addresses:
            self._addresses[task.root] = page.files.add(task.root)
        return WebScene(task, page, self._addresses[task.root])

    def _take_page(self, size: Size) -> WebPage:
        """Take an empty page: the last one, or a new one where that can't be reset."""
        if self._page is not None:
            try:
                self._page.reset()
            except (WorldBroken, ProtocolError):
                self.discard_page()
        if self._page is None:
            self._page = self._open_page(size)
        return self._page

    def _open_page(self, size: Size) -> WebPage:
        if self._backend == "selenium":
            from clawrl_trl.envs.gui.browser_selenium import SeleniumPage

            return SeleniumPage(size, headless=self._headless)
        browser = _acquire_browser(self._headless, new_user=not self._has_browser)
        self._has_browser = True
        return browser.open_page(size)

    def discard_page(self) -> None:
        """Close the page, where a reset may not repair what is wrong with it; the next scene gets another."""
        page, self._page = self._page, None
        if page is not None:
            with contextlib.suppress(WorldBroken):  # it can't be closed alone, and ends with its browser
                page.close()


def _acquire_browser(headless: bool, *, new_user: bool) -> Browser:
    """Return the shared browser, started if none is alive."""
    with _lock:
        browser = _browsers.get(headless)
        if browser is None or not browser.is_alive:
            if browser is not None:
                browser.close()
            # Should the start fail, the dead one must not be found again.
            _browsers.pop(headless, None)
            _browsers[headless] = Browser(headless=headless)
        if new_user:
            _users[headless] = _users.get(headless, 0) + 1
        return _browsers[headless]


def _release_browser(headless: bool) -> None:
    with _lock:
        _users[headless] -= 1
        last = _browsers.pop(headless, None) if _users[headless] == 0 else None
    if last is not None:
        last.close()
