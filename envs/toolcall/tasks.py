"""Tasks of the tool-call environment: a question with its right answer, or the calls it asks for.

A task set is a file of JSON lines. `answer` asks for a right answer in the last reply; `calls` for exactly these
calls, in any order; a task with both asks for both. `solution` holds the actions of an oracle.

```json
{"id": "add-1", "question": "How much is 3 + 4?", "answer": "7", "difficulty": 1, "tools": ["add"],
 "solution": [{"calls": [{"name": "add", "arguments": {"a": 3, "b": 4}}]}, {"text": "\\boxed{7}"}]}
```
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clawrl_trl.errors import UserError
from clawrl_trl.json_lines import split_lines
from clawrl_trl.messages import Json


@dataclass(frozen=True)
class ToolTask:
    r"""One question.

    Attributes:
        id (`str`): A name that is unique within its task set.
        question (`str`): What the user says.
        answer (`str`, *optional*): The right answer: a number or LaTeX.
        calls (`list[dict]`): The calls asked for, each with `name` and `arguments`.
        tools (`list[str]`, *optional*): Names of the tools on offer; default: all there are.
        difficulty (`int`): Difficulty step, from 1.
        solution (`list[dict]`): The oracle's actions, each with `calls` or `text`.
        config (`Path`, *optional*): The `TOOLS_CONFIG` file of its tools: `tools.json` beside its task set.
    """

    id: str
    question: str
    answer: str | None = None
    calls: Sequence[Json] = ()
    tools: Sequence[str] | None = None
    difficulty: int = 1
    solution: Sequence[Json] = field(default=(), repr=False)
    config: Path | None = None

    def oracle(self) -> list[str]:
        """Return actions that solve the task."""
        return [make_action(step.get("calls", ()), step.get("text", "")) for step in self.solution]

    def noop(self) -> list[str]:
        """Return actions that end the episode with nothing done."""
        return [make_action((), "I don't know.")]


def make_action(calls: Sequence[Json], text: str = "") -> str:
    """Make an action, an assistant message as JSON, of calls with `name` and `arguments`."""
    tool_calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)},
        }
        for number, call in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text} | ({"tool_calls": tool_calls} if tool_calls else {})
    return json.dumps(message, ensure_ascii=False)


def read_tool_tasks(path: Path | str, *, difficulty: int | None = None) -> list[ToolTask]:
    """Read a task set.

    Args:
        path (`Path` or `str`): A file of JSON lines.
        difficulty (`int`, *optional*): Keep the tasks of this difficulty step only.

    Raises:
        UserError: If the file is missing or a line is no task.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no task set {path}: name a file of JSON lines.")
    lines = split_lines(path.read_text())
    config = path.parent / "tools.json" if (path.parent / "tools.json").is_file() else None
    tasks = [
        _read_task(line, f"{path}, line {number}", config) for number, line in enumerate(lines, 1) if line.strip()
    ]
    if len({task.id for task in tasks}) < len(tasks):
        raise UserError(f"Two tasks in {path} have the same id: rename one.")
    return [task for task in tasks if difficulty in (None, task.difficulty)]


def _read_task(line: str, where: str, config: Path | None) -> ToolTask:
    try:
        row: Json = json.loads(line)
        task = ToolTask(**row, config=config)
    except (ValueError, TypeError) as error:
        raise UserError(f"{where} is no tool-call task ({error}): see clawrl_trl.envs.toolcall.tasks.") from None
    if task.answer is None and not task.calls:
        raise UserError(f'{where} asks for nothing: give it an "answer" or "calls".')
    return task
