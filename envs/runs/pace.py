"""Pace of a rollout: it begins no further group of episodes while enough samples wait for the trainer.

What waits is counted in the ledger, where samples that were dropped or refused wait no more. The trainer's heartbeat
tells whether waiting is of use: a trainer at work may take long for one pass of a large model, and a dead one takes
none of what waits.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from clawrl_trl.heartbeat import TRAINING
from clawrl_trl.ledger import Ledger, samples, turns
from clawrl_trl.run import RunFolder

logger = logging.getLogger(__name__)

POLL_S = 0.2
PASS_S = 300.0
"""Longest pass of training, in seconds; a trainer that is silent for longer is taken for dead."""


def count_waiting(ledger: Ledger, hints: Sequence[str]) -> int:
    """Count the samples of a run that wait to be trained.

    Args:
        ledger (`Ledger`): The run's ledger.
        hints (`Sequence[str]`): What the trainer needs of a sample where hints make teachers; those that still wait
            for one are counted too. Empty: the score, which a sample has from the start.
    """
    with ledger.reader() as tx:
        judging = turns.counts(tx).get("judging", 0) if hints else 0
        return judging + samples.counts(tx).get("leased", 0) + samples.ready(tx, hints or ("score",))


class Pace:
    """Holds a rollout back while the trainer has not taken in what was played.

    Args:
        run (`Path`): The run folder.
        waiting (`Callable[[], int]`): Counts the samples that wait to be trained.
        room (`int`): Samples that may wait when a group begins.
        idle_s (`float`): Longest wait while the trainer itself waits, in seconds: for a judge that is away, say.
        pass_s (`float`, *optional*, defaults to 300): Longest wait for the trainer's next pass, in seconds.
    """

    def __init__(
        self, run: Path, waiting: Callable[[], int], *, room: int, idle_s: float, pass_s: float = PASS_S
    ) -> None:
        self._heartbeat = RunFolder(run).heartbeat
        self._waiting, self._room = waiting, room
        self._idle_s, self._pass_s = idle_s, pass_s

    def wait(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Wait; return when another group may begin.

        Args:
            is_stopped (`Callable[[], bool]`, *optional*): True ends the wait, for no further group will begin.
        """
        newest, since = self._read_heartbeat(), time.monotonic()
        while not is_stopped() and self._waiting() >= self._room:
            heartbeat = self._read_heartbeat()
            if heartbeat != newest:
                # By this process's clock, which nobody sets: the file's time only tells that there is a new one.
                newest, since = heartbeat, time.monotonic()
            longest = self._pass_s if heartbeat[0] == TRAINING else self._idle_s
            if time.monotonic() - since > longest:
                logger.warning("the trainer has taken no samples for %.0f s: the rollout goes on", longest)
                return
            time.sleep(POLL_S)

    def _read_heartbeat(self) -> tuple[str, int]:
        """Return what the trainer does, and when it said so; `("", 0)` if it never did."""
        with suppress(OSError):
            return self._heartbeat.read_text(), self._heartbeat.stat().st_mtime_ns
        return "", 0
