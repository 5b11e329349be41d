"""An episode on a screen as one picture: what was seen, what was done about it, how it ended.

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

from clawrl_trl.envs.base.message import Json, read_action
from clawrl_trl.envs.gui.env import GUIEnv
from clawrl_trl.envs.gui.oracle import act, written
from clawrl_trl.envs.gui.tasks import read_tasks
from clawrl_trl.messages import text_of
from clawrl_trl.pictures import Picture

COLUMNS = 4
_GAP, _LINE = 12, 18
_PAPER, _INK, _FRAME, _SOLVED, _FAILED = "#fbfaf7", "#22303c", "#b8b0a2", "#2a9d6f", "#d1495b"


@dataclass(frozen=True)
class Frame:
    """A moment of an episode.

    Attributes:
        png (`bytes`): What the screen showed.
        caption (`str`): What was done just before, or how it ended.
    """

    png: bytes
    caption: str


def record(env: GUIEnv) -> tuple[str, list[Frame], float]:
    """Play an episode by the task's oracle.

    Args:
        env ([`GUIEnv`]): The environment, which is reset.

    Returns:
        The instruction, the frames, and the outcome.
    """
    state = env.reset()
    instruction = state["message"].splitlines()[0]
    frames = [Frame(env.png, "start")]
    for arguments in written(env):
        if state["done"]:
            break
        on = next((one.label for one in env.elements if one.ref == arguments.get("ref")), "")
        caption = _caption(arguments, on)
        state = act(env, state, arguments)
        frames.append(Frame(env.png, caption))
    if not state["done"]:
        state = act(env, state, {"action": "terminate"})
    return instruction, frames, float(state["outcome"])


def of_session(rows: Sequence[Mapping[str, Any]], pictures: Sequence[Picture], path: str | Path) -> None:
    """Draw the pictures of a captured session.

    Args:
        rows (`Sequence[Mapping]`): Its turns, as `turns.inspect` gives them.
        pictures (`Sequence[Picture]`): At least one, see [`clawrl_trl.pictures.of_session`].
        path (`str` or `Path`): The PNG file.
    """
    asked = next((text_of(one) for one in rows[0]["messages"] if one.get("role") == "user"), "")
    done = {}
    for row in rows:
        done[sum(one.get("role") == "assistant" for one in row["messages"]) + 1] = _said(row["response"] or {})
    frames = [Frame(one.png(), done.get(one.step, "start" if one.step == 0 else "")) for one in pictures]
    outcome = next((row["detail"]["outcome"] for row in rows if "outcome" in row["detail"]), None)
    filmstrip(asked.partition("\n")[0], frames, outcome, path)


def filmstrip(title: str, frames: Sequence[Frame], outcome: float | None, path: str | Path) -> None:
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


def _caption(arguments: Mapping[str, Any], on: str = "") -> str:
    """A call in words, with the label of the element it names."""
    what = arguments.get("text") or "+".join(map(str, arguments.get("keys") or ()))
    said = f" {what!r}" if what else ""
    return f"{arguments['action']}{said}{f' {on}' if on else ''}"


def _said(response: Json) -> str:
    """A reply in a few words: its calls, else its text."""
    calls = read_action(json.dumps({**response, "role": "assistant"})).calls
    words = [
        _caption({"action": one.name, **one.arguments}, f"[{one.arguments['ref']}]" if "ref" in one.arguments else "")
        for one in calls
    ]
    return (", ".join(words) or " ".join(text_of(response).split()))[:60]


def main(tasks: str, name: str, path: str) -> None:
    """Play one task of a file and draw it."""
    chosen = [task for task in read_tasks(tasks) if task.id == name]
    with closing(GUIEnv(chosen)) as env:
        filmstrip(*record(env), path)


if __name__ == "__main__":
    main(*sys.argv[1:])
