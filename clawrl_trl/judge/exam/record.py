"""Record of exams in a run folder, so that a run that is started again need not sit the same one."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from clawrl_trl.judge.exam.result import ExamResult
from clawrl_trl.run import write_private

logger = logging.getLogger(__name__)

FILE_NAME = "judge_exam.json"
MOST_RECORDS = 16
"""Results kept, newest first."""

_RESULTS: TypeAdapter[list[ExamResult]] = TypeAdapter(list[ExamResult])


class ExamRecord:
    """The exams that were sat in a run.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def read(self) -> list[ExamResult]:
        """Read the results, newest first; a file that can't be read holds none, and is told."""
        try:
            content = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            logger.warning("%s can't be read, the exam is sat again: %s", self._path, error)
            return []
        try:
            results = _RESULTS.validate_json(content)
        except ValidationError:
            logger.warning("%s holds no results of exams, the exam is sat again", self._path)
            return []
        return sorted(results, key=lambda result: -result.sat_at)

    def find(self, key: str) -> ExamResult | None:
        """Find the newest result of an exam, if it was sat."""
        return next((result for result in self.read() if result.key == key), None)

    def store(self, result: ExamResult) -> None:
        """Store a result; without a run folder, as in `clawrl judge eval`, nothing is kept.

        A disk that can't be written to costs only another exam, so it is told and no error.
        """
        if not self._path.parent.is_dir():
            return
        others = [other for other in self.read() if other.key != result.key]
        rows: list[Mapping[str, object]] = [asdict(kept) for kept in [result, *others][:MOST_RECORDS]]
        try:
            write_private(self._path, json.dumps(rows, indent=1) + "\n")
        except OSError as error:
            logger.warning("%s can't be written, the next start sits the exam again: %s", self._path, error)
