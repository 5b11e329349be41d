"""The line of policy versions that training moves along.

With a ledger, what is in memory is always some version of the ledger's: training starts from the current one, each
batch adds one, and a rollback or a rejection is followed before the next batch. A version is written to a folder,
then committed together with its batch in one transaction, then published; so a trainer that dies anywhere comes
back to a line without gaps and without a sample trained twice. All processes call every method together; the main
process alone reads and writes ledger and folders.
"""

import logging
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from accelerate.utils import is_peft_model
from accelerate.utils.memory import clear_device_cache
from sqlalchemy import select
from transformers import PreTrainedModel

from clawrl_trl.errors import UserError
from clawrl_trl.ledger import AlreadyTrained, batches, policies, samples
from clawrl_trl.ledger.schema import Batch, Policy
from clawrl_trl.policies import (
    Candidate,
    Publisher,
    find_damage,
    find_state_damage,
    prune_versions,
    reject_damaged,
    remove_pruned,
    rollback,
)
from clawrl_trl.policy_names import POLICY_NAME_FORM, parse_policy_name
from clawrl_trl.trainers.checkpoint import (
    InitialWeights,
    find_other_backend,
    list_adapted_modules,
    read_training_state,
    read_weights,
    write_policy,
)
from clawrl_trl.trainers.micro_batch import CreditedBatch
from clawrl_trl.trainers.parallel.backend import name_backend
from clawrl_trl.trainers.parallel.process_group import run_on_main, wait_for_all

if TYPE_CHECKING:
    from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer

logger = logging.getLogger(__name__)


