"""The outline of a frame: its accessibility tree as the elements that an agent reads and operates."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from clawrl_trl.envs.gui.screen import Element
from clawrl_trl.messages import Json

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


def outline_frame(nodes: Sequence[Json]) -> list[Element]:
    """List the elements of a frame, with the browser's node ids in place of numbers.

    Args:
        nodes (`Sequence[dict]`): The frame's accessibility nodes, its root first; may be empty.
    """
    if not nodes:
        return []
    tree = {node["nodeId"]: node for node in nodes}
    labels = " ".join(_get_name(node) for node in nodes if _get_value(node, "role") in _CONTROL_ROLES)
    return _outline_node(nodes[0], tree, 0, "", labels)


def _outline_node(node: Json, tree: dict[str, Json], depth: int, above: str, labels: str) -> list[Element]:
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
    inside = [line for child in children for line in _outline_node(child, tree, depth, above, labels)]
    if element is None:
        return inside
    # A heading or a cell whose name is that of the control in it would be listed twice.
    if role not in _CONTROL_ROLES and any(line.name == element.name for line in inside):
        return [replace(line, depth=line.depth - 1) for line in inside]
    return [element, *inside]


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
