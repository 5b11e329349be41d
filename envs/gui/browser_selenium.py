"""Chromium through Selenium, where Playwright is not available.

A driver is an HTTP client of a process of its own, so it is bound to no thread. Each environment has its own, with its
own Chromium.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

from clawrl_trl.envs.base.episode import WorldBroken
from clawrl_trl.envs.gui.browser import find_chromium
from clawrl_trl.envs.gui.devtools import ProtocolError
from clawrl_trl.envs.gui.file_server import FileServer
from clawrl_trl.envs.gui.page import FLAGS, MEMORY_MB, TIMEOUT, WebPage, build_network_flags
from clawrl_trl.envs.gui.screen import Point, Size
from clawrl_trl.envs.sandbox.resource_limits import MONITOR, RunningBrowser
from clawrl_trl.errors import UserError

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

R = TypeVar("R")

_BUTTON_BITS = {"none": 0, "left": 1, "right": 2, "middle": 4}
"""A button's bit in the protocol's set of pressed buttons."""
_GONE = re.compile(r"disconnected|crashed|closed|no such window|invalid session|not reachable|target frame", re.I)
DRAG_STEPS = 8
QUIT = 2
"""Seconds to wait for each answer of the driver while the browser ends."""


class SeleniumPage(WebPage):
    """A page with a Chromium of its own.

    Args:
        size (`tuple[int, int]`): Width and height of the view in pixels.
        headless (`bool`, *optional*, defaults to `True`): Whether it shows no window.
        hosts (`Sequence[str]`, *optional*): Host names it may reach besides those of `files`.

    Raises:
        UserError: If Selenium, Chromium or its driver is missing.
    """

    def __init__(self, size: Size, *, headless: bool = True, hosts: Sequence[str] = ()) -> None:
        try:
            from selenium import webdriver
            from selenium.common.exceptions import WebDriverException
            from selenium.webdriver.chrome.service import Service
        except ImportError:
            raise UserError('The Selenium back end needs Selenium: pip install "clawrl-trl[envs]".') from None
        driver, browser = shutil.which("chromedriver"), find_chromium()
        if driver is None or browser is None:
            raise UserError("Selenium needs Chromium and its driver: apt-get install chromium chromium-driver.")
        super().__init__(size, FileServer())
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        # As long as a dialog is open the driver refuses every other command.
        options.unhandled_prompt_behavior = "dismiss"
        # Chromium refuses to run as root within its own sandbox.
        unsandboxed = ["--no-sandbox"] if os.geteuid() == 0 else []
        for flag in [
            *FLAGS,
            *build_network_flags(self.files.port, hosts),
            *unsandboxed,
            *(["--headless=new"] if headless else []),
        ]:
            options.add_argument(flag)
        self._error = WebDriverException
        self._end_reason = ""
        self._driver: WebDriver | None = None
        try:
            self._driver = webdriver.Chrome(options=options, service=Service(driver))
        except WebDriverException as error:
            self.files.close()
            raise UserError(f"Chromium does not start: {(error.msg or '').splitlines()[0]}.") from None
        try:
            self._prepare(self._driver)
        except BaseException:
            self.close()
            raise

    def send(self, method: str, **parameters: Any) -> Any:
        return self._call(lambda driver: driver.execute_cdp_cmd(method, parameters))

    def open(self, url: str) -> None:
        self._call(lambda driver: driver.get(url))
        self.settle()

    def move(self, point: Point) -> None:
        self._send_mouse("mouseMoved", point)
        self.settle()

    def click(self, point: Point, button: str, count: int) -> None:
        self._send_mouse("mouseMoved", point)
        # The protocol makes a double click of two clicks that count themselves.
        for number in range(1, count + 1):
            self._send_mouse("mousePressed", point, button=button, clickCount=number)
            self._send_mouse("mouseReleased", point, button=button, clickCount=number)
        self.settle()

    def drag(self, point: Point) -> None:
        start = self.cursor
        self._send_mouse("mousePressed", start, button="left", clickCount=1)
        # In steps: JavaScript libraries take a jump for no drag.
        for step in range(1, DRAG_STEPS + 1):
            x, y = (round(a + (b - a) * step / DRAG_STEPS) for a, b in zip(start, point, strict=True))
            self._send_mouse("mouseMoved", (x, y), button="left")
        self._send_mouse("mouseReleased", point, button="left", clickCount=1)
        self.settle()

    def scroll(self, point: Point, right: int, down: int) -> None:
        self._send_mouse("mouseWheel", point, deltaX=right, deltaY=down)
        self.settle()

    def _send_mouse(self, kind: str, point: Point, *, button: str = "none", **parameters: Any) -> None:
        """Send a mouse event by the DevTools protocol.

        The driver's own actions run scripts in the page's world, which fail on a page that overrides built-in
        functions.
        """
        self.cursor = point
        pressed = _BUTTON_BITS[button] if kind != "mouseReleased" else 0
        x, y = point
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=pressed, **parameters)

    def press(self, keys: Sequence[str]) -> None:
        def press(actions: "ActionBuilder") -> None:
            for key in keys:
                actions.key_action.key_down(_to_selenium_key(key))
            # In reverse, as fingers do: modifiers are held until the key they modify is up.
            for key in reversed(keys):
                actions.key_action.key_up(_to_selenium_key(key))

        self._perform(press)

    def type(self, text: str) -> None:
        self._perform(lambda actions: actions.key_action.send_keys([_to_selenium_key(key) for key in text]))

    def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is None:
            return
        self.files.close()
        process = driver.service.process
        if process is not None:
            MONITOR.remove(process.pid)
        alive = process is not None and process.poll() is None
        # Listed before the driver quits: children of a browser that hangs would have no parent to be found by.
        children = psutil.Process(process.pid).children(recursive=True) if alive else []
        driver.command_executor.client_config.timeout = QUIT
        with contextlib.suppress(Exception):  # what does not end by itself is killed below
            driver.quit()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        if process is not None and process.poll() is None:
            process.kill()
            process.wait(TIMEOUT)

    def _record_end_reason(self, reason: str) -> None:
        self._end_reason = reason

    def _prepare(self, driver: "WebDriver") -> None:
        assert driver.service.process is not None
        MONITOR.add(RunningBrowser(driver.service.process.pid, MEMORY_MB, self._record_end_reason))
        config = driver.command_executor.client_config
        config.timeout = int(TIMEOUT)
        # The driver's own limit is five minutes.
        driver.set_page_load_timeout(TIMEOUT)
        self._first = driver.current_window_handle
        self._activate_tab(driver, self._first)

    def _activate_tab(self, driver: "WebDriver", handle: str) -> None:
        driver.switch_to.window(handle)
        width, height = self.size
        # At a scale of 1 a pixel of the screenshot is one of the page, as the coordinates of gestures are.
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        for domain in ("Page", "Accessibility"):
            driver.execute_cdp_cmd(f"{domain}.enable", {})

    def _follow_newest_tab(self) -> bool:
        return self._call(self._activate_newest_tab)

    def _close_other_tabs(self) -> None:
        self._call(self._activate_first_tab)

    def _activate_newest_tab(self, driver: "WebDriver") -> bool:
        handles = driver.window_handles
        if not handles:
            raise WorldBroken("the page has closed itself")
        newest = next((handle for handle in reversed(handles) if handle != self._first), self._first)
        try:
            current = driver.current_window_handle
        except self._error:  # the present tab has closed itself
            current = ""
        if newest == current:
            return False
        self._activate_tab(driver, newest)
        return True

    def _activate_first_tab(self, driver: "WebDriver") -> None:
        for handle in driver.window_handles:
            if handle != self._first:
                driver.switch_to.window(handle)
                driver.close()
        driver.switch_to.window(self._first)

    def _perform(self, fill: Callable[["ActionBuilder"], Any]) -> None:
        """Perform the actions that `fill` adds to a chain."""
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        def perform(driver: "WebDriver") -> None:
            actions = ActionBuilder(driver, duration=0)
            fill(actions)
            actions.perform()

        self._call(perform)
        self.settle()

    def _call(self, work: Callable[["WebDriver"], R]) -> R:
        from urllib3.exceptions import HTTPError

        if self._driver is None:
            raise WorldBroken("the browser is closed")
        try:
            return work(self._driver)
        except HTTPError as error:
            raise WorldBroken(f"the browser does not answer: {type(error).__name__}") from None
        except self._error as error:
            message = (error.msg or type(error).__name__).splitlines()[0]
            if _GONE.search(message) or self._end_reason:
                end_reason, self._end_reason = self._end_reason, ""
                raise WorldBroken(end_reason or f"the browser: {message}") from None
            raise ProtocolError(message) from None


def _to_selenium_key(name: str) -> str:
    """Translate a DOM name of a key, or a character, into Selenium's."""
    from selenium.webdriver.common.keys import Keys

    constant = {"\n": "ENTER", "\t": "TAB"}.get(name) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
    return name if len(name) == 1 and name not in "\n\t" else str(getattr(Keys, constant))
