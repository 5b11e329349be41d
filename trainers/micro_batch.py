"""Batches with their advantages, and their division into the micro-batches of each optimizer step.

A micro-batch says itself what the trainer has to know about it: the batch it belongs to, whether a policy version is
due after it, and how much of the step it is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from clawrl_trl.credit import CreditedSample, SampleBatch
from clawrl_trl.trainers.inputs import Inputs


@dataclass(frozen=True, eq=False)
class CreditedBatch:
    """A batch as it is trained, the same on every process.

    Args:
        batch: The samples as the source gave them.
        rows: What is trained: credited samples.
        left_out: Reasons of the samples that are not trained, by id; a step adds those that it gives up.
    """

    batch: SampleBatch
    rows: list[CreditedSample]
    left_out: dict[str, str]


@dataclass(eq=False)
class MicroBatch:
    """One process's rows of one accumulation step.

    Args:
        batch: The batch they belong to.
        rows: At most `per_device_train_batch_size` credited samples; may be empty.
        num_items: Trained tokens of the whole step, over all processes.
        row_share: Rows here, over the mean number of rows per process and accumulation step.
        token_share: Trained tokens here, over their mean number per process and accumulation step.
        step_share: Samples of the step, over those of a full one; at most 1.
        is_last: True if the batch is trained when the step that this one completes has ended.
        inputs: Its tensors, once they are prepared; iterations over a batch use them again.
        passes: The parts that are trained one after the other, once they are made; copies share them.
    """

    batch: CreditedBatch
    rows: list[CreditedSample]
    num_items: float
    row_share: float
    token_share: float = 1.0
    step_share: float = 1.0
    is_last: bool = False
    inputs: Inputs | None = None
    passes: list["MicroBatch"] = field(default_factory=list)

    @property
    def trained_tokens(self) -> int:
        """Number of tokens the loss counts here."""
        return sum(row.trained_tokens for row in self.rows)

    def select(self, rows: list[CreditedSample]) -> "MicroBatch":
        """A pass over some of the rows, with their share of the step."""
        tokens = sum(row.trained_tokens for row in rows)
        return replace(
            self,
            rows=rows,
            row_share=self.row_share * len(rows) / max(1, len(self.rows)),
            token_share=self.token_share * tokens / max(1, self.trained_tokens),
            inputs=None,
            passes=[],
        )

    def __contains__(self, name: object) -> bool:
        """False: transformers looks for `labels` and `input_ids` in whatever a loader gives it."""
        return False


def measure_rows(rows: Sequence[CreditedSample], policy_version: int) -> dict[str, float]:
    """Number and means of a batch's rows, by the names under which they are logged; empty without rows.

    Args:
        rows: Credited samples, each with a trained token.
        policy_version: The trainer's, from which staleness is counted.
    """
    if not rows:
        return {}
    values: dict[str, list[float]] = {
        "score": [row.sample.score for row in rows if row.sample.score is not None],
        "staleness": [policy_version - row.sample.policy_version for row in rows],
        "advantage/abs": [float(np.nanmean(np.abs(row.effective_advantages))) for row in rows],
    }
    return {"samples": len(rows)} | {name: float(np.mean(numbers)) for name, numbers in values.items() if numbers}


@dataclass(frozen=True)
class Division:
    """Division of batches into steps, processes and micro-batches.

    Args:
        step_size: Rows per optimizer step, over all processes.
        num_iterations: Times that each step's rows are trained in a row.
        accumulation_steps: Micro-batches per step and process.
        num_processes: Number of processes.
        process_index: This one's number.
    """

    step_size: int
    num_iterations: int
    accumulation_steps: int
    num_processes: int = 1
    process_index: int = 0

    def count_micro_batches(self, rows: int) -> int:
        """Number of this process's micro-batches for a batch of so many rows."""
        return -(-rows // self.step_size) * self.accumulation_steps * self.num_iterations

    def micro_batches(self, batch: CreditedBatch) -> Iterator[MicroBatch]:
        """This process's micro-batches of a batch, in the order in which they are trained."""
        remaining = self.count_micro_batches(len(batch.rows))
        for start in range(0, len(batch.rows), self.step_size):
            step = self._divide_step(batch, batch.rows[start : start + self.step_size])
            for _ in range(self.num_iterations):
                for micro in step:
                    remaining -= 1
                    # Iterations share the micro-batches and what is prepared of them, so the mark is on a copy.
                    yield micro if remaining else replace(micro, is_last=True)

    def select_gate_rows(self, batch: CreditedBatch) -> list[CreditedSample]:
        """The rows of the last micro-batch of which this process has trained any, for the gate; else none."""
        for start in reversed(range(0, len(batch.rows), self.step_size)):
            for micro in reversed(self._divide_step(batch, batch.rows[start : start + self.step_size])):
                if trained := [row for row in micro.rows if row.sample.sample_id not in batch.left_out]:
                    return trained
        return []

    def _divide_step(self, batch: CreditedBatch, rows: list[CreditedSample]) -> list[MicroBatch]:
        # Each process takes every n-th row, and has all its micro-batches even if some are empty: what the processes
        # do together (gathering, reducing, sharded weights) needs all of them at every step.
        parts = self.num_processes * self.accumulation_steps
        own = rows[self.process_index :: self.num_processes]
        # Over all processes, because TRL divides each one's sum by the tokens of the whole step.
        tokens = float(sum(row.trained_tokens for row in rows))
        share = min(1.0, len(rows) / self.step_size)
        return [
            MicroBatch(
                batch,
                part,
                num_items=tokens,
                row_share=len(part) * parts / len(rows),
                token_share=sum(row.trained_tokens for row in part) * parts / tokens,
                step_share=share,
            )
            for part in (own[step :: self.accumulation_steps] for step in range(self.accumulation_steps))
        ]
