"""Tasks in a native window: a program is started in an empty folder, and judged by the files it leaves there."""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clawrl_trl.envs.gui_tasks import Scene
from clawrl_trl.envs.message import Json
from clawrl_trl.envs.screen import Size
from clawrl_trl.envs.x11 import X11Screen


@dataclass(frozen=True)
class X11Task:
    """A task in a program with a window.

    Attributes:
        id (`str`): Its name, unique in its set.
        instruction (`str`): What the agent is asked.
        program (`tuple[str, ...]`): The program and its arguments; it runs with this process's rights, so give it no
            shell and no file dialog.
        expected (`Mapping[str, str]`): Content of files that the program must have written, by their names; the share
            that is right is the progress.
        oracle (`tuple[dict, ...]`): Arguments of `computer_use` that solve it.
        difficulty (`int`): 1 is easiest.
        size (`tuple[int, int]`): Width and height of the screen in pixels.
    """

    id: str
    instruction: str
    program: tuple[str, ...]
    expected: Mapping[str, str] = field(default_factory=dict)
    oracle: tuple[Json, ...] = ()
    difficulty: int = 1
    size: Size = (320, 240)

    def play(self) -> Scene:
        """Start the program."""
        return X11Scene(self)


class X11Scene:
    """A task's program under way."""

    def __init__(self, task: X11Task) -> None:
        self.instruction = task.instruction
        self._expected = task.expected
        self._folder = Path(tempfile.mkdtemp(prefix="clawrl-x11-"))
        try:
            self.screen = X11Screen(task.program, task.size, cwd=str(self._folder))
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def progress(self) -> float:
        right = [self._read(name) == content for name, content in self._expected.items()]
        return sum(right) / max(1, len(right))

    def over(self) -> bool:
        return False

    def outcome(self) -> float:
        return 1.0 if self._expected and self.progress() == 1.0 else -1.0

    def close(self) -> None:
        self.screen.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return None