class PolicyLine:
    """Keeps a trainer's weights and a ledger's versions together.

    Args:
        trainer: The trainer, with the model it begins with.
        publisher: Takes new versions to the engine.
    """

    def __init__(self, trainer: "AsyncGRPOTrainer", publisher: Publisher) -> None:
        self.publisher = publisher
        self.version = 0
        """The version in memory."""
        self._trainer = trainer
        self._initial = InitialWeights(trainer)
        self._merges = self._merges_for_engine()

    def _merges_for_engine(self) -> bool:
        """Return whether the engine gets whole models because it can't serve the adapter.

        Raises:
            UserError: If the engine can't serve what is trained in any way.
        """
        if not is_peft_model(self._model):
            if self._main:
                self.publisher.check_whole_models()
            return False
        config = self._model.active_peft_config.to_dict() | {"peft_type": self._model.peft_type.value}
        reason = self.publisher.find_merge_reason(config, list_adapted_modules(self._model)) if self._main else None
        if reason is not None:
            logger.warning("vLLM can't serve this adapter (%s): each version is merged into a whole model.", reason)
        return reason is not None

    # ---- Finding the place ----

    def go_back_to(self, folder: Path) -> None:
        """Let the version in a folder of this run serve, so that training goes on from it.

        Raises:
            UserError: If the folder is none of this run's versions.
        """
        store = self.publisher.store
        version = parse_policy_name(folder.name)
        if version is None or store.folder(version) != folder.absolute():
            raise UserError(
                f"{folder} is no policy version of this run: a run with a ledger goes on by itself, or from one of "
                f"{store.root}/{POLICY_NAME_FORM}."
            )
        if self._main and self._read_current() != version:
            rollback(self.publisher.ledger, to=version, store=store)
        wait_for_all()

    def recover(self) -> str | None:
        """Hold the current version when training begins, after removing what an interrupted update left behind.

        Returns:
            The folder of the training state to resume from, if there is one; else the weights are loaded already.

        Raises:
            UserError: If the run has versions that another ledger names.
        """
        store = self.publisher.store
        if self._main:
            with self.publisher.ledger.reader() as tx:
                versions = [policy.version for policy in policies.all(tx)]
                # Without a batch no update was ever under way, so a folder of the next name is not ours to remove.
                has_batches = tx.scalar(select(Batch.id).limit(1)) is not None
                leftover = policies.next_version(tx) if has_batches else None
            for name in store.clean_up(versions, leftover):
                logger.info("removed %s, the remains of an interrupted update", name)
            remove_pruned(self.publisher.ledger, store)
            self._publish_waiting()
        version = self._find_current()
        state = self._find_state(version)
        touched = self.version > 0 or self._trainer.state.global_step > 0
        if version == 0 and touched:
            self._initial.restore()
        elif version > 0 and state is None:
            read_weights(self._trainer, store.folder(version))
        if state is None and touched:
            read_training_state(self._trainer, None)
        self._set_version(version)
        return None if state is None else str(state)

    def follow(self) -> None:
        """Publish what waits, and go to the version that the ledger says is current, if it is another."""
        if self._main:
            self._publish_waiting()
        version = self._find_current()
        if version != self.version:
            logger.info("training goes on from policy version %d, not %d", version, self.version)
            self._load(version)

    def go_back(self) -> None:
        """Hold the current version again, in place of steps that became none."""
        self._load(self._find_current())

    def _publish_waiting(self) -> None:
        """Try again to publish a candidate that waits for the engine."""
        with self.publisher.ledger.reader() as tx:
            latest = policies.latest(tx)
        if latest.state == "candidate":
            kl = latest.metrics.get("kl_to_base")
            folder = self.publisher.store.folder(latest.version)
            self.publisher.publish(Candidate(latest.version, folder, None if kl is None else float(kl)))

    def _find_current(self) -> int:
        return run_on_main(self._read_undamaged)

    def _read_undamaged(self) -> int:
        """The current version, after those whose files are damaged were rejected."""
        ledger, store = self.publisher.ledger, self.publisher.store
        while True:
            version = self._read_current()
            with ledger.reader() as tx:
                row = policies.get(tx, version)
            damage = find_damage(store.folder(version), row.sha256) if version and row else None
            if damage is None:
                return version
            reject_damaged(ledger, store, version, damage)

    def _find_state(self, version: int) -> Path | None:
        """The training state of a version, if it has one that is whole and was written by a backend like this one."""
        state = self.publisher.store.training_state(version)
        if state is None:
            return None
        own = name_backend(self._trainer)
        fault = run_on_main(lambda: find_state_damage(state.parent) or find_other_backend(state, own))
        if fault is not None and self._main:
            logger.warning(
                "the training state of version %d can't be used (%s): the optimizer starts anew", version, fault
            )
        return state if fault is None else None

    def _read_current(self) -> int:
        with self.publisher.ledger.reader() as tx:
            return policies.current(tx).version

    def _load(self, version: int) -> None:
        store = self.publisher.store
        if version == 0:
            self._initial.restore()
            read_training_state(self._trainer, None)
        else:
            read_weights(self._trainer, store.folder(version))
            read_training_state(self._trainer, self._find_state(version))
        self._set_version(version)

    def _set_version(self, version: int) -> None:
        self.version = version
        self._trainer.source.follow(version)

    # ---- Going on ----

    def advance(self, trained: CreditedBatch, kl: float | None) -> None:
        """Make what is in memory a version of its own, trained on a batch, and publish it.

        Args:
            trained: The batch.
            kl: KL divergence to the base model, for the gate.
        """
        store, step = self.publisher.store, self._trainer.state.global_step
        version = run_on_main(self._begin)
        ids = [] if trained.batch.batch_id is None else [trained.batch.batch_id]
        facts: dict[str, object] = {"version": version, "parent": self.version, "batches": ids, "step": step}
        facts["backend"] = name_backend(self._trainer)
        # Under a temporary name: a folder with a version's name is always whole.
        write_policy(self._trainer, store.root / f".tmp-{store.folder(version).name}", facts, merged=self._merges)
        # The main process goes on to rename what all processes write into.
        wait_for_all()
        outcome = run_on_main(lambda: self._commit(version, trained, kl))
        if outcome in ("rejected", "discarded"):
            self._load(self._find_current())
        else:
            self._set_version(version)
        if self._main:
            self._prune()
        # Between two versions the trainer needs the least: what it gives back, an engine that died can start with.
        clear_device_cache()

    def _begin(self) -> int:
        with self.publisher.ledger.reader() as tx:
            version = policies.next_version(tx)
        self.publisher.store.begin(version)
        return version

    def _commit(self, version: int, trained: CreditedBatch, kl: float | None) -> str:
        store = self.publisher.store
        # The rename before the commit: a crash in between leaves a folder without a row, which the next start removes.
        final = store.finish(version)
        count = len(trained.batch.samples) - len(trained.left_out)
        metrics: dict[str, int | float | str] = {"step": self._trainer.state.global_step, "samples": count}
        if kl is not None:
            metrics["kl_to_base"] = kl if math.isfinite(kl) else str(kl)  # JSON has no NaN
        row = Policy(
            version=version,
            parent=self.version,
            path=f"{store.root.name}/{final.name}",
            sha256=store.sha256(version),
            kind="adapter" if is_peft_model(self._model) and not self._merges else "full",
            metrics=metrics,
        )
        fault = self._record(row, trained)
        if fault is not None:
            logger.warning("the update is thrown away: %s", fault)
            shutil.rmtree(final)
            return "discarded"
        return self.publisher.publish(Candidate(version, final, kl, self._trainer.model))

    def _record(self, row: Policy, trained: CreditedBatch) -> str | None:
        """Add a version and mark its batch trained; returns why the update can't become a version, if it can't."""
        batch_ids = [] if trained.batch.batch_id is None else [trained.batch.batch_id]
        try:
            with self.publisher.ledger.transaction() as tx:
                # A rollback that comes from here on finds the candidate, and rejects it.
                policies.lock(tx)
                current = policies.current(tx).version
                if current != self.version:
                    reason = f"version {current} took the place of version {self.version} during the training"
                    for batch_id in batch_ids:
                        batches.release(tx, batch_id, reason)
                    return reason
                for sample_id, dropped_for in trained.left_out.items():
                    samples.drop(tx, sample_id, dropped_for)
                batches.commit(tx, batch_ids, row)
        except AlreadyTrained as error:
            return str(error)
        return None

    def _prune(self) -> None:
        with self.publisher.ledger.reader() as tx:
            serving = policies.serving(tx).version
            dead = ("rejected", "pruned")
            alive = [policy.version for policy in policies.all(tx) if policy.state not in dead]
        # Rejected ones don't count: they would push out the states that a rollback needs.
        recent = alive[-self._trainer.args.keep_training_states :]
        self.publisher.store.prune({serving, self.version, *recent})
        args = self._trainer.args
        if args.keep_versions:
            limits = {"keep": args.keep_versions, "max_staleness": args.max_staleness}
            prune_versions(self.publisher.ledger, self.publisher.store, current=self.version, **limits)

    # ---- Processes ----

    @property
    def _main(self) -> bool:
        return bool(self._trainer.accelerator.is_main_process)

    @property
    def _model(self) -> PreTrainedModel:
        return self._trainer.accelerator.unwrap_model(self._trainer.model)
