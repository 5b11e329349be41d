"""Base class for web pages as screens, over the DevTools protocol that every Chromium driver speaks.

The outline is Chromium's accessibility tree, pictures are its screenshots, and elements are found by its node ids:
nothing is written into the page, so a page can't tell that it is being read. A task's checks are evaluated in an
isolated world. Mouse and keyboard are the driver's and belong to the subclasses. Names of methods, parameters, roles
and states below are the protocol's.
"""

import base64
import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from clawrl_trl.envs.base.agent import WorldBroken
from clawrl_trl.envs.gui.file_server import FileServer
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

# Roles that an agent can operate: listed even without a name, and with their value.
_CONTROL_ROLES = (
    {"button", "checkbox", "combobox", "link", "listbox", "menuitem", "menuitemcheckbox", "menuitemradio", "option"}
    | {"radio", "searchbox", "slider", "spinbutton", "switch", "tab", "textbox", "treeitem"}
    | {"Date", "DateTime", "InputTime", "ColorWell", "Canvas"}
)
# Roles whose content is listed by itself, or that only structure the page.
_HIDDEN_ROLES = (
    {"RootWebArea", "InlineTextBox", "generic", "none", "LineBreak", "ListMarker"}
    | {"Iframe", "LabelText", "MenuListPopup"}
)  # fmt: skip
_TEXT_ROLES = {"textbox", "searchbox", "spinbutton"}
_ROLE_NAMES = {"StaticText": "text", "Date": "date", "InputTime": "time", "ColorWell": "color", "Canvas": "canvas"}
_REPORTED_STATES = ("focused", "checked", "selected", "pressed", "expanded", "disabled")

# A page that a new tab hides draws nothing.
_WAIT_UNTIL_DRAWN = """new Promise(done => {
  const over = () => done(true);
  const drawn = () => document.hidden ? over() : requestAnimationFrame(() => requestAnimationFrame(over));
  addEventListener("visibilitychange", over, {once: true});
  document.readyState === "complete" ? drawn() : addEventListener("load", drawn, {once: true});
})"""
_CHOOSE_OPTION = """function () {
  const list = this.closest && this.closest("select");
  if (!list || this.disabled || list.disabled || list.size > 1 || list.multiple) return false;
  list.focus();
  this.selected = true;
  for (const kind of ["input", "change"]) list.dispatchEvent(new Event(kind, {bubbles: true}));
  return true;
}"""

