"""Sign of life of a trainer, for the processes that play for it."""

from contextlib import suppress
from pathlib import Path

from clawrl_trl.run import write_private

TRAINING, WAITING = "training", "waiting"
"""What it says: a pass is under way, or the trainer waits for samples."""


class Heartbeat:
    """File of a run folder that says what the trainer does, renewed at each pass of training.

    Args:
        path (`Path`): The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_waiting = False

    def begin_pass(self) -> None:
        """Say that a forward and backward pass begins."""
        self._is_waiting = False
        self._write(TRAINING)

    def begin_waiting(self) -> None:
        """Say that the trainer waits for samples; repeated calls write nothing."""
        if not self._is_waiting:
            self._is_waiting = True
            self._write(WAITING)

    def _write(self, activity: str) -> None:
        # A disk that is full for a moment must not end the training.
        with suppress(OSError):
            write_private(self._path, activity)
