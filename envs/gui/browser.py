"""Chromium through Playwright, for environments that step from any thread.

Playwright objects are bound to the thread they were created on. So a browser has a thread of its own with an event
loop; callers submit coroutines to the loop and wait for a limited time. A caller has at most one under way, which
bounds the queue. Pages share the browser but nothing else: each has its own context, without cookies or storage of
another.
"""

import asyncio
import contextlib
import os
import shutil
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from clawrl_trl.envs.base.episode import WorldBroken
from clawrl_trl.envs.gui.devtools import ProtocolError
from clawrl_trl.envs.gui.file_server import FileServer
from clawrl_trl.envs.gui.page import FLAGS, MEMORY_MB, TIMEOUT, WebPage, build_network_flags
from clawrl_trl.envs.gui.screen import Point, ScreenError, Size
from clawrl_trl.envs.sandbox.resource_limits import MONITOR, RunningBrowser
from clawrl_trl.errors import UserError

if TYPE_CHECKING:
    from playwright.async_api import Browser as PlaywrightChromium
    from playwright.async_api import BrowserContext, CDPSession, Playwright
    from playwright.async_api import Page as PlaywrightRawPage

START_TIMEOUT = 120.0
"""Seconds a browser may take to start."""
NEW_TAB_TIMEOUT = 5.0
"""Seconds that a tab which the page opens may take to appear."""
GRACE = 5.0
"""Seconds that a caller waits longer than the loop, so that the loop's own time-out comes first."""
_EXECUTABLES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_INSTALL_HINT = "install one (apt-get install chromium, or playwright install chromium) or name it in CLAWRL_CHROMIUM"

R = TypeVar("R")


def find_chromium() -> str | None:
    """Find the Chromium to use: the one `CLAWRL_CHROMIUM` names, else the first on the path, else `None`.

    Raises:
        UserError: If `CLAWRL_CHROMIUM` names no file.
    """
    configured = os.environ.get("CLAWRL_CHROMIUM")
    if configured and not Path(configured).is_file():
        raise UserError(f"CLAWRL_CHROMIUM names no file: {configured}.")
    return configured or next((path for path in map(shutil.which, _EXECUTABLES) if path), None)


class Browser:
    """A Chromium with a thread of its own.

    Args:
        headless (`bool`, *optional*, defaults to `True`): Whether it shows no window.
        hosts (`Sequence[str]`, *optional*): Host names its pages may reach besides those of `files`.

    Attributes:
        files ([`FileServer`]): The only server that its pages can reach.

    Raises:
        UserError: If Playwright or Chromium is missing.
    """

    def __init__(self, *, headless: bool = True, hosts: Sequence[str] = ()) -> None:
        try:
            import playwright.async_api
        except ImportError:
            raise UserError('GUI environments need Playwright: pip install "clawrl-trl[envs]".') from None
        self._error = playwright.async_api.Error
        self._start_playwright = playwright.async_api.async_playwright
        self.files = FileServer()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="browser", daemon=True)
        self._thread.start()
        self._end_reason = ""
        self._pid = 0
        self._playwright: Playwright | None = None
        self._chromium: PlaywrightChromium | None = None
        try:
            self.call(self._start(headless, hosts), START_TIMEOUT)
        except BaseException:  # an interrupt too: else the thread and the browser's process would stay
            self.close()
            raise

    @property
    def is_alive(self) -> bool:
        """True if it can still open pages."""
        return self._chromium is not None and self._chromium.is_connected()

    def call(self, work: Coroutine[Any, Any, R], timeout: float = TIMEOUT) -> R:
        """Run `work` on the browser's thread and return its result.

        Raises:
            WorldBroken: If it takes longer than `timeout` seconds, or the browser is gone.
        """
        if not self._thread.is_alive():
            work.close()
            raise WorldBroken("the browser is closed")
        # Limited in the loop too, which ends the work: given up by the caller alone, it would go on.
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout), self._loop)
        try:
            return future.result(timeout + GRACE)
        except TimeoutError:
            future.cancel()
            # For a page whose process was ended nothing answers: then the reason is the memory, not the time.
            end_reason, self._end_reason = self._end_reason, ""
            raise WorldBroken(end_reason or f"the browser did not answer in {timeout:g} s") from None
        except self._error as error:
            raise WorldBroken(self._explain(error.message)) from error

    def _explain(self, message: str) -> str:
        """Return what an error message of the browser means; a crash may be a process ended for its memory."""
        if "crash" not in message:
            return f"the browser: {message.splitlines()[0]}"
        end_reason, self._end_reason = self._end_reason, ""
        return end_reason or "the page crashed"

    def _record_end_reason(self, reason: str) -> None:
        self._end_reason = reason

    def open_page(self, size: Size) -> "PlaywrightPage":
        """Open an empty page of `size` pixels in a context of its own."""
        return PlaywrightPage(self, size)

    def close(self) -> None:
        """Close it, with its pages and its thread; idempotent."""
        # Before it ends: its process id may be given to another program.
        MONITOR.remove(self._pid)
        if self._thread.is_alive():
            try:
                self.call(self._stop())
            except WorldBroken:  # it has ended already, or ends when its driver's pipe is closed
                pass
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(TIMEOUT)
                self.files.close()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _start(self, headless: bool, hosts: Sequence[str]) -> None:
        self._playwright = await self._start_playwright().start()
        try:
            self._chromium = await self._playwright.chromium.launch(
                executable_path=find_chromium(),
                headless=headless,
                # Chromium refuses to run as root within its own sandbox.
                chromium_sandbox=os.geteuid() != 0,
                args=[*FLAGS, *build_network_flags(self.files.port, hosts)],
            )
        except self._error as error:
            raise UserError(f"Chromium does not start ({error.message.splitlines()[0]}): {_INSTALL_HINT}.") from None
        # Playwright does not tell the process; the browser itself does.
        session = await self._chromium.new_browser_cdp_session()
        processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
        self._pid = next(process["id"] for process in processes if process["type"] == "browser")
        MONITOR.add(RunningBrowser(self._pid, MEMORY_MB, self._record_end_reason))

    async def _stop(self) -> None:
        try:
            if self._chromium is not None:
                await self._chromium.close()
        finally:
            if self._playwright is not None:
                await self._playwright.stop()

    async def _open_context(self, size: Size) -> "BrowserContext":
        if self._chromium is None:
            raise WorldBroken("the browser has not started")
        return await self._chromium.new_context(viewport={"width": size[0], "height": size[1]})


