"""Base class for web pages as screens, over the DevTools protocol that every Chromium driver speaks.

The outline is Chromium's accessibility tree, pictures are its screenshots, and elements are found by its node ids:
nothing is written into the page, so a page can't tell that it is being read. A task's checks are evaluated in an
isolated world. Mouse and keyboard are the driver's and belong to the subclasses. Names of methods, parameters, roles
and states below are the protocol's.
"""

import base64
import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from clawrl_trl.envs.base.episode import WorldBroken
from clawrl_trl.envs.gui.devtools import ProtocolError, evaluate, list_frames, unwrap_value
from clawrl_trl.envs.gui.file_server import FileServer
from clawrl_trl.envs.gui.isolated_world import evaluate_isolated, read_browser_names
from clawrl_trl.envs.gui.outline import outline_frame
from clawrl_trl.envs.gui.screen import Element, Point, Screen, ScreenError, Size
from clawrl_trl.messages import Json

TIMEOUT = 20.0
"""Seconds a page may take for any command."""
MEMORY_MB = 1024
"""Memory that a process of the browser may hold; a page has one for all its frames."""
FLAGS = [
    "--hide-scrollbars",
    "--disable-extensions",
    "--disable-dev-shm-usage",  # in containers /dev/shm is often too small for a browser
    "--disable-gpu",
    "--mute-audio",
    "--no-first-run",
    "--disable-site-isolation-trials",  # frames stay in the page's process, where its session and its limit reach them
]

# A page that a new tab hides draws nothing.
_WAIT_UNTIL_DRAWN = """new Promise(done => {
  const finish = () => done(true);
  const waitForFrames = () => document.hidden ? finish() : requestAnimationFrame(() => requestAnimationFrame(finish));
  addEventListener("visibilitychange", finish, {once: true});
  document.readyState === "complete" ? waitForFrames() : addEventListener("load", waitForFrames, {once: true});
})"""
_CHOOSE_OPTION = """function () {
  const list = this.closest && this.closest("select");
  if (!list || this.disabled || list.disabled || list.size > 1 || list.multiple) return false;
  list.focus();
  this.selected = true;
  for (const kind of ["input", "change"]) list.dispatchEvent(new Event(kind, {bubbles: true}));
  return true;
}"""


