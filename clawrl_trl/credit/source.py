"""Sources of samples: what a trainer draws its batches from.

A trainer asks `take(wait_s)` for the next batch and is never kept longer than `wait_s`, so that it can look after
its other ranks and notice that it should stop. Two sources exist: the ledger of a live run, where a batch is
written down before it is trained and an unfinished one comes back first with the same content; and any iterable
of samples or JSON rows, for training without a gateway. Neither knows torch.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from clawrl_trl import pictures
from clawrl_trl.credit.sample import FloatArray, TrainingSample
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger, batches, events, samples
from clawrl_trl.ledger.columns import Floats, Ids
from clawrl_trl.ledger.errors import DigestMismatch
from clawrl_trl.ledger.schema import Batch, Sample, Turn


@dataclass(frozen=True, eq=False)
class SampleBatch:
    """Samples that are trained together.

    Args:
        samples: At least one.
        batch_id: The ledger's batch; `None` when the samples come from elsewhere.
    """

    samples: list[TrainingSample]
    batch_id: str | None = None


@runtime_checkable
class Source(Protocol):
    """Protocol of a trainer's source of samples."""

    def take(self, wait_s: float) -> SampleBatch | None:
        """The next batch, or `None` when there is none after `wait_s` seconds."""

    def ended(self) -> bool:
        """Return whether no batch will come any more."""


