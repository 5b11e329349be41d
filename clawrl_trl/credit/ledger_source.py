"""Source of a live run: batches leased from its ledger.

A batch is written down before it is trained; one that was leased and never committed comes first and unchanged, so
that no sample is trained twice or lost. Nothing here knows torch.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from clawrl_trl import pictures
from clawrl_trl.credit.sample import FloatArray, TrainingSample
from clawrl_trl.credit.source import SampleBatch, Source, SourceOptions, find_excess
from clawrl_trl.ledger import Ledger, batches, events, interruptions, samples
from clawrl_trl.ledger.columns import Floats
from clawrl_trl.ledger.errors import DigestMismatch
from clawrl_trl.ledger.schema import Batch, Sample, Turn

ALONE_BATCH_SIZE = 4
"""Samples per batch of a source that no trainer was bound to."""


class LedgerSource(Source):
    """Leases batches from a run's ledger.

    An unfinished batch, one that was leased and never committed, is returned first and unchanged. Otherwise a
    batch is leased as soon as `batch_size` samples are ready, or with fewer once the oldest that may be leased has
    waited `timeout_s`.

    Args:
        ledger: The open ledger.
        batch_size: Samples per batch. Like that of each option that follows, its default is what the trainer asks for
            when it binds the source; it asks for as many as it trains per published version.
        needs: Ingredients of which a sample needs at least one: `"score"`, `"teacher"`.
        max_staleness: Samples of policies more than this many updates behind are dropped, with that reason.
        poll_s: Seconds between two looks into the ledger.
        timeout_s: Seconds the oldest sample that may be leased waits for a full batch.
        baseline_window: Scores of samples without a group are compared with the sum of the last so many trained ones,
            over their number, where it is above 0 and one of these had a teacher; a window of 0 leaves them as they
            are.
        max_sample_tokens: Samples of more tokens, prompt and reply together, are dropped as too long; 0: none is.
        stop: Asked between two looks; true ends the source. The attribute of that name may be replaced while it is
            trained from.
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
        max_sample_tokens: int | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.ledger: Ledger = ledger
        self.poll_s = poll_s
        self.stop = stop
        self.version = 0
        """Policy version the trainer holds; staleness is counted from it."""
        choices = {
            "batch_size": batch_size,
            "needs": needs,
            "max_staleness": max_staleness,
            "timeout_s": timeout_s,
            "baseline_window": baseline_window,
            "max_sample_tokens": max_sample_tokens,
        }
        # Only what was stated: `bind` must not put the defaults of a source over what a trainer asks for.
        self._choices: dict[str, Any] = {name: value for name, value in choices.items() if value is not None}
        self.options = replace(SourceOptions(batch_size=ALONE_BATCH_SIZE), **self._choices)
        """What counts: the constructor's arguments, and a trainer's options where those were left open."""
        # Leased here, or counted before; what else is leased was left behind by a trainer that died.
        self._known_ids: set[str] = set()
        self._dropped: Counter[str] = Counter()

    def bind(self, options: SourceOptions) -> None:
        """Take over what a trainer asks for, where the constructor left it open."""
        self.options = replace(options, **self._choices)

    def follow(self, version: int) -> None:
        """Count staleness from the policy version that the trainer holds from now on."""
        self.version = version

    def take(self, wait_s: float) -> SampleBatch | None:
        """Lease a batch, waiting at most `wait_s` seconds for one."""
        deadline = time.monotonic() + wait_s
        while not self.stop():
            batch = self._lease()
            if batch is not None:
                return batch
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return None
            time.sleep(min(self.poll_s, remaining))
        return None

    def ended(self) -> bool:
        return self.stop()

    def drop(self, batch: SampleBatch, reason: str, reasons: Mapping[str, str] | None = None) -> None:
        """Release a leased batch and drop its samples, each with the reason or with one of its own."""
        assert batch.batch_id is not None
        with self.ledger.transaction() as tx:
            batches.release(tx, batch.batch_id, f"its samples are given up: {reason}")
            for sample in batch.samples:
                samples.drop(tx, sample.sample_id, (reasons or {}).get(sample.sample_id, reason))

    def excuse(self, batch: SampleBatch) -> None:
        """Let the return of a batch count as no interruption."""
        assert batch.batch_id is not None
        with self.ledger.transaction() as tx:
            interruptions.excuse(tx, batch.batch_id)

    def __iter__(self) -> Iterator[SampleBatch]:
        """Batches until `stop`. The one that was yielded comes again unless it was committed meanwhile."""
        while not self.ended():
            # In turns of a minute, so that `stop` is asked even if nobody chats.
            batch = self.take(60.0)
            if batch is not None:
                yield batch

    def _lease(self) -> SampleBatch | None:
        options = self.options
        if not self._is_worth_a_lease():
            return None
        leasable = batches.leasable(options.needs, options.max_staleness, self.version)
        with self.ledger.transaction() as tx:
            self._known_ids = batches.settle_interrupted(tx, self._known_ids)
            try:
                batch = batches.lease(
                    tx,
                    size=options.batch_size,
                    needs=options.needs,
                    max_staleness=options.max_staleness,
                    current_version=self.version,
                    min_size=1 if self._oldest_waited_enough(tx, leasable) else options.batch_size,
                )
            # Something in the batch was changed since it was leased: the same content can't be trained again.
            except DigestMismatch as mismatch:
                _release_changed(tx, mismatch)
                return None
            if batch is None:
                return None
            self._known_ids.add(batch.id)
            leased = batches.samples_of(tx, batch)
            faults = {
                sample.id: fault for sample, turn in leased if (fault := _fault(turn, options.max_sample_tokens))
            }
            if faults:
                # The batch's digest covers all its samples: the sound ones are leased again, in a batch of their own.
                batches.release(tx, batch.id, "some of its samples can't be trained")
                for sample_id, fault in faults.items():
                    samples.drop(tx, sample_id, fault)
                self._dropped.update(fault.partition(":")[0] for fault in faults.values())
                return None
            trained = [training_sample(sample, turn) for sample, turn in leased]
            dropped, self._dropped = self._dropped, Counter()
            return SampleBatch(self._with_baseline(tx, trained), batch.id, dropped)

    def _with_baseline(self, tx: Session, trained: list[TrainingSample]) -> list[TrainingSample]:
        """Give the samples that have no group the baseline of their time: what was trained before them."""
        window = self.options.baseline_window
        if not window:
            return trained
        recent = samples.recent_scores(tx, window)
        # Scores are all there is of somebody who never says what was wrong: each counts whole, as without a window.
        if not any(taught for _, taught in recent):
            return trained
        # As long as there are fewer, the missing ones count as 0: one early verdict is no habit to compare with.
        # Never below 0: where all is turned down an objection would teach nothing, and a weak one would be praise.
        baseline = max(0.0, sum(score for score, _ in recent) / window)
        return [
            # A deviation of 1: a window of equal scores has one of 0, and would blow up the first other score.
            replace(sample, baseline=baseline, scale=1.0)
            if sample.group is None and sample.measure is None
            else sample
            for sample in trained
        ]

    def _is_worth_a_lease(self) -> bool:
        """Return whether there is an open batch, or enough to lease or to drop."""
        # A reader's look first: polling with `lease` itself would take the write lock from the gateway.
        with self.ledger.reader() as tx:
            if tx.scalar(select(func.count()).where(Batch.state == "leased")):
                return True
            waiting = samples.ready(tx, self.options.needs)
            enough = waiting >= self.options.batch_size
            # Of all that is ready, also what is too stale to be leased: `lease` is what drops it.
            return enough or (waiting > 0 and self._oldest_waited_enough(tx, Sample.state == "ready"))

    def _oldest_waited_enough(self, tx: Session, among: ColumnElement[bool]) -> bool:
        oldest = tx.scalar(select(func.min(Sample.created_at)).where(among))
        return oldest is not None and time.time() - oldest >= self.options.timeout_s


