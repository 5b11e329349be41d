"""The trainer that learns from replies others sampled: live chats, environments, or a file of samples.

It takes scored samples from a source, fills per-token advantages, and leaves the loss to TRL. Its subclasses differ
in how they fill the advantages, and in nothing else. With a ledger behind the source every batch becomes one policy
version: written to a folder, then committed with its samples in one transaction, then published.
"""

import logging
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, is_peft_model
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import TrainerCallback
from trl import GRPOTrainer
from trl.trainer.utils import use_adapter

from clawrl_trl.credit import (
    CreditedSample,
    LedgerSource,
    ListSource,
    SampleBatch,
    Source,
    TrainingSample,
    as_source,
    binary,
    merge,
)
from clawrl_trl.credit.sample import FloatArray
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import AlreadyTrained, batches, policies, samples
from clawrl_trl.ledger.schema import Policy
from clawrl_trl.policies import Candidate, FirstGate, PolicyStore, Publisher, rollback, version_of
from clawrl_trl.policies.versions import TRAINING_STATE
from clawrl_trl.trainers.async_grpo_config import AsyncGRPOConfig
from clawrl_trl.trainers.checkpoint import InitialWeights, read_training_state, read_weights, write_policy
from clawrl_trl.trainers.collate import Inputs, collate
from clawrl_trl.trainers.loader import MicroBatch, train_dataloader
from clawrl_trl.trainers.logprobs import RowTemperatures, plain_logps

logger = logging.getLogger(__name__)

ENDLESS_STEPS = 1_000_000
"""`max_steps` for a source without a length, when the user sets none."""

Loss = Callable[[Any, Inputs], torch.Tensor]
CustomLoss = Callable[["AsyncGRPOTrainer", Any, Inputs, Loss], torch.Tensor]

_ROW_MEAN_LOSSES = ("grpo", "sapo", "luspo", "dr_grpo")


def _scored_by_the_judge(completions: list[Any], **kwargs: Any) -> list[float | None]:
    """The reward function that TRL demands; samples come with their scores, so it is never asked."""
    return [None] * len(completions)


class AsyncGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """
    Trainer for Binary RL on replies that were sampled elsewhere, as in [OpenClaw-RL](https://huggingface.co/papers/2603.10165).

    The advantage of a reply is its score (live chat: groups of one), or its score normalised within its group
    (rollouts of one task), on each of its tokens.

    Example:

    ```python
    from peft import LoraConfig
    from clawrl_trl.trainers import AsyncGRPOConfig, AsyncGRPOTrainer

    rows = [
        {"prompt_ids": [1, 2], "completion_ids": [3, 4], "logprobs": [-0.7, -0.1], "score": 1.0},
        {"prompt_ids": [1, 2], "completion_ids": [5], "logprobs": [-1.2], "score": -1.0},
    ]
    trainer = AsyncGRPOTrainer(
        model="Qwen/Qwen3-0.6B",
        args=AsyncGRPOConfig(output_dir="run"),
        source=rows,
        peft_config=LoraConfig(target_modules="all-linear"),
    )
    trainer.train()
    ```

    Args:
        model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Model to train, as in [`~trl.GRPOTrainer`].
        args ([`AsyncGRPOConfig`], *optional*):
            Configuration. If `None`, a default configuration is used.
        source ([`~clawrl_trl.credit.Source`], path or iterable):
            Where samples come from: a [`~clawrl_trl.credit.LedgerSource`], any other source, a JSON-lines file, or an
            iterable of [`~clawrl_trl.credit.TrainingSample`] or of rows with its fields.
        processing_class ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            Tokenizer, for the padding token and to be saved. If `None`, it is loaded with the model.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Adapter to train. If `None`, all weights are trained.
        publisher ([`~clawrl_trl.policies.Publisher`], *optional*):
            Takes new policy versions to the engine. With a ledger source and no publisher, versions go to
            `output_dir/policies` and are promoted in the ledger alone.
        custom_loss_function (`Callable`, *optional*):
            Called as `loss(trainer, model, inputs, default_loss)` in place of the loss; `default_loss(model, inputs)`
            is TRL's. Returns a scalar tensor.
        callbacks (list of [`~transformers.TrainerCallback`], *optional*):
            Callbacks, as in [`~transformers.Trainer`].
        optimizers (`tuple`, *optional*, defaults to `(None, None)`):
            Optimizer and scheduler, as in [`~transformers.Trainer`].
        quantization_config ([`~transformers.BitsAndBytesConfig`], *optional*):
            Quantization of a model given by name, as in [`~trl.GRPOTrainer`].
    """

    _tag_names: ClassVar[list[str]] = ["trl", "clawrl-trl", "async-grpo"]
    _name = "AsyncGRPO"
    _paper: ClassVar[dict[str, str]] = {
        "title": "OpenClaw-RL: Train Any Agent Simply by Talking",
        "id": "2603.10165",
        "citation": textwrap.dedent("""\
            @article{wang2026openclawrl,
                title        = {{OpenClaw-RL: Train Any Agent Simply by Talking}},
                author       = {Yinjie Wang and Xuyang Chen and Xiaolong Jin and Mengdi Wang and Ling Yang},
                year         = 2026,
                eprint       = {arXiv:2603.10165},
            }"""),
    }

    config_class: ClassVar[type[AsyncGRPOConfig]] = AsyncGRPOConfig
    needs: ClassVar[tuple[str, ...]] = ("score",)
    """Ingredients of which a sample needs at least one."""

    args: AsyncGRPOConfig
    source: Source

    def __init__(
        self,
        model: Any,
        args: AsyncGRPOConfig | None = None,
        source: Source | Iterable[TrainingSample | Mapping[str, Any]] | str | Path | None = None,
        *,
        processing_class: Any = None,
        peft_config: Any = None,
        publisher: Publisher | None = None,
        custom_loss_function: CustomLoss | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
    ) -> None:
        if source is None:
            raise ValueError("a source of samples is required: a LedgerSource, a JSON-lines file or a list of rows")
        args = self.config_class() if args is None else args
        self.source = as_source(source, batch_size=args.step_batch_size * args.publish_steps)
        self._configure(args)
        super().__init__(
            model=model,
            reward_funcs=_scored_by_the_judge,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": [""]}),
            processing_class=processing_class,
            peft_config=peft_config,
            callbacks=callbacks,
            optimizers=optimizers,
            quantization_config=quantization_config,
        )
        self.custom_loss_function = custom_loss_function
        self.publisher = self._publisher(publisher)
        self.policy_version = 0
        unwrapped = self.accelerator.unwrap_model(self.model)
        self._initial = InitialWeights(unwrapped)
        self._temperatures = [
            RowTemperatures(one.get_base_model() if is_peft_model(one) else one, self.temperature)
            for one in (unwrapped, self.ref_model)
            if one is not None
        ]
        self._finishing: SampleBatch | None = None
        self._last_inputs: Inputs | None = None
        self.add_callback(_PublishCallback(self))

    def _configure(self, args: AsyncGRPOConfig) -> None:
        if isinstance(self.source, LedgerSource):
            source = self.source
            source.batch_size = source.batch_size or args.step_batch_size * args.publish_steps
            source.needs = source.needs or self.needs
            source.max_staleness = args.max_staleness if source.max_staleness is None else source.max_staleness
            source.timeout_s = args.batch_timeout if source.timeout_s is None else source.timeout_s
        if not isinstance(self.source, ListSource):
            args.ignore_data_skip = True
        sized = isinstance(self.source, ListSource) and isinstance(self.source.items, list)
        if not sized and args.max_steps <= 0:
            args.max_steps = ENDLESS_STEPS

    def _publisher(self, publisher: Publisher | None) -> Publisher | None:
        if publisher is not None or not isinstance(self.source, LedgerSource):
            return publisher
        store = PolicyStore(Path(self.args.output_dir) / "policies")
        return Publisher(self.source.ledger, store, gate=FirstGate(max_kl=self.args.max_kl))

    # ---- Credit ----

    def advantages(self, samples: Sequence[TrainingSample]) -> list[FloatArray]:
        """Per-token advantages of one batch; what a method overrides.

        Args:
            samples: The whole batch, on every process, so that groups are complete.

        Returns:
            One [T] array per sample; NaN on tokens that get no credit and are left out of the loss.
        """
        values, constant = binary([one.score for one in samples], [one.group for one in samples])
        self._note("constant_groups", float(constant.mean()))
        return [np.full(len(one.completion_ids), value) for one, value in zip(samples, values, strict=True)]

    def credit(self, samples: Sequence[TrainingSample]) -> list[CreditedSample]:
        """Credited samples of one batch, weighted, merged if asked for, without those that train nothing."""
        credited = []
        for sample, advantages in zip(samples, self.advantages(samples), strict=True):
            known = np.isfinite(sample.logprobs)
            credited.append(CreditedSample(sample, np.where(known, advantages * sample.weight, np.nan)))
        rows = [row for row in credited if row.trained_tokens]
        self._note_batch(rows)
        return merge(rows) if self.args.merge_turns else rows

    def _note_batch(self, rows: list[CreditedSample]) -> None:
        if not rows:
            return
        scores = [row.sample.score for row in rows if row.sample.score is not None]
        self._note("samples", len(rows))
        if scores:
            self._note("score", float(np.mean(scores)))
        self._note("staleness", float(np.mean([self.policy_version - row.sample.policy_version for row in rows])))
        self._note("advantage/abs", float(np.mean([np.nanmean(np.abs(row.effective_advantages)) for row in rows])))

    def _note(self, name: str, value: float) -> None:
        self._metrics["train"][name].append(value)

    # ---- Data ----

    def get_train_dataloader(self) -> DataLoader[MicroBatch]:
        """The loader of micro-batches; it leases from the source and looks nowhere ahead."""
        return train_dataloader(self)

    @torch.no_grad()
    def _prepare_inputs(self, generation_batch: MicroBatch) -> Inputs:
        if "prepared" not in generation_batch:
            generation_batch["prepared"] = self._prepare(generation_batch)
        self._last_inputs = generation_batch["prepared"]
        return self._last_inputs

    def _prepare(self, micro: MicroBatch) -> Inputs:
        dtype = torch.float64 if self.model.dtype == torch.float64 else torch.float32
        inputs = collate(
            micro["rows"],
            pad_token_id=self._tokenizer.pad_token_id,
            dtype=dtype,
            pad_to_multiple_of=self.pad_to_multiple_of,
        )
        inputs = {name: tensor.to(self.accelerator.device) for name, tensor in inputs.items()}
        inputs["num_items_in_batch"] = torch.tensor(micro["num_items"], device=self.accelerator.device)
        inputs["row_share"] = micro["row_share"]
        inputs["sampling_per_token_logps"] = inputs["behaviour_logps"]
        if self.beta != 0.0:
            inputs["ref_per_token_logps"] = self._reference_logps(inputs)
        self._weigh(inputs)
        return inputs

    def _weigh(self, inputs: Inputs) -> None:
        """Set the ratio's denominator, and fold importance weights into the advantages."""
        mode, cap = self.args.importance_sampling, self.args.importance_sampling_cap
        if mode == "clip":
            inputs["old_per_token_logps"] = inputs["behaviour_logps"]
            return
        if mode == "none" and self.num_iterations == 1:
            return
        current = self._logps(self.model, inputs)
        inputs["old_per_token_logps"] = current
        if mode == "none":
            return
        trained = inputs["tool_mask"].bool()
        ratio = torch.exp(torch.where(trained, current - inputs["behaviour_logps"], 0.0))
        if mode == "truncate":
            weight = ratio.clamp(max=cap)
        else:
            weight = torch.where((ratio >= 1 / cap) & (ratio <= cap), ratio, 0.0)
        inputs["advantages"] = inputs["advantages"] * weight
        if trained.any():
            self._note("importance/mean", float(ratio[trained].mean()))
            self._note("importance/max", float(ratio[trained].max()))
            self._note("importance/bounded", float((weight != ratio)[trained].float().mean()))

    def _logps(self, model: Any, inputs: Inputs) -> torch.Tensor:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with self._at_temperatures(inputs):
            logps, _, _ = self._get_per_token_logps_and_entropies(model, ids, mask, inputs["completion_ids"].size(1))
        return logps

    def _reference_logps(self, inputs: Inputs) -> torch.Tensor:
        if self.ref_model is not None:
            return self._logps(self.ref_model, inputs)
        model = self.accelerator.unwrap_model(self.model)
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            return self._logps(self.model, inputs)

    # ---- Loss ----

    def _at_temperatures(self, inputs: Inputs) -> Any:
        from contextlib import ExitStack

        stack = ExitStack()
        for one in self._temperatures:
            stack.enter_context(one.of(inputs["temperature"]))
        return stack

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        rows = self._temperatures[0].rows
        if rows is not None and not self._temperatures[0].fused(rows):
            with self.accelerator.autocast():
                logps, entropies, aux = plain_logps(
                    model, input_ids, attention_mask, logits_to_keep, rows, router_logits=compute_aux_loss
                )
            return logps, entropies if compute_entropy else None, aux
        return super()._get_per_token_logps_and_entropies(  # type: ignore[no-any-return]
            model,
            input_ids,
            attention_mask,
            logits_to_keep,
            batch_size=batch_size,
            compute_entropy=compute_entropy,
            compute_aux_loss=compute_aux_loss,
            **kwargs,
        )

    def _compute_loss(self, model: Any, inputs: Inputs) -> torch.Tensor:
        with self._at_temperatures(inputs):
            default: Loss = super()._compute_loss
            if self.custom_loss_function is None:
                loss = default(model, inputs)
            else:
                loss = self.custom_loss_function(self, model, inputs, default)
        return loss * inputs["row_share"] if self.loss_type in _ROW_MEAN_LOSSES else loss

    @torch.no_grad()
    def kl_to_base(self, inputs: Inputs) -> float | None:
        """Exact KL(policy || base) on a micro-batch's own replies, at temperature 1; called on every process.

        Returns:
            Mean over at most `gate_tokens` trained tokens per process, in nats; `None` without a base to compare with.
        """
        model = self.accelerator.unwrap_model(self.model)
        if not is_peft_model(model) and self.ref_model is None:
            return None
        width = max(1, min(inputs["completion_ids"].size(1), self.args.gate_tokens // len(inputs["completion_ids"])))
        arguments = {
            "input_ids": torch.cat([inputs["prompt_ids"], inputs["completion_ids"][:, :width]], dim=1),
            "attention_mask": torch.cat([inputs["prompt_mask"], inputs["completion_mask"][:, :width]], dim=1),
            "logits_to_keep": width + 1,
            "use_cache": False,
        }
        training = self.model.training
        self.model.eval()
        policy = self.model(**arguments).logits[:, :-1].float().log_softmax(-1)
        if self.ref_model is not None:
            base = self.ref_model(**arguments).logits[:, :-1].float().log_softmax(-1)
        else:
            with model.disable_adapter():
                base = self.model(**arguments).logits[:, :-1].float().log_softmax(-1)
        self.model.train(training)
        mask = inputs["tool_mask"][:, :width].bool()
        divergence = (policy.exp() * (policy - base)).sum(-1)
        totals = torch.stack([divergence[mask].sum(), mask.sum().float()])
        totals = self.accelerator.reduce(totals, reduction="sum")
        return float(totals[0] / totals[1].clamp(min=1.0))

    # ---- Policy versions ----

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train until the source ends or `max_steps` are done.

        With a ledger, training goes on from its latest policy version: weights, optimizer, scheduler, random state
        and step count; `resume_from_checkpoint` may name an earlier version's folder to go back to. Otherwise it
        works as in [`~transformers.Trainer`].

        Raises:
            UserError: If the folder is none of the run's versions, or the disk is full.
        """
        if self.publisher is not None:
            if isinstance(resume_from_checkpoint, str) and resume_from_checkpoint.lower() not in ("true", "false"):
                self._go_back_to(Path(resume_from_checkpoint))
            resume_from_checkpoint = self._recover()
        elif isinstance(resume_from_checkpoint, str) and (Path(resume_from_checkpoint) / TRAINING_STATE).is_dir():
            resume_from_checkpoint = str(Path(resume_from_checkpoint) / TRAINING_STATE)
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _go_back_to(self, folder: Path) -> None:
        """Let the version in a folder of this run serve, so that training goes on from it.

        Raises:
            UserError: If the folder is none of this run's versions.
        """
        publisher = self._with_publisher()
        version = version_of(folder.name)
        if version is None or publisher.store.folder(version) != folder.absolute():
            raise UserError(
                f"{folder} is no policy version of this run: a run with a ledger goes on by itself, or from one of "
                f"{publisher.store.root}/policy-v<N>."
            )
        if self.accelerator.is_main_process and self._line_now() != version:
            rollback(publisher.ledger, to=version)
        self.accelerator.wait_for_everyone()

    def _recover(self) -> str | None:
        publisher = self._with_publisher()
        if self.accelerator.is_main_process:
            with publisher.ledger.reader() as tx:
                known = [policy.version for policy in policies.all(tx)]
            for name in publisher.store.clean_up(known):
                logger.info("removed %s, the remains of an interrupted update", name)
            self._publish_waiting()
        version = self._line()
        self._hold(version)
        if version == 0:
            return None
        state = publisher.store.training_state(version)
        if state is None:
            read_weights(self, publisher.store.folder(version))
        return None if state is None else str(state)

    def _publish_waiting(self) -> None:
        """Try again to publish a candidate that waits for the engine; on the main process."""
        publisher = self._with_publisher()
        with publisher.ledger.reader() as tx:
            latest = policies.latest(tx)
        if latest.state == "candidate":
            publisher.publish(Candidate(latest.version, publisher.store.folder(latest.version)))

    def _line(self) -> int:
        """The version training goes on from, on every process."""
        return int(self._shared(self._line_now() if self.accelerator.is_main_process else None))

    def _line_now(self) -> int:
        """The newest version while it waits to be served, else the one that serves."""
        with self._with_publisher().ledger.reader() as tx:
            latest = policies.latest(tx)
            return latest.version if latest.state == "candidate" else policies.serving(tx).version

    def _follow(self) -> None:
        """Go back to the version that the ledger says is current, if it is not the one in memory."""
        version = self._line()
        if version == self.policy_version:
            return
        logger.info("training goes on from policy version %d, not %d", version, self.policy_version)
        self._load(version)

    def _load(self, version: int) -> None:
        store = self._with_publisher().store
        if version == 0:
            self._initial.restore(self.accelerator.unwrap_model(self.model))
            read_training_state(self, None)
        else:
            read_weights(self, store.folder(version))
            read_training_state(self, store.training_state(version))
        self._hold(version)

    def _hold(self, version: int) -> None:
        self.policy_version = version
        if isinstance(self.source, LedgerSource):
            self.source.version = version

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        path = Path(resume_from_checkpoint)
        super()._load_from_checkpoint(str(path.parent if path.name == TRAINING_STATE else path), model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load their states, but let the configured learning rate win over the one they were saved with."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or self.lr_scheduler is None or self.is_deepspeed_enabled:
            return
        for group in self.optimizer.param_groups:
            before = group.get("initial_lr", group["lr"])
            if before != self.args.learning_rate:
                group["lr"] = self.args.learning_rate * (group["lr"] / before if before else 1.0)
            group["initial_lr"] = self.args.learning_rate
        if hasattr(self.lr_scheduler, "base_lrs"):
            self.lr_scheduler.base_lrs = [group["initial_lr"] for group in self.optimizer.param_groups]

    def before_batch(self) -> None:
        """Follow a rollback, and publish what waits, before the next batch is leased."""
        if self.publisher is not None:
            if self.accelerator.is_main_process:
                self._publish_waiting()
            self._follow()

    def batch_started(self, batch: SampleBatch) -> None:
        """Forget what an interrupted batch left behind."""
        self._finishing = None

    def batch_finishing(self, batch: SampleBatch) -> None:
        """After the next optimizer step the batch is trained."""
        self._finishing = batch

    def batch_worthless(self, batch: SampleBatch) -> None:
        """Drop a batch of which no sample trains anything."""
        if batch.batch_id is None or not isinstance(self.source, LedgerSource):
            logger.warning("a batch of %d samples trains nothing and is skipped", len(batch.samples))
            return
        if self.accelerator.is_main_process:
            with self.source.ledger.transaction() as tx:
                batches.release(tx, batch.batch_id, "no sample trains anything")
                for sample in batch.samples:
                    samples.drop(tx, sample.sample_id, "nothing to train")

    def source_ended(self) -> None:
        """Let the training loop end."""
        self.control.should_training_stop = True

    def step_ended(self) -> None:
        """Publish, when the step that ended was the last of a batch."""
        batch, self._finishing = self._finishing, None
        if batch is not None and self.publisher is not None:
            self._publish(batch)

    def _publish(self, batch: SampleBatch) -> None:
        publisher = self._with_publisher()
        store = publisher.store
        assert self._last_inputs is not None
        kl = self.kl_to_base(self._last_inputs)
        if kl is not None:
            self._note("kl_to_base", kl)
        version = None
        if self.accelerator.is_main_process:
            with publisher.ledger.reader() as tx:
                version = policies.next_version(tx)
            store.begin(version)
        version = int(self._shared(version))
        folder = store.root / f".tmp-{store.folder(version).name}"
        ids = [] if batch.batch_id is None else [batch.batch_id]
        facts = {"version": version, "parent": self.policy_version, "batches": ids, "step": self.state.global_step}
        write_policy(self, folder, facts)
        self.accelerator.wait_for_everyone()
        outcome = None
        if self.accelerator.is_main_process:
            outcome = self._commit(version, ids, len(batch.samples), kl)
        outcome = self._shared(outcome)
        if outcome in ("rejected", "discarded"):
            self._load(self._line())
        else:
            self._hold(version)
        self._note("policy_version", self.policy_version)
        if self.accelerator.is_main_process:
            self._prune()

    def _commit(self, version: int, batch_ids: list[str], size: int, kl: float | None) -> str:
        publisher = self._with_publisher()
        final = publisher.store.finish(version)
        row = Policy(
            version=version,
            parent=self.policy_version,
            path=str(final),
            sha256=publisher.store.sha256(version),
            kind="adapter" if is_peft_model(self.accelerator.unwrap_model(self.model)) else "full",
            metrics={"step": self.state.global_step, "samples": size},
        )
        try:
            with publisher.ledger.transaction() as tx:
                batches.commit(tx, batch_ids, row)
        except AlreadyTrained as error:
            logger.warning("the update is thrown away: %s", error)
            shutil.rmtree(final)
            return "discarded"
        return publisher.publish(Candidate(version, final, kl, self.model))

    def _prune(self) -> None:
        publisher = self._with_publisher()
        with publisher.ledger.reader() as tx:
            serving = policies.serving(tx).version
            alive = [policy.version for policy in policies.all(tx) if policy.state != "rejected"]
        publisher.store.prune({serving, self.policy_version, *alive[-self.args.keep_training_states :]})

    def _shared(self, value: Any) -> Any:
        """The main process's value, on every process."""
        if self.accelerator.num_processes == 1:
            return value
        message = [value]
        broadcast_object_list(message)
        return message[0]

    def _with_publisher(self) -> Publisher:
        assert self.publisher is not None
        return self.publisher

    # ---- Saving ----

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the adapter in PEFT form (or the model) with its tokenizer; in `output_dir` with the model card."""
        super().save_model(output_dir, _internal_call)
        here = output_dir is None or Path(output_dir).absolute() == Path(self.args.output_dir).absolute()
        if here and not _internal_call:
            self.create_model_card(model_name=Path(self.args.output_dir).name)


class _PublishCallback(TrainerCallback):  # type: ignore[misc]
    """Tells the trainer when an optimizer step has ended."""

    def __init__(self, trainer: AsyncGRPOTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.step_ended()