class ListSource:
    """A source over samples that exist already.

    Args:
        items: Samples, or JSON rows with `TrainingSample`'s field names. With a length it can be trained for
            several epochs; a bare iterator is read once, while it is trained.
        batch_size: Samples per batch. The last batch may be smaller.
    """

    def __init__(self, items: Iterable[TrainingSample | Mapping[str, Any]], *, batch_size: int) -> None:
        self.items = list(items) if isinstance(items, Sized) else items
        self.batch_size = batch_size
        self._iterator: Iterator[TrainingSample | Mapping[str, Any]] | None = None
        self._ended = False

    def __len__(self) -> int:
        """Batches per epoch.

        Raises:
            TypeError: If the items have no length.
        """
        if not isinstance(self.items, list):
            raise TypeError("this source has no length")
        return -(-len(self.items) // self.batch_size)

    def restart(self) -> None:
        """Begin another epoch, where the items allow it."""
        if isinstance(self.items, list):
            self._iterator, self._ended = None, False

    def take(self, wait_s: float = 0.0) -> SampleBatch | None:
        """The next batch, or `None` at the end."""
        if self._iterator is None:
            self._iterator = iter(self.items)
        taken: list[TrainingSample] = []
        for row in self._iterator:
            taken.append(TrainingSample.from_row(row))
            if len(taken) == self.batch_size:
                return SampleBatch(taken)
        self._ended = True
        return SampleBatch(taken) if taken else None

    def ended(self) -> bool:
        return self._ended

    def __iter__(self) -> Iterator[SampleBatch]:
        """One epoch of batches."""
        self.restart()
        while (batch := self.take()) is not None:
            yield batch


class LedgerSource:
    """Leases batches from a run's ledger.

    An unfinished batch, one that was leased and never committed, is returned first and unchanged. Otherwise a
    batch is leased as soon as `batch_size` samples are ready, or with fewer once the oldest that may be leased has
    waited `timeout_s`.

    Args:
        ledger: The open ledger.
        batch_size: Samples per batch. Default: set by the trainer, which knows how many it takes per published
            version.
        needs: Ingredients of which a sample needs at least one: `"score"`, `"teacher"`. Default: set by the
            trainer's method.
        max_staleness: Samples of policies more than this many updates behind are dropped, with that reason. Default:
            set by the trainer's config.
        poll_s: Seconds between two looks into the ledger.
        timeout_s: Seconds the oldest sample that may be leased waits for a full batch.
        baseline_window: Scores of samples without a group are compared with the sum of the last so many trained ones,
            over their number; 0 leaves them as they are. Default: set by the trainer's config.
        stop: Asked between two looks; true ends the source.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        batch_size: int | None = None,
        needs: tuple[str, ...] | None = None,
        max_staleness: int | None = None,
        poll_s: float = 0.2,
        timeout_s: float | None = None,
        baseline_window: int | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.ledger = ledger
        self.batch_size = batch_size
        self.needs = needs
        self.max_staleness = max_staleness
        self.poll_s = poll_s
        self.timeout_s = timeout_s
        self.baseline_window = baseline_window
        self.stop = stop
        self.version = 0
        """Policy version the trainer holds; staleness is counted from it."""

    def take(self, wait_s: float) -> SampleBatch | None:
        """Lease a batch, waiting at most `wait_s` seconds for one."""
        deadline = time.monotonic() + wait_s
        while not self.stop():
            batch = self._lease()
            if batch is not None:
                return batch
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(self.poll_s, left))
        return None

    def ended(self) -> bool:
        return self.stop()

    def give_up(self, batch: SampleBatch, reason: str) -> None:
        """Release a leased batch and drop its samples, with the reason."""
        assert batch.batch_id is not None
        with self.ledger.transaction() as tx:
            batches.release(tx, batch.batch_id, f"its samples are given up: {reason}")
            for sample in batch.samples:
                samples.drop(tx, sample.sample_id, reason)

    def __iter__(self) -> Iterator[SampleBatch]:
        """Batches until `stop`. The one that was yielded comes again unless it was committed meanwhile."""
        while not self.ended():
            batch = self.take(60.0)
            if batch is not None:
                yield batch

    def _lease(self) -> SampleBatch | None:
        size = self.batch_size or 4
        needs = self.needs or samples.NEEDS
        staleness = 4 if self.max_staleness is None else self.max_staleness
        if not self._worth_a_lease(size, needs):
            return None
        leasable = batches.leasable(needs, staleness, self.version)
        with self.ledger.transaction() as tx:
            try:
                batch = batches.lease(
                    tx,
                    size=size,
                    needs=needs,
                    max_staleness=staleness,
                    current_version=self.version,
                    min_size=1 if self._oldest_waited_enough(tx, leasable) else size,
                )
            except DigestMismatch as mismatch:
                self._release_changed(tx, mismatch)
                return None
            if batch is None:
                return None
            found = batches.samples_of(tx, batch)
            reasons = {sample.id: reason for sample, turn in found if (reason := _unusable(turn))}
            if reasons:
                batches.release(tx, batch.id, "some of its samples can't be trained")
                for sample_id, reason in reasons.items():
                    samples.drop(tx, sample_id, reason)
                return None
            trained = [training_sample(sample, turn) for sample, turn in found]
            return SampleBatch(self._compared(tx, trained), batch.id)

    def _compared(self, tx: Session, trained: list[TrainingSample]) -> list[TrainingSample]:
        """Give the samples that have no group the baseline of their time: what was trained before them."""
        window = self.baseline_window or 0
        if not window:
            return trained
        # As long as there are fewer, the missing ones count as 0: one early verdict is no habit to compare with.
        baseline = sum(samples.recent_scores(tx, window)) / window
        return [
            replace(one, baseline=baseline, scale=1.0) if one.group is None and one.measure is None else one
            for one in trained
        ]

    def _worth_a_lease(self, size: int, needs: tuple[str, ...]) -> bool:
        """A cheap look that takes no write lock: is there an open batch, or enough to lease or to drop?"""
        with self.ledger.reader() as tx:
            if tx.scalar(select(func.count()).where(Batch.state == "leased")):
                return True
            waiting = samples.ready(tx, needs)
            return waiting >= size or (waiting > 0 and self._oldest_waited_enough(tx, Sample.state == "ready"))

    def _oldest_waited_enough(self, tx: Any, among: ColumnElement[bool]) -> bool:
        oldest = tx.scalar(select(func.min(Sample.created_at)).where(among))
        timeout = 30.0 if self.timeout_s is None else self.timeout_s
        return oldest is not None and time.time() - oldest >= timeout

    def _release_changed(self, tx: Any, mismatch: DigestMismatch) -> None:
        """A leased batch is not what it was: its samples go back to the free ones, for a batch of their own."""
        for batch in tx.scalars(select(Batch).where(Batch.state == "leased")):
            batches.release(tx, batch.id, str(mismatch))
            events.log(tx, "batch_changed", batch.id, reason=str(mismatch))


def _unusable(turn: Turn) -> str | None:
    """Why the ratio of a turn's tokens can't be formed, or `None`."""
    if turn.prompt_ids is None or turn.completion_ids is None or turn.logprobs is None:
        return "token ids or log-probs are missing"
    if not len(turn.prompt_ids) or not len(turn.completion_ids):
        return "no tokens"
    if _temperature(turn) <= 0:
        return "greedy: sampled at temperature 0"
    return None


def _temperature(turn: Turn) -> float:
    value = turn.sampling.get("temperature")
    return 1.0 if value is None else float(value)


def training_sample(sample: Sample, turn: Turn) -> TrainingSample:
    """The training sample of a ledger's sample and its turn.

    Raises:
        ValueError: If the turn has no token ids or the arrays do not fit.
    """
    if turn.prompt_ids is None or turn.completion_ids is None or turn.logprobs is None:
        raise ValueError(f"turn {turn.id} has no token ids or log-probs")
    return TrainingSample(
        sample_id=sample.id,
        prompt_ids=turn.prompt_ids.astype(np.int64),
        completion_ids=turn.completion_ids.astype(np.int64),
        logprobs=turn.logprobs.astype(np.float64),
        images=tuple(pictures.contents(turn.messages)),
        policy_version=sample.policy_version,
        temperature=_temperature(turn),
        score=sample.score,
        teacher_logprobs=_doubles(sample.teacher_logprobs),
        plain_logprobs=_doubles(sample.plain_logprobs),
        topk_ids=_rows(sample.topk_ids, len(turn.completion_ids)),
        topk_logprobs=_rows(sample.topk_logprobs, len(turn.completion_ids)),
        group=sample.group,
        baseline=sample.baseline,
        scale=sample.scale,
        weight=sample.weight,
    )


def _doubles(array: Floats | None) -> FloatArray | None:
    return None if array is None else array.astype(np.float64)


def _rows(array: Ids | Floats | None, length: int) -> Any:
    """`[T, K]` out of the ledger's `[T * K]`."""
    return None if array is None else array.reshape(length, -1)


def as_source(source: Any, *, batch_size: int) -> Source:
    """A source from what a user passed: a source, a path to JSON lines, or an iterable of samples or rows.

    Raises:
        TypeError: If it is none of these.
        UserError: If the file can't be read.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, (str, Path)):
        try:
            lines = Path(source).read_text().splitlines()
        except OSError as error:
            raise UserError(f"{source} can't be read ({error.strerror}): name a file of JSON lines.") from None
        return ListSource([json.loads(line) for line in lines if line.strip()], batch_size=batch_size)
    if isinstance(source, Iterable):
        return ListSource(source, batch_size=batch_size)
    raise TypeError(f"a source is a Source, a path or an iterable of samples, not {type(source).__name__}")
