"""Runs the passes of a micro-batch: each forward and backward, split where memory is not enough.

A pass has no collective operation of its own where every process holds the whole model: gradients and metrics are
exchanged once, when all passes of a process have ended, so a process that repeats one leaves nobody waiting. Sharded
models gather weights in each pass; there all processes make equally many, and a lack of memory can't be repaired.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from accelerate.utils import gather_object
from torch.nn.parallel import DistributedDataParallel

from clawrl_trl.credit import CreditedSample
from clawrl_trl.trainers.compat import collect_metrics
from clawrl_trl.trainers.micro_batch import MicroBatch
from clawrl_trl.trainers.parallel.backend import divides_weights
from clawrl_trl.trainers.parallel.uneven_rows import gather_uneven_rows
from clawrl_trl.trainers.passes.gradients import Gradients
from clawrl_trl.trainers.passes.grouping import PADDED, Layout, group_rows
from clawrl_trl.trainers.passes.memory import is_out_of_memory, release_memory
from clawrl_trl.trainers.passes.metrics import PassMetrics, combine_metrics, keep_local

if TYPE_CHECKING:
    from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer

logger = logging.getLogger(__name__)

OUT_OF_MEMORY = "out of memory"

Train = Callable[[torch.nn.Module, MicroBatch], torch.Tensor]
"""Forward and backward of a pass; returns its detached loss."""


class PassRunner:
    """Trains micro-batches in passes.

    Args:
        trainer: The trainer.
        budget: Tokens of a pass; 0: a micro-batch is one pass.
        layout: How rows lie in a pass.
    """

    def __init__(self, trainer: "AsyncGRPOTrainer", budget: int, layout: Layout = PADDED) -> None:
        self._trainer = trainer
        self._budget = budget
        self._layout = layout
        # Both look at all tokens of a micro-batch, over all processes: parts of it would train something else.
        self._whole = trainer.top_entropy_quantile < 1.0 or trainer.use_adaptive_entropy

    def run(self, model: torch.nn.Module, micro: MicroBatch, train: Train) -> torch.Tensor:
        """Train a micro-batch.

        Args:
            model: The policy, wrapped as the trainer trains it.
            micro: The micro-batch; it keeps its passes, and what is prepared of them, for further iterations.
            train: Called for each pass.

        Returns:
            The sum of the passes' losses.
        """
        accelerator = self._trainer.accelerator
        processes: int = accelerator.num_processes
        replicated = isinstance(model, DistributedDataParallel)
        inner = accelerator.unwrap_model(model) if replicated else model
        # Where weights are divided even one process has gradients that can't be set aside.
        divided = divides_weights(self._trainer)
        repairable = not self._whole and not divided and (replicated or processes == 1)
        if not micro.passes:
            micro.passes.extend(self._plan(micro, processes))
        with (gather_uneven_rows if self._whole else keep_local)(accelerator):
            losses, metrics, lost = self._train_all(inner, micro, train, repairable)
        if replicated and accelerator.sync_gradients:
            Gradients(inner).average(processes)
        self._report(micro, metrics, lost, processes)
        return torch.stack(losses).sum() if losses else torch.zeros((), device=accelerator.device)

    def select_fullest(self, rows: list[CreditedSample]) -> list[CreditedSample]:
        """Of the passes that these rows make, the rows of the one that trains most tokens."""
        passes = group_rows(rows, self._budget, self._layout)
        return max(passes, key=lambda part: sum(row.trained_tokens for row in part))

    def _plan(self, micro: MicroBatch, processes: int) -> list[MicroBatch]:
        groups = [micro.rows] if self._whole else group_rows(micro.rows, self._budget, self._layout)
        count = len(groups)
        if processes > 1:
            count = max(gather_object([count]))
        groups += [[] for _ in range(count - len(groups))]
        # A micro-batch that were its own pass would hold its tensors until Python looks for cycles.
        return [micro.select(group) for group in groups]

    def _train_all(
        self, model: torch.nn.Module, micro: MicroBatch, train: Train, repairable: bool
    ) -> tuple[list[torch.Tensor], list[PassMetrics], list[MicroBatch]]:
        waiting = list(reversed(micro.passes))
        done, lost = list[MicroBatch](), list[MicroBatch]()
        losses, metrics = list[torch.Tensor](), list[PassMetrics]()
        gradients = Gradients(model) if repairable else None
        while waiting:
            part = waiting.pop()
            with collect_metrics(self._trainer) as collected:
                loss = self._attempt(model, part, train, gradients, last=not waiting)
            if loss is not None:
                done.append(part)
                losses.append(loss)
                metrics.append((collected, part.trained_tokens))
                continue
            part.inputs = None
            release_memory()
            if len(part.rows) < 2:
                lost.append(part)
                continue
            middle = len(part.rows) // 2
            ordered = [part.rows[index] for index in self._layout.order(part.rows)]
            waiting += [part.select(ordered[:middle]), part.select(ordered[middle:])]
        # Never none: in a further iteration this process would plan anew, and wait for the others.
        micro.passes[:] = done or [micro.select([])]
        return losses, metrics, lost

    def _attempt(
        self, model: torch.nn.Module, part: MicroBatch, train: Train, gradients: Gradients | None, *, last: bool
    ) -> torch.Tensor | None:
        """The loss of a pass, or `None` without memory for it; its gradients are accumulated wholly or not at all."""
        if gradients is None:
            # DeepSpeed takes the optimizer's step in the backward that synchronises.
            accelerator = self._trainer.accelerator
            synchronises = accelerator.sync_gradients
            accelerator.sync_gradients = synchronises and last
            try:
                return train(model, part)
            finally:
                accelerator.sync_gradients = synchronises
        saved = gradients.set_aside()
        try:
            loss = train(model, part)
        except RuntimeError as error:
            gradients.put_back(saved)
            if not is_out_of_memory(error):
                raise
            return None
        gradients.add(saved)
        return loss

    def _report(self, micro: MicroBatch, metrics: list[PassMetrics], lost: list[MicroBatch], processes: int) -> None:
        """Note the metrics, and which samples were given up, on every process."""
        ids = [row.sample.sample_id for part in lost for row in part.rows]
        count = len(micro.passes)
        if processes > 1:
            reports = gather_object([(list(metrics), ids, count)])
            metrics = [entry for report in reports for entry in report[0]]
            ids = [sample_id for report in reports for sample_id in report[1]]
            count = max(report[2] for report in reports)
        for name, value in combine_metrics(metrics, processes).items():
            self._trainer.note(name, value)
        self._trainer.note("passes", count)
        if ids:
            micro.batch.left_out.update(dict.fromkeys(filter(None, ids), OUT_OF_MEMORY))
            self._trainer.note("dropped/out_of_memory", len(ids))
            logger.warning(
                "out of memory: %d samples are dropped; lower --max_sample_tokens to drop the like earlier", len(ids)
            )
