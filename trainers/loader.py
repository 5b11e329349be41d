"""The training data loader: batches from a source, divided into the micro-batches of each optimizer step.

The main process alone talks to the source; every process receives the same batch and takes a slice of its own, so
slices are disjoint and group statistics are taken over the whole batch. Nothing is fetched ahead of the step that
trains it, and while the source has nothing the processes hear from each other at least every `HEARTBEAT_S`.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from clawrl_trl.credit import SampleBatch, Source
from clawrl_trl.trainers.compat import identity
from clawrl_trl.trainers.micro_batch import CreditedBatch, Division, MicroBatch
from clawrl_trl.trainers.parallel.process_group import share

HEARTBEAT_S = 10.0
"""Longest wait for a batch before the other processes hear that there is none, in seconds."""


class Consumer(Protocol):
    """Protocol of a trainer as the loader sees it."""

    source: Source
    division: Division
    accelerator: Accelerator
    state: TrainerState
    control: TrainerControl

    def follow_policies(self) -> None:
        """Called on every process before the source is asked."""

    def credit_batch(self, batch: SampleBatch) -> CreditedBatch:
        """The batch with its advantages."""


class StepEnds(TrainerCallback):  # type: ignore[misc]
    """Calls a function after each optimizer step.

    Args:
        step_ended: The function.
    """

    def __init__(self, step_ended: Callable[[], None]) -> None:
        self.step_ended = step_ended

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.step_ended()


class SampleStream(IterableDataset[MicroBatch]):
    """Micro-batches as long as the source gives batches."""

    def __init__(self, trainer: Consumer) -> None:
        self.trainer = trainer

    def __iter__(self) -> Iterator[MicroBatch]:
        trainer = self.trainer
        # A finished run that is started again must not lease a batch that it will not train.
        if 0 < trainer.state.max_steps <= trainer.state.global_step:
            trainer.control.should_training_stop = True
            return
        trainer.source.restart()
        while (batch := self._take()) is not None:
            credited = trainer.credit_batch(batch)
            if credited.rows:
                yield from trainer.division.micro_batches(credited)
            elif trainer.accelerator.is_main_process:
                trainer.source.drop(batch, "nothing to train", credited.left_out)
        if trainer.source.batch_sizes() is None:
            trainer.control.should_training_stop = True

    def _take(self) -> SampleBatch | None:
        """The main process's next batch, on every process; `None` when the source has ended."""
        while True:
            self.trainer.follow_policies()
            batch: SampleBatch | None = None
            ended = False
            if self.trainer.accelerator.is_main_process:
                batch = self.trainer.source.take(HEARTBEAT_S)
                ended = batch is None and self.trainer.source.ended()
            batch, ended = share((batch, ended))
            if batch is not None or ended:
                return batch


class SizedSampleStream(SampleStream):
    """A stream over a source whose batches are known beforehand."""

    def __len__(self) -> int:
        """Micro-batches per process and epoch, when every sample trains."""
        sizes = self.trainer.source.batch_sizes() or ()
        return sum(map(self.trainer.division.count_micro_batches, sizes))


def make_train_dataloader(trainer: Consumer) -> DataLoader[MicroBatch]:
    """A loader that fetches nothing ahead and copies nothing; its generator keeps it off the global random state."""
    stream = SampleStream(trainer) if trainer.source.batch_sizes() is None else SizedSampleStream(trainer)
    return DataLoader(stream, batch_size=None, num_workers=0, collate_fn=identity, generator=torch.Generator())
