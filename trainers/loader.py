"""The training data loader: batches from a source, cut into the micro-batches of each optimizer step.

The main process alone talks to the source; every process receives the same batch and takes a slice of its own, so
slices are disjoint and group statistics are taken over the whole batch. Nothing is fetched ahead of the step that
trains it, and while the source has nothing the processes hear from each other at least every `HEARTBEAT_S`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from accelerate.utils import broadcast_object_list
from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainerCallback
from trl.trainer.utils import identity

from clawrl_trl.credit import CreditedSample, ListSource, SampleBatch, Source, TrainingSample

HEARTBEAT_S = 10.0
"""Longest silence between two broadcasts, in seconds."""

MicroBatch = dict[str, Any]


class Consumer(Protocol):
    """Protocol of a trainer as the loader sees it."""

    source: Source
    args: Any
    accelerator: Any
    state: Any

    def before_batch(self) -> None:
        """Called on every process before the source is asked."""

    def credit(self, samples: Sequence[TrainingSample]) -> list[CreditedSample]:
        """Credited samples, without those that train nothing."""

    def batch_started(self, batch: SampleBatch) -> None:
        """Called when a batch is about to be trained."""

    def batch_finishing(self, batch: SampleBatch) -> None:
        """Called when the last optimizer step of a batch is about to be trained."""

    def batch_worthless(self, batch: SampleBatch) -> None:
        """Called when no sample of a batch trains anything."""

    def source_ended(self) -> None:
        """Called when no batch will come any more."""

    def step_ended(self) -> None:
        """Called after each optimizer step."""


class StepEnds(TrainerCallback):  # type: ignore[misc]
    """Tells a trainer when an optimizer step has ended."""

    def __init__(self, trainer: Consumer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.step_ended()


class SampleStream(IterableDataset[MicroBatch]):
    """Micro-batches as long as the source gives batches."""

    def __init__(self, trainer: Consumer) -> None:
        self.trainer = trainer

    def __iter__(self) -> Iterator[MicroBatch]:
        state = self.trainer.state
        if 0 < state.max_steps <= state.global_step:  # a finished run was started again
            self.trainer.source_ended()
            return
        if isinstance(self.trainer.source, ListSource):
            self.trainer.source.restart()
        while (batch := self._next()) is not None:
            rows = self.trainer.credit(batch.samples)
            if rows:
                self.trainer.batch_started(batch)
                yield from self._steps(batch, rows)
            else:
                self.trainer.batch_worthless(batch)
        if not isinstance(self.trainer.source, ListSource):
            self.trainer.source_ended()

    def _next(self) -> SampleBatch | None:
        while True:
            self.trainer.before_batch()
            message: list[Any] = [None, False]
            if self.trainer.accelerator.is_main_process:
                batch = self.trainer.source.take(HEARTBEAT_S)
                message = [batch, batch is None and self.trainer.source.ended()]
            if self.trainer.accelerator.num_processes > 1:
                broadcast_object_list(message)
            found: SampleBatch | None = message[0]
            if found is not None or message[1]:
                return found

    def _steps(self, batch: SampleBatch, rows: list[CreditedSample]) -> Iterator[MicroBatch]:
        args = self.trainer.args
        size = args.step_batch_size
        chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
        for number, chunk in enumerate(chunks):
            micro_batches = self._cut(chunk)
            for iteration in range(args.num_iterations):
                if number == len(chunks) - 1 and iteration == args.num_iterations - 1:
                    self.trainer.batch_finishing(batch)
                yield from micro_batches

    def _cut(self, chunk: list[CreditedSample]) -> list[MicroBatch]:
        """This process's micro-batches of one step: always one per accumulation step, empty ones included."""
        accelerator, steps = self.trainer.accelerator, self.trainer.args.gradient_accumulation_steps
        parts = accelerator.num_processes * steps
        mine = chunk[accelerator.process_index :: accelerator.num_processes]
        tokens = float(sum(row.trained_tokens for row in chunk))
        return [
            {"rows": part, "num_items": tokens, "row_share": len(part) * parts / len(chunk)}
            for part in (mine[step::steps] for step in range(steps))
        ]


class SizedSampleStream(SampleStream):
    """A stream over a source that has a length."""

    def __len__(self) -> int:
        """Micro-batches per process and epoch, when every sample trains."""
        source, args = self.trainer.source, self.trainer.args
        assert isinstance(source, ListSource) and isinstance(source.items, list)
        left = [
            min(source.batch_size, len(source.items) - at) for at in range(0, len(source.items), source.batch_size)
        ]
        steps = sum(-(-samples // args.step_batch_size) for samples in left)
        return int(steps * args.gradient_accumulation_steps * args.num_iterations)


def train_dataloader(trainer: Consumer) -> DataLoader[MicroBatch]:
    """A loader that fetches nothing ahead and copies nothing; its generator keeps it off the global random state."""
    sized = isinstance(trainer.source, ListSource) and isinstance(trainer.source.items, list)
    stream = SizedSampleStream(trainer) if sized else SampleStream(trainer)
    return DataLoader(stream, batch_size=None, num_workers=0, collate_fn=identity, generator=torch.Generator())
