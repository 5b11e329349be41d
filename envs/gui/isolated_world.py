"""Expressions evaluated in an isolated world of a page, where the page's scripts can't forge the result."""

import re
from collections.abc import Sequence
from typing import Any

from clawrl_trl.envs.gui.devtools import DevTools, evaluate, list_frames, unwrap_value

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
# Copied variables arrive in DevTools' deep serialisation, which `revive` turns into values; a proxy of the window
# shows them under their names.
_EVALUATE_ISOLATED = """function (variables) {
  const real = globalThis;
  const revive = copy => {
    const pairs = () => copy.value.map(([key, value]) => [typeof key === "string" ? key : revive(key), revive(value)]);
    switch (copy.type) {
      case "object": return copy.value ? Object.fromEntries(pairs()) : {};
      case "array": return (copy.value ?? []).map(revive);
      case "set": return new Set((copy.value ?? []).map(revive));
      case "map": return new Map(copy.value ? pairs() : []);
      case "date": return new Date(copy.value);
      case "regexp": return new RegExp(copy.value.pattern, copy.value.flags);
      case "bigint": return BigInt(copy.value);
      case "number": return Number(copy.value);
      case "null": return null;
      default: return copy.value;
    }
  };
  const page = Object.fromEntries(variables.map(([name, value]) => [name, revive(value)]));
  const handler = {get: (_, name) => Object.hasOwn(page, name) ? page[name]
    : typeof real[name] === "function" && !real[name].prototype ? real[name].bind(real) : real[name]};
  const window = variables.length ? new Proxy({}, handler) : real;
  return ((self, globalThis, top, parent, {%s}) => (%s))(window, window, window, window, page);
}"""


def evaluate_isolated(page: DevTools, expression: str, browser_names: frozenset[str]) -> Any:
    """Return the value of a JavaScript expression in a new isolated world of a page.

    Args:
        page ([`DevTools`]): The page.
        expression (`str`): See [`clawrl_trl.envs.gui.page.WebPage.evaluate_isolated`].
        browser_names (`frozenset[str]`): What [`read_browser_names`] read before any script of the page ran.

    Raises:
        ProtocolError: If it throws.
    """
    names = sorted(
        {name for name in _IDENTIFIER.findall(expression) if name not in browser_names and name not in _KEYWORDS}
    )
    # Anew each time: a navigation may have ended the last world.
    world = page.send("Page.createIsolatedWorld", frameId=list_frames(page)[0], worldName="reader")
    variables = _copy_variables(page, names) if names else []
    answer = page.send(
        "Runtime.callFunctionOn",
        functionDeclaration=_EVALUATE_ISOLATED % (", ".join(names), expression),
        executionContextId=world["executionContextId"],
        arguments=[{"value": variables}],
        returnByValue=True,
        awaitPromise=True,
    )
    if "exceptionDetails" in answer and variables:
        return evaluate(page, expression)
    return unwrap_value(answer)


def read_browser_names(page: DevTools) -> frozenset[str]:
    """Read the names that the browser defines in every page; the page must be empty."""
    world = page.send("Page.createIsolatedWorld", frameId=list_frames(page)[0], worldName="names")
    answer = page.send(
        "Runtime.evaluate",
        expression=_LIST_GLOBAL_NAMES,
        contextId=world["executionContextId"],
        returnByValue=True,
    )
    return frozenset(unwrap_value(answer))


def _copy_variables(page: DevTools, names: Sequence[str]) -> Any:
    """Copy the values of the page's variables, in DevTools' deep serialisation."""
    # `typeof` first, since naming a variable that does not exist throws.
    fields = ", ".join(f'{name}: typeof {name} === "undefined" ? undefined : {name}' for name in names)
    answer = page.send(
        "Runtime.evaluate",
        expression=f"({{{fields}}})",
        serializationOptions={
            "serialization": "deep",
            "maxDepth": 12,
            "additionalParameters": {"maxNodeDepth": 0},
        },
    )
    return answer["result"].get("deepSerializedValue", {}).get("value", [])
