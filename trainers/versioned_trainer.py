"""Training that goes on from a policy version: where it resumes, and how it follows the versions that serve."""

import logging
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.trainer_utils import TrainOutput

from clawrl_trl.credit import SampleBatch, Source
from clawrl_trl.policies.checksums import TRAINING_STATE
from clawrl_trl.trainers.checkpoint import keep_learning_rates, read_weights
from clawrl_trl.trainers.compat import load_undivided_optimizer
from clawrl_trl.trainers.hub import HubGRPOTrainer
from clawrl_trl.trainers.micro_batch import MicroBatch
from clawrl_trl.trainers.parallel.process_group import explain_ended_process

logger = logging.getLogger(__name__)


class VersionedGRPOTrainer(HubGRPOTrainer):
    """Trainer that holds a version of a policy line, if it has one; see [`AsyncGRPOTrainer`]."""

    source: Source
    _micro: MicroBatch | None = None  # the one in training

    @property
    def policy_version(self) -> int:
        """The policy version in memory; 0, the base model, without a ledger."""
        return 0 if self.line is None else self.line.version

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:
        """Train until the source ends or `max_steps` are done.

        With a ledger, training goes on from its latest policy version: weights, optimizer, scheduler, random state
        and step count; `resume_from_checkpoint` may name an earlier version's folder to go back to. Otherwise it
        works as in [`~transformers.Trainer`].

        Raises:
            UserError: If the folder is none of the run's versions, the disk is full, or another process has ended.
        """
        if self.line is not None:
            if isinstance(resume_from_checkpoint, str) and resume_from_checkpoint.lower() not in ("true", "false"):
                self.line.go_back_to(Path(resume_from_checkpoint))
            resume_from_checkpoint = self.line.recover()
        elif isinstance(resume_from_checkpoint, str) and (Path(resume_from_checkpoint) / TRAINING_STATE).is_dir():
            resume_from_checkpoint = str(Path(resume_from_checkpoint) / TRAINING_STATE)
        self._micro = None
        with explain_ended_process():
            result = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        if self.line is not None and self._micro is not None and not self._micro.is_last:
            self._leave_batch(self._micro.batch.batch)
        return result

    def _leave_batch(self, batch: SampleBatch) -> None:
        """Go back to the version before a batch of which training has ended too early; the batch comes again."""
        if self.accelerator.is_main_process:
            self.source.excuse(batch)
            logger.warning("training ended inside a batch, whose steps so far are left out: it is trained anew")
        assert self.line is not None
        self.line.go_back()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: PreTrainedModel | None = None) -> None:
        # A version's weights lie above its training state, which is what transformers resumes from.
        path = Path(resume_from_checkpoint)
        folder = path.parent if path.name == TRAINING_STATE else path
        if self.is_fsdp_enabled:
            read_weights(self, folder)
        else:
            super()._load_from_checkpoint(str(folder), model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load their states, but let each group's configured learning rate win over the one it was saved with."""
        if checkpoint is None or self.lr_scheduler is None or self.is_deepspeed_enabled:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        with keep_learning_rates(self.optimizer, self.lr_scheduler):
            if self.is_fsdp_enabled:
                super()._load_optimizer_and_scheduler(checkpoint)
            else:
                load_undivided_optimizer(self, Path(checkpoint))

    def follow_policies(self) -> None:
        """Follow a rollback, and publish what waits, before the next batch is leased."""
        if self.heartbeat is not None:
            self.heartbeat.begin_waiting()
        if self.line is not None:
            self.line.follow()
