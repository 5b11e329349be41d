"""A web page as a screen, over the DevTools protocol that every Chromium driver speaks.

The outline is Chromium's own accessibility tree, pictures are its own, and elements are found by its node ids:
nothing is written into the page, so a page can't tell that it is being read. A task's checks read it in a world of
their own. What drives mouse and keyboard is the driver's own and lies in the subclasses.
"""

import base64
import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from clawrl_trl.envs.base.agent import WorldBroken
from clawrl_trl.envs.base.message import Json
from clawrl_trl.envs.gui.file_server import FileServer
from clawrl_trl.envs.gui.screen import Element, Point, Screen, ScreenError, Size

TIMEOUT = 20.0
"""Seconds a page may take for anything asked of it."""
MEMORY_MB = 1024
"""Memory that a process of the browser may hold; a page has one for all its frames."""
FLAGS = [
    "--hide-scrollbars",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--mute-audio",
    "--no-first-run",
    "--disable-site-isolation-trials",
]

_OPERABLE = (
    {"button", "checkbox", "combobox", "link", "listbox", "menuitem", "menuitemcheckbox", "menuitemradio", "option"}
    | {"radio", "searchbox", "slider", "spinbutton", "switch", "tab", "textbox", "treeitem"}
    | {"Date", "DateTime", "InputTime", "ColorWell", "Canvas"}
)
_SILENT = (
    {"RootWebArea", "InlineTextBox", "generic", "none", "LineBreak", "ListMarker"}
    | {"Iframe", "LabelText", "MenuListPopup"}
)  # fmt: skip
_TYPED = {"textbox", "searchbox", "spinbutton"}
_NAMES = {"StaticText": "text", "Date": "date", "InputTime": "time", "ColorWell": "color", "Canvas": "canvas"}
_STATES = ("focused", "checked", "selected", "pressed", "expanded", "disabled")

# A page that a new tab hides draws nothing.
_SETTLED = """new Promise(done => {
  const over = () => done(true);
  const drawn = () => document.hidden ? over() : requestAnimationFrame(() => requestAnimationFrame(over));
  addEventListener("visibilitychange", over, {once: true});
  document.readyState === "complete" ? drawn() : addEventListener("load", drawn, {once: true});
})"""
_CHOOSE = """function () {
  const list = this.closest && this.closest("select");
  if (!list || this.disabled || list.disabled || list.size > 1 || list.multiple) return false;
  list.focus();
  this.selected = true;
  for (const kind of ["input", "change"]) list.dispatchEvent(new Event(kind, {bubbles: true}));
  return true;
}"""

_WORDS = re.compile(r"[A-Za-z_$][\w$]*")
_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """
arguments async await break case catch class const continue debugger default delete do else enum
eval export extends false finally for function if implements import in instanceof interface let new
null of package private protected public return static super switch this throw true try typeof var
void while with yield
""",
    )
)
_NAMES_OF = """(() => {
  const names = [];
  for (let from = globalThis; from; from = Object.getPrototypeOf(from)) {
    names.push(...Object.getOwnPropertyNames(from));
  }
  return names;
})()"""
_READ = """function (given) {
  const real = globalThis;
  const revive = one => {
    const pairs = () => one.value.map(([key, value]) => [typeof key === "string" ? key : revive(key), revive(value)]);
    switch (one.type) {
      case "object": return one.value ? Object.fromEntries(pairs()) : {};
      case "array": return (one.value ?? []).map(revive);
      case "set": return new Set((one.value ?? []).map(revive));
      case "map": return new Map(one.value ? pairs() : []);
      case "date": return new Date(one.value);
      case "regexp": return new RegExp(one.value.pattern, one.value.flags);
      case "bigint": return BigInt(one.value);
      case "number": return Number(one.value);
      case "null": return null;
      default: return one.value;
    }
  };
  const page = Object.fromEntries(given.map(([name, value]) => [name, revive(value)]));
  const seen = {get: (_, name) => Object.hasOwn(page, name) ? page[name]
    : typeof real[name] === "function" && !real[name].prototype ? real[name].bind(real) : real[name]};
  const window = given.length ? new Proxy({}, seen) : real;
  return ((self, globalThis, top, parent, {%s}) => (%s))(window, window, window, window, page);
}"""


class ProtocolError(Exception):
    """The browser refused a command, for a reason that lies in the page and not in the connection."""


