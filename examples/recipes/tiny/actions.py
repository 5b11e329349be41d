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


def _make_user_message(text: str) -> Message:
    return {"role": "user", "content": text}


def _make_call(name: str, content: str = "", **arguments: Any) -> Message:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _make_episode(call: Message, result: str) -> list[Message]:
    """A call, its result, and the end."""
    return [call, {"role": "tool", "content": result}, DONE]


# Terminal


def make_terminal_scene(rng: random.Random) -> Scene:
    """One short command."""
    maker = rng.choice(terminal.MAKERS["easy"])
    task = _draw_accepted(rng, maker, lambda candidate: candidate.instruction in _list_heldout("terminal"))
    wrong_task = _draw_accepted(rng, maker, lambda candidate: candidate.solution == task.solution)
    right, slip = (
        _make_episode(_make_call("shell_exec", command=command), _simulate_output(command, task.files))
        for command in (task.solution, wrong_task.solution)
    )
    return Scene(task, [_make_user_message(task.instruction)], SCHEMAS, right, slip)


_COMPLAINTS = {"rm": "cannot remove", "cp": "cannot stat", "mv": "cannot stat"}


def _simulate_output(command: str, files: Any) -> str:
    name, *words = command.split()
    if name in _COMPLAINTS and words[0] not in files:
        return f"{name}: {_COMPLAINTS[name]} '{words[0]}': No such file or directory\n[exit code 1]"
    return "[no output]"


# Tool calls


def make_tool_scene(rng: random.Random) -> Scene:
    """One call of one of two tools."""
    task = _draw_accepted(
        rng, toolcall.one_device, lambda candidate: json.dumps(candidate["calls"]) in _list_heldout("toolcall")
    )
    right_call = task["calls"][0]
    wrong_task = _draw_accepted(
        rng,
        toolcall.one_device,
        lambda candidate: candidate["tools"] != task["tools"] or candidate["calls"] == task["calls"],
    )
    wrong_call = wrong_task["calls"][0]
    right, slip = ([_make_call(candidate["name"], **candidate["arguments"])] for candidate in (right_call, wrong_call))
    tools = [make_device_schema(name) for name in toolcall.DEVICES if name in task["tools"]]
    return Scene(task, [_make_user_message(task["question"])], tools, right, slip)


def make_device_schema(name: str) -> Message:
    """The schema of a tool of the MCP server beside the tasks."""
    parameters = {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}
    function = {"name": name, "description": f"Set the {name}.", "parameters": parameters}
    return {"type": "function", "function": function}


# Software

_ISSUE = re.compile(r"In (\w\.py) x is (\d)\. Set x to (\d)\.")


def make_repository_scene(rng: random.Random) -> Scene:
    """One value in a file, then the submission."""
    row = _draw_accepted(rng, swe.value, lambda candidate: candidate["problem_statement"] in _list_heldout("swe"))
    wrong_row = _draw_accepted(
        rng, swe.value, lambda candidate: _make_edit_command(candidate) == _make_edit_command(row)
    )
    right, slip = (_make_submission(_make_edit_command(candidate), row["files"]) for candidate in (row, wrong_row))
    prompt = [{"role": "system", "content": SYSTEM}, _make_user_message(row["problem_statement"])]
    return Scene(row, prompt, [], right, slip)


def _make_edit_command(row: Message) -> str:
    match = _ISSUE.match(row["problem_statement"])
    assert match is not None
    file, old, new = match.groups()
    return f"sed -i 's/{old}/{new}/' {file}"


def _make_submission(command: str, files: Any) -> list[Message]:
    file = command.split()[-1]
    printed = "" if file in files else f"sed: can't read {file}: No such file or directory"
    result = f"<returncode>{2 if printed else 0}</returncode>\n<output>\n{printed}\n</output>"
    replies = [{"role": "assistant", "content": f"```bash\n{block}\n```"} for block in (command, f"echo {SENTINEL}")]
    return [replies[0], _make_user_message(result), replies[1]]


# Screens


def make_screen_scene(rng: random.Random) -> Scene:
    """One click among a few elements, or none."""
    maker = rng.choice(gui.STEPS[1])
    task = _draw_accepted(rng, maker, lambda candidate: _identify_gui_task(candidate) in _list_heldout("gui"))
    lines = make_outline(task["data"])
    goal = json.loads(json.loads(task["checks"][0].partition(" === ")[2]))
    wrong = rng.choice([item for item in lines if item != goal])
    right, slip = (_make_click(lines, item) for item in (goal, wrong))
    if rng.random() < GIVES_UP:
        slip = _make_call("computer_use", action="terminate", status="failure")
    prompt = _make_user_message("\n".join((task["instruction"], *lines.values())))
    return Scene(task, [prompt], [build_tool_schema(GUI_ACTIONS)], [right], [slip])


def _make_click(lines: dict[str, str], item: str) -> Message:
    """A click, behind the line of what is clicked: the name leads to the number, the number into the call."""
    ref = 1 + list(lines).index(item)
    return _make_call("computer_use", lines[item], action="left_click", ref=ref)


def make_outline(data: Message) -> dict[str, str]:
    """For each item the line that the environment shows of it on the page `choose.html`."""
    items = enumerate(data["items"], 1)
    return {item: str(Element(number, data["kind"], item)) for number, item in items}


def _identify_gui_task(task: Message) -> str:
    return json.dumps([task["instruction"], task["data"]])


# What all of them share


def _draw_accepted(
    rng: random.Random, maker: Callable[[random.Random], Any], is_refused: Callable[[Any], bool]
) -> Any:
    """The first task that is not refused."""
    while is_refused(task := maker(rng)):
        pass
    return task


@cache
def _list_heldout(env: str) -> frozenset[str]:
    """Return what identifies the held-out tasks of an environment."""
    if env == "terminal":
        return frozenset(task.instruction for task in terminal.generate()["heldout"])
    if env == "toolcall":
        return frozenset(json.dumps(task.get("calls")) for task in toolcall.generate()["heldout"])
    if env == "swe":
        return frozenset(task["problem_statement"] for task in swe.generate()["heldout"])
    return frozenset(_identify_gui_task(task) for task in gui.generate()["heldout"])


SCENES: dict[str, Callable[[random.Random], Scene]] = {
    "terminal": make_terminal_scene,
    "gui": make_screen_scene,
    "swe": make_repository_scene,
    "toolcall": make_tool_scene,
}
"""What makes scenes of each environment."""
SAME_TOOLS = ("gui", "swe", "terminal")
"""Where every task has the same tools, so that several fit in a conversation."""
