"""Filmstrip: an episode on a screen as one picture, with its screenshots, actions and outcome.

```bash
python -m clawrl_trl.envs.gui.filmstrip examples/tasks/gui/train.jsonl train-3-03-drag docs/filmstrip.png
```
"""

import io
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from clawrl_trl.envs.base.message import read_action
from clawrl_trl.envs.gui.env import GUIEnv
from clawrl_trl.envs.gui.oracle import follow_task_oracle, step_with_calls
from clawrl_trl.envs.gui.tasks import read_tasks
from clawrl_trl.messages import Json, text_of
from clawrl_trl.pictures import Picture

COLUMNS = 4
_GAP, _LINE = 12, 18
_PAPER, _INK, _FRAME, _SOLVED, _FAILED = "#fbfaf7", "#22303c", "#b8b0a2", "#2a9d6f", "#d1495b"


@dataclass(frozen=True)
class Frame:
    """A moment of an episode.

    Attributes:
        png (`bytes`): The screenshot.
        caption (`str`): The action just before, or how the episode ended.
    """

    png: bytes
    caption: str


def record_episode(env: GUIEnv) -> tuple[str, list[Frame], float]:
    """Record an episode played by the task's oracle.

    Args:
        env ([`GUIEnv`]): The environment, which is reset.

    Returns:
        The instruction, the frames, and the outcome.
    """
    state = env.reset()
    instruction = state["message"].splitlines()[0]
    frames = [Frame(env.png, "start")]
    for arguments in follow_task_oracle(env):
        if state["done"]:
            break
        # Before the step: afterwards the element may be gone.
        label = next((element.label for element in env.elements if element.ref == arguments.get("ref")), "")
        caption = _describe_call(arguments, label)
        state = step_with_calls(env, state, arguments)
        frames.append(Frame(env.png, caption))
    if not state["done"]:
        state = step_with_calls(env, state, {"action": "terminate"})
    return instruction, frames, float(state["outcome"])


def draw_session(rows: Sequence[Mapping[str, Any]], pictures: Sequence[Picture], path: str | Path) -> None:
    """Draw the pictures of a captured session.

    Args:
        rows (`Sequence[Mapping]`): Its turns, as `turns.inspect` gives them.
        pictures (`Sequence[Picture]`): At least one, see [`clawrl_trl.pictures.list_session_pictures`].
        path (`str` or `Path`): The PNG file.
    """
    instruction = next((text_of(message) for message in rows[0]["messages"] if message.get("role") == "user"), "")
    captions = {}
    for row in rows:
        replies = sum(message.get("role") == "assistant" for message in row["messages"])
        captions[replies + 1] = _describe_reply(row["response"] or {})
    frames = [
        Frame(picture.png(), captions.get(picture.step, "start" if picture.step == 0 else "")) for picture in pictures
    ]
    outcome = next((row["detail"]["outcome"] for row in rows if "outcome" in row["detail"]), None)
    draw_filmstrip(instruction.partition("\n")[0], frames, outcome, path)


def draw_filmstrip(title: str, frames: Sequence[Frame], outcome: float | None, path: str | Path) -> None:
    """Draw frames side by side, in rows of `COLUMNS`.

    Args:
        title (`str`): The line above.
        frames (`Sequence[Frame]`): At least one.
        outcome (`float`, *optional*): How it ended, in [-1, 1], where that is known.
        path (`str` or `Path`): The PNG file.
    """
    pictures = [Image.open(io.BytesIO(frame.png)).convert("RGB") for frame in frames]
    width, height = (max(picture.size[side] for picture in pictures) for side in (0, 1))
    columns = min(COLUMNS, len(frames))
    rows = -(-len(frames) // columns)
    cell_width, cell_height = width + _GAP, height + _LINE + _GAP
    strip = Image.new("RGB", (columns * cell_width + _GAP, rows * cell_height + 2 * _LINE + _GAP), _PAPER)
    draw = ImageDraw.Draw(strip)
    draw.text((_GAP, _GAP), title, fill=_INK, font_size=14)
    for place, (frame, picture) in enumerate(zip(frames, pictures, strict=True)):
        x, y = _GAP + place % columns * cell_width, 2 * _LINE + place // columns * cell_height
        strip.paste(picture, (x, y))
        draw.rectangle((x - 1, y - 1, x + width, y + height), outline=_FRAME)
        last = outcome is not None and place == len(frames) - 1
        ended = f" - outcome {outcome:+g}" if last else ""
        colour = (_SOLVED if (outcome or 0) > 0 else _FAILED) if last else _INK
        draw.text((x, y + height + 3), f"{place}. {frame.caption}{ended}", fill=colour, font_size=12)
    strip.save(path)


def _describe_call(arguments: Mapping[str, Any], label: str = "") -> str:
    """Describe a call in words, with the label of its element."""
    value = arguments.get("text") or "+".join(map(str, arguments.get("keys") or ()))
    argument = f" {value!r}" if value else ""
    return f"{arguments['action']}{argument}{f' {label}' if label else ''}"


def _describe_reply(response: Json) -> str:
    """Describe a reply in a few words: its calls, else its text."""
    calls = read_action(json.dumps({**response, "role": "assistant"})).calls
    words = [
        _describe_call(
            {"action": call.name, **call.arguments}, f"[{call.arguments['ref']}]" if "ref" in call.arguments else ""
        )
        for call in calls
    ]
    return (", ".join(words) or " ".join(text_of(response).split()))[:60]


def main(tasks: str, name: str, path: str) -> None:
    """Play one task of a file and draw it."""
    chosen = [task for task in read_tasks(tasks) if task.id == name]
    with closing(GUIEnv(chosen)) as env:
        draw_filmstrip(*record_episode(env), path)


if __name__ == "__main__":
    main(*sys.argv[1:])