def network_flags(port: int, hosts: Sequence[str] = ()) -> list[str]:
    """The flags that lead a browser to one port of this machine, whatever address a page asks for.

    Args:
        port (`int`): The port of the [`FileServer`](clawrl_trl.envs.gui.file_server.FileServer) for all names.
        hosts (`Sequence[str]`, *optional*): Host names that are looked up as ever.
    """
    rules = [f"MAP * 127.0.0.1:{port}", *(f"EXCLUDE {host}" for host in hosts)]
    return [
        f"--host-resolver-rules={', '.join(rules)}",
        "--no-proxy-server",
        "--disable-quic",
        # Peer connections know addresses of their own, which no rule leads elsewhere.
        "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
        "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    ]


class WebPage(Screen):
    """A page, driven by a subclass.

    Attributes:
        size (`tuple[int, int]`): Width and height of the view in pixels.
        cursor (`tuple[int, int]`): Where the mouse is.
        files ([`FileServer`]): All that it can reach.
    """

    def __init__(self, size: Size, files: FileServer) -> None:
        self.size = size
        self.files = files
        self.cursor: Point = (0, 0)
        self._refs: dict[int, int] = {}
        self._nodes: dict[int, int] = {}
        self._options: set[int] = set()
        self._scripts: list[str] = []
        self._known: frozenset[str] = frozenset()

    @abstractmethod
    def send(self, method: str, **parameters: Any) -> Any:
        """Send a DevTools command.

        Raises:
            ProtocolError: If the page refuses it.
            WorldBroken: If there is no page any more, or it does not answer in time.
        """

    @abstractmethod
    def open(self, url: str) -> None:
        """Go to `url` and wait until it has loaded."""

    @abstractmethod
    def move(self, point: Point) -> None:
        """Move the mouse."""

    @abstractmethod
    def close(self) -> None:
        """Close the page; idempotent."""

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise.

        Raises:
            ProtocolError: If it throws.
        """
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return _value(answer)

    def read(self, expression: str) -> Any:
        """The value of a JavaScript expression in a world of its own, where no script of the page can change anything.

        The document is the page's, the language and the browser's functions are not. What the expression names
        besides them are variables of the page's scripts: their values are copied, without running a line of the page.
        An expression that calls functions of the page works in the page's own world alone, and is evaluated there.

        Raises:
            ProtocolError: If it throws.
        """
        known = self._browser_names()
        names = sorted({name for name in _WORDS.findall(expression) if name not in known and name not in _KEYWORDS})
        world = self.send("Page.createIsolatedWorld", frameId=self._frames()[0], worldName="reader")
        given = self._copy(names) if names else []
        answer = self.send(
            "Runtime.callFunctionOn",
            functionDeclaration=_READ % (", ".join(names), expression),
            executionContextId=world["executionContextId"],
            arguments=[{"value": given}],
            returnByValue=True,
            awaitPromise=True,
        )
        if "exceptionDetails" in answer and given:
            return self.evaluate(expression)
        return _value(answer)

    def _browser_names(self) -> frozenset[str]:
        """The names that the browser gives every page; asked of an empty one."""
        if not self._known:
            world = self.send("Page.createIsolatedWorld", frameId=self._frames()[0], worldName="names")
            answer = self.send(
                "Runtime.evaluate", expression=_NAMES_OF, contextId=world["executionContextId"], returnByValue=True
            )
            self._known = frozenset(_value(answer))
        return self._known

    def _copy(self, names: Sequence[str]) -> Any:
        """Values of the page's variables, as DevTools write them down."""
        fields = ", ".join(f'{name}: typeof {name} === "undefined" ? undefined : {name}' for name in names)
        answer = self.send(
            "Runtime.evaluate",
            expression=f"({{{fields}}})",
            serializationOptions={
                "serialization": "deep",
                "maxDepth": 12,
                "additionalParameters": {"maxNodeDepth": 0},
            },
        )
        return answer["result"].get("deepSerializedValue", {}).get("value", [])

    def provide(self, name: str, value: Any) -> None:
        """Give the pages to come a global constant, before any script of theirs runs."""
        source = f"window[{json.dumps(name)}] = {json.dumps(value)};"
        self._scripts.append(self.send("Page.addScriptToEvaluateOnNewDocument", source=source)["identifier"])

    def renew(self) -> None:
        """Make it an empty page, without cookies, storage or constants of what was shown."""
        while self._scripts:
            self.send("Page.removeScriptToEvaluateOnNewDocument", identifier=self._scripts.pop())
        self.open("about:blank")
        self.send("Network.clearBrowserCookies")
        self.send("Storage.clearDataForOrigin", origin="*", storageTypes="all")
        self._refs.clear()
        self._nodes.clear()
        self._options.clear()
        self.move((0, 0))

    def settle(self) -> None:
        """Wait until the page has loaded and drawn what the last gesture brought."""
        for _ in range(3):
            try:
                self.evaluate(_SETTLED)
                return
            except ProtocolError:  # a navigation took the page away under the question
                continue
        raise WorldBroken("the page does not come to rest")

    def capture(self) -> bytes:
        answer = self.send("Page.captureScreenshot", format="png", optimizeForSpeed=True)
        return base64.b64decode(answer["data"])

    def locate(self, ref: int) -> Point:
        node = self._node(ref)
        try:
            self.send("DOM.scrollIntoViewIfNeeded", backendNodeId=node)
            quads = self.send("DOM.getContentQuads", backendNodeId=node)["quads"]
        except ProtocolError:
            quads = []
        if not quads:
            raise ScreenError(f"element [{ref}] is not to be seen")
        x, y = (sum(quads[0][axis::2]) / 4 for axis in (0, 1))
        return min(max(int(x), 0), self.size[0] - 1), min(max(int(y), 0), self.size[1] - 1)

    def choose(self, ref: int) -> bool:
        node = self._node(ref)
        if node not in self._options:
            return False
        try:
            found = self.send("DOM.resolveNode", backendNodeId=node)["object"]["objectId"]
            chosen = bool(_value(self._call_on(found, _CHOOSE)))
            self.settle()
            return chosen
        except ProtocolError:
            return False

    def outline(self) -> list[Element]:
        elements: list[Element] = []
        for frame in self._frames():
            try:
                nodes = self.send("Accessibility.getFullAXTree", frameId=frame)["nodes"]
            except ProtocolError:  # the frame went away meanwhile
                continue
            tree = {node["nodeId"]: node for node in nodes}
            labels = " ".join(_name(node) for node in nodes if _of(node, "role") in _OPERABLE)
            if nodes:
                elements += self._walk(nodes[0], tree, 0, "", labels)
        self._options |= {element.ref for element in elements if element.role == "option"}
        return [replace(element, ref=self._ref(element.ref)) for element in elements]

    def _call_on(self, found: str, function: str) -> Json:
        answer: Json = self.send(
            "Runtime.callFunctionOn", objectId=found, functionDeclaration=function, returnByValue=True
        )
        return answer

    def _node(self, ref: int) -> int:
        if ref not in self._nodes:
            raise ScreenError(f"there is no element [{ref}]")
        return self._nodes[ref]

    def _frames(self) -> list[str]:
        def within(tree: Json) -> Iterator[str]:
            yield tree["frame"]["id"]
            for child in tree.get("childFrames", ()):
                yield from within(child)

        return list(within(self.send("Page.getFrameTree")["frameTree"]))

    def _walk(self, node: Json, tree: dict[str, Json], depth: int, above: str, labels: str) -> list[Element]:
        """The lines of a node and of what lies in it, with node ids in place of numbers.

        `above` is what a line would only repeat, `labels` what stands in labels and is said by their controls.
        """
        element = _element(node, depth, above)
        role = _of(node, "role")
        if element is not None:
            depth, above = depth + 1, element.name or above
        if role == "LabelText":
            above = labels
        elif role in _TYPED:
            above = _of(node, "value")
        children = [tree[child] for child in node.get("childIds", ()) if child in tree]
        inside = [line for child in children for line in self._walk(child, tree, depth, above, labels)]
        if element is None:
            return inside
        if role not in _OPERABLE and any(line.name == element.name for line in inside):
            return [replace(line, depth=line.depth - 1) for line in inside]
        return [element, *inside]

    def _ref(self, node: int) -> int:
        if node not in self._refs:
            self._refs[node] = len(self._refs) + 1
            self._nodes[self._refs[node]] = node
        return self._refs[node]


def _element(node: Json, depth: int, above: str) -> Element | None:
    role, name = _of(node, "role"), _name(node)
    if node.get("ignored") or role in _SILENT or "backendDOMNodeId" not in node:
        return None
    if role not in _OPERABLE and (not name or f" {name} " in f" {above} "):
        return None
    value = _of(node, "value") if role in _OPERABLE and "value" in node else None
    return Element(node["backendDOMNodeId"], _NAMES.get(role, role), name, tuple(_states(node)), value, depth)


def _of(node: Json, field: str) -> str:
    return str(node.get(field, {}).get("value", ""))


def _name(node: Json) -> str:
    return " ".join(_of(node, "name").split())


def _states(node: Json) -> Iterator[str]:
    properties = {one["name"]: one["value"].get("value") for one in node.get("properties", ())}
    for state in _STATES:
        value = properties.get(state)
        if value in (True, "true"):
            yield state
        elif value == "mixed":
            yield f"partly {state}"


def _value(answer: Json) -> Any:
    if "exceptionDetails" in answer:
        details = answer["exceptionDetails"]
        raise ProtocolError(details.get("exception", {}).get("description") or details.get("text", "it threw"))
    return answer["result"].get("value")
