"""Tasks in a native window: a program in a sandbox, checked by the files that it writes into its folder."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clawrl_trl.envs.gui.screen import Size
from clawrl_trl.envs.gui.tasks import Scene
from clawrl_trl.envs.gui.x11 import X11Screen
from clawrl_trl.envs.sandbox.untrusted_files import read_untrusted_file, remove_folder
from clawrl_trl.messages import Json


@dataclass(frozen=True)
class X11Task:
    """A task in a program with a window.

    Attributes:
        id (`str`): Its name, unique in its set.
        instruction (`str`): The instruction for the agent.
        program (`tuple[str, ...]`): The program and its arguments, as the sandbox sees them.
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

    def open_scene(self) -> Scene:
        """Start the program."""
        return X11Scene(self)


class X11Scene:
    """A task's program under way."""

    def __init__(self, task: X11Task) -> None:
        self.instruction = task.instruction
        self._expected = task.expected
        self._folder = Path(tempfile.mkdtemp(prefix="clawrl-x11-"))
        try:
            self.screen = X11Screen(task.program, task.size, self._folder)
        except BaseException:
            remove_folder(self._folder)
            raise

    def measure_progress(self) -> float:
        files = self._expected.items()
        # A file that is missing reads as an empty one, which may be what is expected.
        correct = [(self._folder / name).exists() and self._read_file(name) == content for name, content in files]
        return sum(correct) / max(1, len(correct))

    def has_ended(self) -> bool:
        return False

    def compute_outcome(self) -> float:
        return 1.0 if self._expected and self.measure_progress() == 1.0 else -1.0

    def close(self) -> None:
        self.screen.close()
        remove_folder(self._folder)

    def _read_file(self, name: str) -> str:
        return read_untrusted_file(self._folder / name).decode(errors="replace").strip()