class PlaywrightPage(WebPage):
    """A page of a [`Browser`]."""

    def __init__(self, browser: Browser, size: Size) -> None:
        super().__init__(size, browser.files)
        self._browser = browser
        self._context: BrowserContext | None = None
        self._announced = 0
        self._tabs = 0
        self._arrived = asyncio.Event()
        self._session: CDPSession
        self._page: PlaywrightRawPage
        browser.call(self._open())

    def send(self, method: str, **parameters: Any) -> Any:
        return self._browser.call(self._send(method, parameters))

    def open(self, url: str) -> None:
        async def go() -> None:
            await self._page.goto(url, timeout=TIMEOUT * 1000, wait_until="load")

        self._browser.call(go(), TIMEOUT + 1)
        self.settle()

    def move(self, point: Point) -> None:
        self.cursor = point
        self._browser.call(self._page.mouse.move(*point))

    def click(self, point: Point, button: str, count: int) -> None:
        self.cursor = point
        self._perform(self._page.mouse.click(*point, button=button, click_count=count))

    def drag(self, point: Point) -> None:
        async def drag() -> None:
            mouse = self._page.mouse
            await mouse.down()
            # JavaScript libraries for dragging need several movements; a jump is no drag to them.
            await mouse.move(*point, steps=8)
            await mouse.up()

        self.cursor = point
        self._perform(drag())

    def scroll(self, point: Point, right: int, down: int) -> None:
        async def scroll() -> None:
            await self._page.mouse.move(*point)
            await self._page.mouse.wheel(right, down)

        self.cursor = point
        self._perform(scroll())

    def press(self, keys: Sequence[str]) -> None:
        async def press() -> None:
            try:
                await self._page.keyboard.press("+".join(keys))
            except self._browser._error:
                if self._page.is_closed() or not self._browser.is_alive:
                    raise
                await self._release(keys)
                raise ScreenError(f"this keyboard can't press {' + '.join(keys)}") from None

        self._perform(press())

    def type(self, text: str) -> None:
        self._perform(self._page.keyboard.type(text))

    def close(self) -> None:
        context, self._context = self._context, None
        if context is not None and self._browser.is_alive:
            self._browser.call(context.close())

    def _perform(self, work: Coroutine[Any, Any, Any]) -> None:
        self._browser.call(work)
        self.settle()

    async def _release(self, keys: Sequence[str]) -> None:
        """Release keys: Playwright leaves those pressed that come before one it does not know."""
        for key in keys:
            with contextlib.suppress(self._browser._error):
                await self._page.keyboard.up(key)

    async def _open(self) -> None:
        self._context = await self._browser._open_context(self.size)
        await self._attach(await self._context.new_page())
        self._context.on("page", self._record_tab)

    async def _attach(self, page: "PlaywrightRawPage") -> None:
        self._page = page
        self._session = await page.context.new_cdp_session(page)
        # The browser announces a tab at once; without this one that is slow to appear would be overlooked.
        self._session.on("Page.windowOpen", self._record_announced_tab)
        for domain in ("Page", "Accessibility"):
            await self._session.send(f"{domain}.enable")

    def _record_announced_tab(self, _: Any) -> None:
        self._announced += 1

    def _record_tab(self, _: Any) -> None:
        self._tabs += 1
        self._arrived.set()

    def _close_other_tabs(self) -> None:
        self._browser.call(self._attach_first_tab())

    def _follow_newest_tab(self) -> bool:
        return self._browser.call(self._attach_newest_tab())

    async def _attach_first_tab(self) -> None:
        pages = self._page.context.pages
        if not pages:
            raise WorldBroken("the page has closed itself")
        first, *others = pages
        for page in others:
            await page.close()
        if first is not self._page:
            # Their ids belong to the session of the tab that was closed.
            self._scripts.clear()
            await self._attach(first)

    async def _attach_newest_tab(self) -> bool:
        # A tab is announced before it exists, and one that is blocked never comes.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NEW_TAB_TIMEOUT):
                while self._tabs < self._announced:
                    self._arrived.clear()
                    await self._arrived.wait()
        self._announced = self._tabs
        pages = [page for page in self._page.context.pages if not page.is_closed()]
        if not pages:
            raise WorldBroken("the page has closed itself")
        if pages[-1] is self._page:
            return False
        await self._attach(pages[-1])
        await self._page.wait_for_load_state(timeout=TIMEOUT * 1000)
        return True

    async def _send(self, method: str, parameters: dict[str, Any]) -> Any:
        try:
            return await self._session.send(method, parameters)
        except self._browser._error as error:
            if self._page.is_closed() or not self._browser.is_alive or "crash" in error.message:
                raise
            if self._browser._end_reason:
                raise WorldBroken(self._browser._explain("crash")) from None
            raise ProtocolError(error.message) from None
