"""Native windows as screens: a program in a sandbox, on an X server of its own, without a monitor.

The program sees its work folder and the server's socket, so that what a policy makes it do has no effect elsewhere.
The server (Xvfb) picks a free display itself and ends with its screen. Mouse and keyboard are xdotool's; the outline
is the tree of windows, as X11 knows no more of a program. A program may grab the server, which then answers no other
client, so every request has a time limit.
"""

import contextlib
import io
import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from clawrl_trl.envs.base.episode import WorldBroken
from clawrl_trl.envs.gui.screen import Element, Point, ScreenError, Size
from clawrl_trl.envs.sandbox.sandbox import Bind, Limits, Sandbox
from clawrl_trl.errors import UserError

TIMEOUT = 20.0
"""Seconds that a request to the server may take."""
SETTLE_PERIOD = 0.05
"""Seconds between two pictures of the screen, which has settled when they are equal."""
MAX_SETTLE = 2.0
"""Seconds after which a screen that never settles is taken as it is."""

# The program's pipes are read by nobody: it would block once they are full.
_MUTE = ("sh", "-c", 'exec "$0" "$@" </dev/null >/dev/null 2>&1')
_BUTTONS = {"left": "1", "middle": "2", "right": "3"}
_WHEEL_STEP = 50
_KEYSYMS = {
    "ArrowUp": "Up",
    "ArrowDown": "Down",
    "ArrowLeft": "Left",
    "ArrowRight": "Right",
    "Backspace": "BackSpace",
    "Control": "ctrl",
    "Enter": "Return",
    "Meta": "super",
    "PageDown": "Next",
    "PageUp": "Prior",
    "Shift": "shift",
    "Alt": "alt",
}