def _release_changed(tx: Session, mismatch: DigestMismatch) -> None:
    """Free the samples of leased batches that are not what they were, for batches of their own."""
    for batch in tx.scalars(select(Batch).where(Batch.state == "leased")):
        batches.release(tx, batch.id, str(mismatch))
        events.log(tx, "batch_changed", batch.id, reason=str(mismatch))


def _fault(turn: Turn, max_tokens: int) -> str | None:
    """Why a turn can't be trained, its ratio formed or its tokens held, or `None`."""
    if turn.prompt_ids is None or turn.completion_ids is None or turn.logprobs is None:
        return "token ids or log-probs are missing"
    if not len(turn.prompt_ids) or not len(turn.completion_ids):
        return "no tokens"
    if _temperature(turn) <= 0:
        return "greedy: sampled at temperature 0"
    return find_excess(len(turn.prompt_ids) + len(turn.completion_ids), max_tokens)


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
    # The ledger's columns are flat; each token has K slots, so T rows of them.
    length, topk_logprobs = len(turn.completion_ids), _doubles(sample.topk_logprobs)
    return TrainingSample(
        sample_id=sample.id,
        prompt_ids=turn.prompt_ids.astype(np.int64),
        completion_ids=turn.completion_ids.astype(np.int64),
        logprobs=turn.logprobs.astype(np.float64),
        images=tuple(pictures.read_contents(turn.messages)),
        policy_version=sample.policy_version,
        temperature=_temperature(turn),
        score=sample.score,
        teacher_logprobs=_doubles(sample.teacher_logprobs),
        plain_logprobs=_doubles(sample.plain_logprobs),
        topk_ids=None if sample.topk_ids is None else sample.topk_ids.astype(np.int64).reshape(length, -1),
        topk_logprobs=None if topk_logprobs is None else topk_logprobs.reshape(length, -1),
        group=sample.group,
        baseline=sample.baseline,
        scale=sample.scale,
        weight=sample.weight,
    )


def _doubles(array: Floats | None) -> FloatArray | None:
    return None if array is None else array.astype(np.float64)