# What follows evaluates checks where scripts of the page can't forge them. Copied variables arrive in DevTools' deep
# serialisation, which `revive` turns into values; a proxy of the window shows them under their names.
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*")
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
_LIST_GLOBAL_NAMES = """(() => {
  const names = [];
  for (let from = globalThis; from; from = Object.getPrototypeOf(from)) {
    names.push(...Object.getOwnPropertyNames(from));
  }
  return names;
})()"""
_EVALUATE_ISOLATED = """function (given) {
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
    """A command that the browser refused, for a reason that lies in the page and not in the connection."""


def network_flags(port: int, hosts: Sequence[str] = ()) -> list[str]:
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
        self._known_names: frozenset[str] = frozenset()

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
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return _unwrap_value(answer)

    def evaluate_isolated(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in an isolated world, which the page's scripts can't change.

        The document is the page's; the language's and the browser's functions are unmodified. Other names in the
        expression are variables of the page's scripts: their values are copied without running code of the page. An
        expression that calls functions of the page fails there, and is evaluated in the page's own world.

        Raises:
            ProtocolError: If it throws.
        """
        known = self._read_browser_names()
        names = sorted(
            {name for name in _IDENTIFIER.findall(expression) if name not in known and name not in _KEYWORDS}
        )
        # Anew each time: a navigation may have ended the last world.
        world = self.send("Page.createIsolatedWorld", frameId=self._list_frames()[0], worldName="reader")
        variables = self._copy_variables(names) if names else []
        answer = self.send(
            "Runtime.callFunctionOn",
            functionDeclaration=_EVALUATE_ISOLATED % (", ".join(names), expression),
            executionContextId=world["executionContextId"],
            arguments=[{"value": variables}],
            returnByValue=True,
            awaitPromise=True,
        )
        if "exceptionDetails" in answer and variables:
            return self.evaluate(expression)
        return _unwrap_value(answer)

    def _read_browser_names(self) -> frozenset[str]:
        """Read the names that the browser defines in every page; first asked while the page is still empty."""
        if not self._known_names:
            world = self.send("Page.createIsolatedWorld", frameId=self._list_frames()[0], worldName="names")
            answer = self.send(
                "Runtime.evaluate",
                expression=_LIST_GLOBAL_NAMES,
                contextId=world["executionContextId"],
                returnByValue=True,
            )
            self._known_names = frozenset(_unwrap_value(answer))
        return self._known_names

    def _copy_variables(self, names: Sequence[str]) -> Any:
        """Copy the values of the page's variables, in DevTools' deep serialisation."""
        # `typeof` first, since naming a variable that does not exist throws.
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

    def define_constant(self, name: str, value: Any) -> None:
        """Define a global constant in the pages opened from now on, before any of their scripts runs."""
        source = f"window[{json.dumps(name)}] = {json.dumps(value)};"
        self._scripts.append(self.send("Page.addScriptToEvaluateOnNewDocument", source=source)["identifier"])

    def reset(self) -> None:
        """Return to an empty page, without the cookies, storage and constants of the last task."""
        self._close_other_tabs()
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
        return min(max(int(x), 0), self.size[0] - 1), min(max(int(y), 0), self.size[1] - 1)

    def choose(self, ref: int) -> bool:
        node = self._find_node(ref)
        if node not in self._options:
            return False
        try:
            object_id = self.send("DOM.resolveNode", backendNodeId=node)["object"]["objectId"]
            chosen = bool(_unwrap_value(self._call_on(object_id, _CHOOSE_OPTION)))
            self.settle()
            return chosen
        except ProtocolError:
            return False

    def read_outline(self) -> list[Element]:
        elements: list[Element] = []
        for frame in self._list_frames():
            try:
                nodes = self.send("Accessibility.getFullAXTree", frameId=frame)["nodes"]
            except ProtocolError:  # the frame was removed meanwhile
                continue
            tree = {node["nodeId"]: node for node in nodes}
            labels = " ".join(_get_name(node) for node in nodes if _get_value(node, "role") in _CONTROL_ROLES)
            if nodes:
                elements += self._outline_node(nodes[0], tree, 0, "", labels)
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

    def _list_frames(self) -> list[str]:
        def walk(tree: Json) -> Iterator[str]:
            yield tree["frame"]["id"]
            for child in tree.get("childFrames", ()):
                yield from walk(child)

        return list(walk(self.send("Page.getFrameTree")["frameTree"]))

    def _outline_node(self, node: Json, tree: dict[str, Json], depth: int, above: str, labels: str) -> list[Element]:
        """List the lines of a node and its descendants, with node ids in place of numbers.

        Args:
            node (`dict`): The node.
            tree (`dict[str, dict]`): All nodes of its frame, by id.
            depth (`int`): Listed elements that it lies in.
            above (`str`): Text of those around it, which a line must not repeat.
            labels (`str`): Names of all controls, which the text of their labels must not repeat.
        """
        element = _build_element(node, depth, above)
        role = _get_value(node, "role")
        if element is not None:
            depth, above = depth + 1, element.name or above
        if role == "LabelText":
            above = labels
        elif role in _TEXT_ROLES:
            above = _get_value(node, "value")
        children = [tree[child] for child in node.get("childIds", ()) if child in tree]
        inside = [line for child in children for line in self._outline_node(child, tree, depth, above, labels)]
        if element is None:
            return inside
        # A heading or a cell whose name is that of the control in it would be listed twice.
        if role not in _CONTROL_ROLES and any(line.name == element.name for line in inside):
            return [replace(line, depth=line.depth - 1) for line in inside]
        return [element, *inside]

    def _number_node(self, node: int) -> int:
        if node not in self._refs:
            self._refs[node] = len(self._refs) + 1
            self._nodes[self._refs[node]] = node
        return self._refs[node]


def _build_element(node: Json, depth: int, above: str) -> Element | None:
    role, name = _get_value(node, "role"), _get_name(node)
    if node.get("ignored") or role in _HIDDEN_ROLES or "backendDOMNodeId" not in node:
        return None
    if role not in _CONTROL_ROLES and (not name or f" {name} " in f" {above} "):
        return None
    value = _get_value(node, "value") if role in _CONTROL_ROLES and "value" in node else None
    return Element(
        node["backendDOMNodeId"], _ROLE_NAMES.get(role, role), name, tuple(_list_states(node)), value, depth
    )


def _get_value(node: Json, field: str) -> str:
    return str(node.get(field, {}).get("value", ""))


def _get_name(node: Json) -> str:
    return " ".join(_get_value(node, "name").split())


def _list_states(node: Json) -> Iterator[str]:
    properties = {entry["name"]: entry["value"].get("value") for entry in node.get("properties", ())}
    for state in _REPORTED_STATES:
        value = properties.get(state)
        if value in (True, "true"):
            yield state
        elif value == "mixed":
            yield f"partly {state}"


def _unwrap_value(answer: Json) -> Any:
    if "exceptionDetails" in answer:
        details = answer["exceptionDetails"]
        raise ProtocolError(details.get("exception", {}).get("description") or details.get("text", "it threw"))
    return answer["result"].get("value")
