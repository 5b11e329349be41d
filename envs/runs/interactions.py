"""Record of the interactions, or groups of episodes, of a run: a JSON line each, appended when it is over.

A line is written by one system call and forced to disk, so a killed process leaves whole lines and at most
one torn one, which the next start cuts off. What is on record is never played again.
"""

import json
import os
from pathlib import Path

from clawrl_trl.messages import Json


class Interactions:
    """Rows of `interactions.jsonl`, or `episodes.jsonl`, in a run folder.

    Args:
        path (`Path`): The file; made with the first row.

    Attributes:
        rows (`list[dict]`): What is on record, in the order it was played.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Json] = []
        if path.exists():
            self._recover()

    def append(self, row: Json) -> None:
        """Put one row on record."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
        file = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        try:
            os.write(file, line)
            os.fsync(file)  # what is on record is never played again: it must outlive a power cut
        finally:
            os.close(file)
        self.rows.append(dict(row))

    def find_missing(self, count: int) -> list[int]:
        """Indices below `count` that are not on record, in order."""
        played = {row["index"] for row in self.rows}
        return [index for index in range(count) if index not in played]

    def _recover(self) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        self.rows = [json.loads(line) for line in whole.splitlines()]