class X11Screen:
    """An X server with one program on it.

    Args:
        program (`Sequence[str]`): The program and its arguments.
        size (`tuple[int, int]`): Width and height of the screen in pixels.
        folder (`Path`): Its work folder, see [`Sandbox`].
        limits ([`Limits`], *optional*): What it may use.

    Raises:
        UserError: If Xvfb or xdotool is missing, or there is no sandbox.
        WorldBroken: If the server or the program does not start.
    """

    def __init__(self, program: Sequence[str], size: Size, folder: Path, *, limits: Limits | None = None) -> None:
        self.size = size
        self.cursor: Point = (0, 0)
        self._refs: dict[int, int] = {}
        self._sandbox: Sandbox | None = None
        self._server = self._start_server()
        try:
            self._environment = {**os.environ, "DISPLAY": self.display}
            socket = Path(f"/tmp/.X11-unix/X{self.display[1:]}")
            self._sandbox = Sandbox(
                folder, binds=[Bind(socket, str(socket))], env={"DISPLAY": self.display}, limits=limits
            )
            self._program = self._sandbox.popen([*_MUTE, *program])
            self._wait_for_window()
        except BaseException:
            self.close()
            raise

    def move(self, point: Point) -> None:
        self.cursor = point
        self._xdotool("mousemove", *map(str, point))

    def click(self, point: Point, button: str, count: int) -> None:
        self.cursor = point
        clicks = ["click", "--repeat", str(count), "--delay", "40", _BUTTONS[button]]
        self._perform("mousemove", *map(str, point), *clicks)

    def drag(self, point: Point) -> None:
        # Over a point in between: a jump is no drag to many programs.
        middle = [str((a + b) // 2) for a, b in zip(self.cursor, point, strict=True)]
        self.cursor = point
        self._perform("mousedown", "1", "mousemove", *middle, "mousemove", *map(str, point), "mouseup", "1")

    def scroll(self, point: Point, right: int, down: int) -> None:
        self.cursor = point
        wheel_pixels = {"4": -down, "5": down, "6": -right, "7": right}
        for button, pixels in wheel_pixels.items():
            if pixels > 0:
                # A wheel turns by notches, at least one, and not for minutes.
                repeat = str(min(50, max(1, pixels // _WHEEL_STEP)))
                self._perform("mousemove", *map(str, point), "click", "--repeat", repeat, "--delay", "5", button)

    def press(self, keys: Sequence[str]) -> None:
        self._perform("key", "+".join(_to_keysym(key) for key in keys))

    def type(self, text: str) -> None:
        # `--`, or a text that begins with a minus would be read as an option.
        self._perform("type", "--delay", "5", "--", text)

    def locate(self, ref: int) -> Point:
        for element, rectangle in self._list_windows():
            if element.ref == ref:
                x, y, width, height = rectangle
                centre = (x + width // 2, y + height // 2)
                return min(max(centre[0], 0), self.size[0] - 1), min(max(centre[1], 0), self.size[1] - 1)
        raise ScreenError(f"there is no element [{ref}]")

    def choose(self, ref: int) -> bool:
        return False

    def capture(self) -> bytes:
        file = io.BytesIO()
        self._grab().save(file, "PNG")
        return file.getvalue()

    def read_outline(self) -> list[Element]:
        return [element for element, _ in self._list_windows()]

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
        if self._server.poll() is None:
            self._server.terminate()
            try:
                self._server.wait(2)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait(TIMEOUT)

    def _start_server(self) -> "subprocess.Popen[bytes]":
        for tool in ("Xvfb", "xdotool"):
            if shutil.which(tool) is None:
                raise UserError(f"A native window needs {tool}: apt-get install xvfb xdotool.")
        read_end, write_end = os.pipe()
        width, height = self.size
        # The server picks a free display itself, so that environments that start at once never take the same.
        argv = ["Xvfb", "-displayfd", str(write_end), "-screen", "0", f"{width}x{height}x24", "-nolisten", "tcp"]
        try:
            server = subprocess.Popen(
                argv,
                pass_fds=[write_end],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        finally:
            # The server holds the only other end now, so the pipe ends when the server does.
            os.close(write_end)
        with open(read_end, "rb") as display_pipe:  # noqa: PTH123 - a descriptor
            poller = select.poll()
            poller.register(display_pipe, select.POLLIN)
            # Nothing in time, or the end of the pipe: the server does not start.
            number = display_pipe.readline().strip() if poller.poll(1000 * TIMEOUT) else b""
        if not number:
            server.kill()
            server.wait(TIMEOUT)
            raise WorldBroken("Xvfb does not start")
        self.display = f":{number.decode()}"
        return server

    def _wait_for_window(self) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not self._list_windows():
            if self._program.poll() is not None:
                raise WorldBroken("the program has ended")
            if time.monotonic() > deadline:
                raise WorldBroken("the program shows no window")
            time.sleep(0.05)
        self._settle()

    def _settle(self) -> None:
        deadline, last = time.monotonic() + MAX_SETTLE, b""
        while (now := self._grab().tobytes()) != last and time.monotonic() < deadline:
            last = now
            time.sleep(SETTLE_PERIOD)

    def _grab(self) -> Image.Image:
        with self._connect() as display:
            from Xlib.X import ZPixmap

            image = display.screen().root.get_image(0, 0, *self.size, ZPixmap, 0xFFFFFFFF)
        # X11 stores a pixel of depth 24 in four bytes, blue first.
        return Image.frombytes("RGB", self.size, image.data, "raw", "BGRX")

    def _perform(self, *arguments: str) -> None:
        self._xdotool(*arguments)
        self._settle()

    def _xdotool(self, *arguments: str) -> None:
        try:
            subprocess.run(
                ["xdotool", *arguments], env=self._environment, check=True, capture_output=True, timeout=TIMEOUT
            )
        except subprocess.TimeoutExpired:
            raise WorldBroken("xdotool did not answer") from None
        except subprocess.CalledProcessError as error:
            raise WorldBroken(f"xdotool: {error.stderr.decode(errors='replace').strip()[:200]}") from None

    def _list_windows(self) -> list[tuple[Element, tuple[int, int, int, int]]]:
        """List the windows that are visible, each with its rectangle (x, y, width, height)."""
        with self._connect() as display:
            windows: list[tuple[Element, tuple[int, int, int, int]]] = []
            self._collect_windows(display.screen().root, (0, 0), 0, windows)
            return windows

    @contextlib.contextmanager
    def _connect(self) -> Iterator[Any]:
        """Connect to the server. The library waits without a limit, so a server that is late is killed."""
        try:
            from Xlib.display import Display
            from Xlib.error import ConnectionClosedError, DisplayConnectionError
        except ImportError:
            raise UserError('A native window needs python-xlib: pip install "clawrl-trl[envs]".') from None
        watchdog = threading.Timer(TIMEOUT, self._server.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            with contextlib.closing(Display(self.display)) as display:
                yield display
        except (DisplayConnectionError, ConnectionClosedError, OSError) as error:
            raise WorldBroken(f"the X server is gone: {error}") from None
        finally:
            watchdog.cancel()

    def _collect_windows(self, parent: Any, origin: Point, depth: int, windows: list[Any]) -> None:
        from Xlib import X
        from Xlib.error import XError

        try:
            children = parent.query_tree().children
        except XError:  # the window was closed meanwhile
            return
        for window in children:
            try:
                geometry, is_shown = window.get_geometry(), window.get_attributes().map_state == X.IsViewable
                name = str(window.get_wm_name() or "")
            except XError:  # likewise
                continue
            if not is_shown or geometry.width < 2 or geometry.height < 2:
                continue
            x, y = origin[0] + geometry.x, origin[1] + geometry.y
            ref = self._refs.setdefault(window.id, len(self._refs) + 1)
            value = f"{geometry.width}x{geometry.height} at {x},{y}"
            windows.append(
                (Element(ref, "window", name, (), value, min(depth, 4)), (x, y, geometry.width, geometry.height))
            )
            self._collect_windows(window, (x, y), depth + 1, windows)


def _to_keysym(key: str) -> str:
    """Translate a DOM name of a key, or a character, into an X11 keysym.

    Characters by their code point: most signs have a keysym name of their own, and xdotool takes `+` for a separator.
    """
    return f"U{ord(key):04X}" if len(key) == 1 else _KEYSYMS.get(key, key)