def build_network_flags(port: int, hosts: Sequence[str] = ()) -> list[str]:
    """Build the flags that lead a browser to one port of this machine, whatever address a page asks for.

    Args:
        port (`int`): The port of the [`FileServer`](clawrl_trl.envs.gui.file_server.FileServer) for all names.
        hosts (`Sequence[str]`, *optional*): Host names that are resolved as usual.
    """
    rules = [f"MAP * 127.0.0.1:{port}", *(f"EXCLUDE {host}" for host in hosts)]
    return [
        f"--host-resolver-rules={', '.join(rules)}",
        "--no-proxy-server",  # a proxy would resolve names itself, past the rules
        "--disable-quic",
        # WebRTC connects to addresses to which the rules do not apply.
        "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
        "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    ]


class WebPage(Screen):
    """A page of a browser; a tab that the page opens becomes the page.

    Attributes:
        size (`tuple[int, int]`): Width and height of the view in pixels.
        cursor (`tuple[int, int]`): Position of the mouse.
        files ([`FileServer`]): The only server that it can reach.
    """

    def __init__(self, size: Size, files: FileServer) -> None:
        self.size = size
        self.files = files
        self.cursor: Point = (0, 0)
        self._refs: dict[int, int] = {}
        self._nodes: dict[int, int] = {}
        self._options: set[int] = set()
        self._scripts: list[str] = []
        self._browser_names: frozenset[str] = frozenset()

    @abstractmethod
    def send(self, method: str, **parameters: Any) -> Any:
        """Send a DevTools command.

        Raises:
            ProtocolError: If the page refuses it.
            WorldBroken: If the page is gone, or does not answer in time.
        """

    @abstractmethod
    def open(self, url: str) -> None:
        """Go to `url` and wait until it has loaded."""

    @abstractmethod
    def move(self, point: Point) -> None:
        """Move the mouse."""

    @abstractmethod
    def _follow_newest_tab(self) -> bool:
        """Go to the newest tab if it is another than the present one; return whether it was."""

    @abstractmethod
    def _close_other_tabs(self) -> None:
        """Close all tabs but the first, which becomes the page."""

    @abstractmethod
    def close(self) -> None:
        """Close the page; idempotent."""

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page's own world, awaited if it is a promise.

        Raises:
            ProtocolError: If it throws.
        """
        return evaluate(self, expression)

    def evaluate_isolated(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in an isolated world, which the page's scripts can't change.

        The document is the page's; the language's and the browser's functions are unmodified. Other names in the
        expression are variables of the page's scripts: their values are copied without running code of the page. An
        expression that calls functions of the page fails there, and is evaluated in the page's own world.

        Raises:
            ProtocolError: If it throws.
        """
        if not self._browser_names:  # first asked while the page is still empty, so none is a script's
            self._browser_names = read_browser_names(self)
        return evaluate_isolated(self, expression, self._browser_names)

    def define_constant(self, name: str, value: Any) -> None:
        """Define a global constant in the pages opened from now on, before any of their scripts runs."""
        source = f"window[{json.dumps(name)}] = {json.dumps(value)};"
        self._scripts.append(self.send("Page.addScriptToEvaluateOnNewDocument", source=source)["identifier"])

    def reset(self) -> None:
        """Return to an empty page, without the cookies, storage and constants of the last task."""
        self._close_other_tabs()
        while self._scripts:
            self.send("Page.removeScriptToEvaluateOnNewDocument", identifier=self._scripts.pop())
        # Before the storage is cleared: scripts of the last page would write into it again.
        self.open("about:blank")
        self.send("Network.clearBrowserCookies")
        self.send("Storage.clearDataForOrigin", origin="*", storageTypes="all")
        self._refs.clear()
        self._nodes.clear()
        self._options.clear()
        self.move((0, 0))

    def settle(self) -> None:
        """Wait until the page has loaded and drawn what the last gesture caused; also in a tab that it opened."""
        self._wait_until_drawn()
        if self._follow_newest_tab():
            self._wait_until_drawn()

    def _wait_until_drawn(self) -> None:
        for _ in range(3):
            try:
                self.evaluate(_WAIT_UNTIL_DRAWN)
                return
            except ProtocolError:  # a navigation replaced the page during the evaluation
                continue
        raise WorldBroken("the page does not come to rest")

    def capture(self) -> bytes:
        answer = self.send("Page.captureScreenshot", format="png", optimizeForSpeed=True)
        return base64.b64decode(answer["data"])

    def locate(self, ref: int) -> Point:
        node = self._find_node(ref)
        try:
            self.send("DOM.scrollIntoViewIfNeeded", backendNodeId=node)
            quads = self.send("DOM.getContentQuads", backendNodeId=node)["quads"]
        except ProtocolError:
            quads = []
        if not quads:
            raise ScreenError(f"element [{ref}] is not to be seen")
        x, y = (sum(quads[0][axis::2]) / 4 for axis in (0, 1))
        # An element may reach beyond the view, where no mouse can go.
        return min(max(int(x), 0), self.size[0] - 1), min(max(int(y), 0), self.size[1] - 1)

    def choose(self, ref: int) -> bool:
        node = self._find_node(ref)
        # Asked of options alone: everything else can be clicked like a person would.
        if node not in self._options:
            return False
        try:
            object_id = self.send("DOM.resolveNode", backendNodeId=node)["object"]["objectId"]
            chosen = bool(unwrap_value(self._call_on(object_id, _CHOOSE_OPTION)))
            self.settle()
            return chosen
        except ProtocolError:
            return False

    def read_outline(self) -> list[Element]:
        elements: list[Element] = []
        for frame in list_frames(self):
            try:
                nodes = self.send("Accessibility.getFullAXTree", frameId=frame)["nodes"]
            except ProtocolError:  # the frame was removed meanwhile
                continue
            elements += outline_frame(nodes)
        self._options |= {element.ref for element in elements if element.role == "option"}
        return [replace(element, ref=self._number_node(element.ref)) for element in elements]

    def _call_on(self, object_id: str, function: str) -> Json:
        answer: Json = self.send(
            "Runtime.callFunctionOn", objectId=object_id, functionDeclaration=function, returnByValue=True
        )
        return answer

    def _find_node(self, ref: int) -> int:
        if ref not in self._nodes:
            raise ScreenError(f"there is no element [{ref}]")
        return self._nodes[ref]

    def _number_node(self, node: int) -> int:
        if node not in self._refs:
            self._refs[node] = len(self._refs) + 1
            self._nodes[self._refs[node]] = node
        return self._refs[node]
