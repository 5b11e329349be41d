"""Actions in the environments: prompts, and the right action, stated about one time in three.

A model that is to practise must know the format of every action and succeed at times, so that there is something to
select. Here are prompts as [`clawrl_trl.envs`] makes them for the easiest step of the shipped task sets, each with the
right action and with a slip: what would be right for another task of the same kind, or giving up. Tasks of the
held-out split are left out.
"""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from clawrl_trl.envs.gui.computer_use import build_tool_schema
from clawrl_trl.envs.gui.screen import Element
from clawrl_trl.envs.swe.env import SYSTEM
from clawrl_trl.envs.swe.tasks import SENTINEL
from clawrl_trl.envs.terminal.env import SCHEMAS
from recipes.tasks import gui, swe, terminal, toolcall

Message = dict[str, Any]
RIGHT = 0.35
"""How often the right action is learnt."""
GIVES_UP = 2 / 3
"""Share of slips on a screen that give up. Among few elements, wrong clicks alone would teach plain chance."""
GUI_ACTIONS = ("left_click", "type", "terminate")
"""The actions on offer to the tiny model, which reads every word of their descriptions in every turn."""
DONE: Message = {"role": "assistant", "content": "Done."}


@dataclass(frozen=True)
class Scene:
    """A prompt, and two ways to go on.

    Attributes:
        task: the task as its generator made it.
        messages: the prompt.
        tools: schemas of the tools on offer.
        right: the messages of an episode that succeeds.
        slip: those of one that fails.
    """

    task: Any
    messages: list[Message]
    tools: list[Message]
    right: list[Message]
    slip: list[Message]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _calls(name: str, said: str = "", **arguments: Any) -> Message:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": said, "tool_calls": [call]}


def _answered(call: Message, result: str) -> list[Message]:
    """A call, its result, and the end."""
    return [call, {"role": "tool", "content": result}, DONE]


# Terminal


def in_terminal(rng: random.Random) -> Scene:
    """One short command."""
    maker = rng.choice(terminal.MAKERS["easy"])
    made = _drawn(rng, maker, lambda one: one.instruction in _heldout("terminal"))
    other = _drawn(rng, maker, lambda one: one.solution == made.solution)
    right, slip = (
        _answered(_calls("shell_exec", command=command), _printed(command, made.files))
        for command in (made.solution, other.solution)
    )
    return Scene(made, [_user(made.instruction)], SCHEMAS, right, slip)


_COMPLAINTS = {"rm": "cannot remove", "cp": "cannot stat", "mv": "cannot stat"}


def _printed(command: str, files: Any) -> str:
    name, *words = command.split()
    if name in _COMPLAINTS and words[0] not in files:
        return f"{name}: {_COMPLAINTS[name]} '{words[0]}': No such file or directory\n[exit code 1]"
    return "[no output]"


# Tool calls


def with_tools(rng: random.Random) -> Scene:
    """One call of one of two tools."""
    task = _drawn(rng, toolcall.one_device, lambda one: json.dumps(one["calls"]) in _heldout("toolcall"))
    asked = task["calls"][0]
    made = _drawn(rng, toolcall.one_device, lambda one: one["tools"] != task["tools"] or one["calls"] == task["calls"])
    other = made["calls"][0]
    right, slip = ([_calls(one["name"], **one["arguments"])] for one in (asked, other))
    tools = [device_schema(name) for name in toolcall.DEVICES if name in task["tools"]]
    return Scene(task, [_user(task["question"])], tools, right, slip)


def device_schema(name: str) -> Message:
    """The schema of a tool of the MCP server beside the tasks."""
    parameters = {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}
    function = {"name": name, "description": f"Set the {name}.", "parameters": parameters}
    return {"type": "function", "function": function}


# Software

_ISSUE = re.compile(r"In (\w\.py) x is (\d)\. Set x to (\d)\.")


def in_repository(rng: random.Random) -> Scene:
    """One value in a file, then the submission."""
    row = _drawn(rng, swe.value, lambda one: one["problem_statement"] in _heldout("swe"))
    other = _drawn(rng, swe.value, lambda one: _edit(one) == _edit(row))
    right, slip = (_submitted(_edit(one), row["files"]) for one in (row, other))
    prompt = [{"role": "system", "content": SYSTEM}, _user(row["problem_statement"])]
    return Scene(row, prompt, [], right, slip)


def _edit(row: Message) -> str:
    found = _ISSUE.match(row["problem_statement"])
    assert found is not None
    file, old, new = found.groups()
    return f"sed -i 's/{old}/{new}/' {file}"


def _submitted(command: str, files: Any) -> list[Message]:
    file = command.split()[-1]
    printed = "" if file in files else f"sed: can't read {file}: No such file or directory"
    result = f"<returncode>{2 if printed else 0}</returncode>\n<output>\n{printed}\n</output>"
    said = [{"role": "assistant", "content": f"```bash\n{one}\n```"} for one in (command, f"echo {SENTINEL}")]
    return [said[0], _user(result), said[1]]


# Screens


def on_screen(rng: random.Random) -> Scene:
    """One click among a few elements, or none."""
    maker = rng.choice(gui.STEPS[1])
    task = _drawn(rng, maker, lambda one: _shown(one) in _heldout("gui"))
    lines = outline(task["data"])
    goal = json.loads(json.loads(task["checks"][0].partition(" === ")[2]))
    wrong = rng.choice([item for item in lines if item != goal])
    right, slip = (_clicks(lines, item) for item in (goal, wrong))
    if rng.random() < GIVES_UP:
        slip = _calls("computer_use", action="terminate", status="failure")
    prompt = _user("\n".join((task["instruction"], *lines.values())))
    return Scene(task, [prompt], [build_tool_schema(GUI_ACTIONS)], [right], [slip])


def _clicks(lines: dict[str, str], item: str) -> Message:
    """A click, behind the line of what is clicked: the name leads to the number, the number into the call."""
    ref = 1 + list(lines).index(item)
    return _calls("computer_use", lines[item], action="left_click", ref=ref)


def outline(data: Message) -> dict[str, str]:
    """For each item the line that the environment shows of it on the page `choose.html`."""
    items = enumerate(data["items"], 1)
    return {item: str(Element(number, data["kind"], item)) for number, item in items}


def _shown(task: Message) -> str:
    return json.dumps([task["instruction"], task["data"]])


# What all of them share


def _drawn(rng: random.Random, maker: Callable[[random.Random], Any], refused: Callable[[Any], bool]) -> Any:
    """The first task that is not refused."""
    while refused(made := maker(rng)):
        pass
    return made


@cache
def _heldout(env: str) -> frozenset[str]:
    """Return what identifies the held-out tasks of an environment."""
    if env == "terminal":
        return frozenset(one.instruction for one in terminal.generate()["heldout"])
    if env == "toolcall":
        return frozenset(json.dumps(one.get("calls")) for one in toolcall.generate()["heldout"])
    if env == "swe":
        return frozenset(one["problem_statement"] for one in swe.generate()["heldout"])
    return frozenset(_shown(one) for one in gui.generate()["heldout"])


SCENES: dict[str, Callable[[random.Random], Scene]] = {
    "terminal": in_terminal,
    "gui": on_screen,
    "swe": in_repository,
    "toolcall": with_tools,
}
"""What makes scenes of each environment."""
SAME_TOOLS = ("gui", "swe", "terminal")
"""Where every task has the same tools, so that several fit in a conversation."""
