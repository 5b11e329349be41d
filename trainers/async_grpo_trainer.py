"""The trainer that learns from replies others sampled: live chats, environments, or a file of samples.

It takes scored samples from a source, fills per-token advantages, and leaves the loss to TRL. Its subclasses differ
in how they fill the advantages, and in nothing else. With a ledger behind the source every batch becomes one policy
version: written to a folder, then committed with its samples in one transaction, then published.
"""

import textwrap
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from peft import PeftConfig, PeftModel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import (
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    TrainerCallback,
)
from trl import GRPOTrainer

from clawrl_trl.credit import Source, TrainingSample, as_source, binary
from clawrl_trl.credit.sample import FloatArray
from clawrl_trl.credit.source import Row
from clawrl_trl.errors import UserError
from clawrl_trl.heartbeat import Heartbeat
from clawrl_trl.policies import FirstGate, PolicyStore, Publisher
from clawrl_trl.policies.targets import choose_targets
from clawrl_trl.run import RunFolder
from clawrl_trl.trainers.async_grpo_config import AsyncGRPOConfig
from clawrl_trl.trainers.compat import keep_input_dtype, widen_adapter
from clawrl_trl.trainers.crediting_trainer import CreditingGRPOTrainer
from clawrl_trl.trainers.input_builder import InputBuilder
from clawrl_trl.trainers.inputs import Inputs
from clawrl_trl.trainers.loader import StepEnds, make_train_dataloader
from clawrl_trl.trainers.micro_batch import Division, MicroBatch
from clawrl_trl.trainers.parallel.backend import prepare_backend, wrap_layers
from clawrl_trl.trainers.parallel.first_pass import make_first_pass
from clawrl_trl.trainers.passes.grouping import ALIKE, PADDED, SHARED, Layout
from clawrl_trl.trainers.passes.runner import PassRunner
from clawrl_trl.trainers.passes.step_rate import StepRate
from clawrl_trl.trainers.policy_line import PolicyLine
from clawrl_trl.trainers.terms.bonuses import share_bonuses, weigh_loss
from clawrl_trl.trainers.terms.custom_loss import CustomLoss, apply_custom_loss
from clawrl_trl.trainers.terms.divergence import GateBase, compute_kl_to_base
from clawrl_trl.trainers.terms.kl import BasePull
from clawrl_trl.trainers.vision import Vision

ENDLESS_STEPS = 1_000_000
"""`max_steps` for a source without a length, when the user sets none."""


def _unused_reward(completions: list[object], **kwargs: object) -> list[float | None]:
    """The reward function that TRL demands; samples come with their scores, so it is never called."""
    return [None] * len(completions)


class AsyncGRPOTrainer(CreditingGRPOTrainer):
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
        processing_class ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`], *optional*):
            Tokenizer, for the padding token and to be saved, or the processor of a vision-language model, which
            prepares the samples' pictures too. If `None`, it is loaded with the model.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Adapter to train. If `None`, all weights are trained. Of a vision-language model "all-linear" means the
            layers of its language model, of a mixture of experts those beside the experts.
        publisher ([`~clawrl_trl.policies.Publisher`], *optional*):
            Takes new policy versions to the engine. With a ledger source and no publisher, versions go to
            `output_dir/policies` and are promoted in the ledger alone.
        custom_loss_function (`Callable`, *optional*):
            Called as `loss(trainer, model, inputs, default_loss)` in place of the loss of a micro-batch;
            `default_loss(model, inputs)` is the method's own. Returns a scalar tensor, of which the step takes the
            mean over its rows, however they are divided. The tokens to train are those of `inputs["tool_mask"]`: with
            several processes, one that has no samples calls it with a row of padding where the mask is 0, and the
            result, which must be finite, counts nothing.
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

    method: ClassVar[str] = "binary"
    config_class: ClassVar[type[AsyncGRPOConfig]] = AsyncGRPOConfig
    needs: ClassVar[tuple[str, ...]] = ("score",)
    """Ingredients of which a sample needs at least one."""

    args: AsyncGRPOConfig

    def __init__(
        self,
        model: str | PreTrainedModel | PeftModel,
        args: AsyncGRPOConfig | None = None,
        source: Source | Iterable[TrainingSample | Row] | str | Path | None = None,
        *,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin | None = None,
        peft_config: PeftConfig | None = None,
        publisher: Publisher | None = None,
        custom_loss_function: CustomLoss | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Optimizer | None, LRScheduler | None] = (None, None),
        quantization_config: BitsAndBytesConfig | None = None,
    ) -> None:
        if source is None:
            raise ValueError("a source of samples is required: a LedgerSource, a JSON-lines file or a list of rows")
        args = self.config_class() if args is None else args
        self.source = as_source(source, args.source_options(self.needs))
        # A source that can't begin again goes on by itself after a restart: nothing of it may be skipped.
        args.ignore_data_skip = args.ignore_data_skip or not self.source.repeatable
        # transformers refuses a loader without a length unless `max_steps` says when to stop.
        if self.source.batch_sizes() is None and args.max_steps <= 0:
            args.max_steps = ENDLESS_STEPS
        revision = (args.model_init_kwargs or {}).get("revision")
        super().__init__(
            model=model,
            reward_funcs=_unused_reward,
            args=args,
            # TRL insists on prompts; this row is never read, since `get_train_dataloader` leaves TRL's loader out.
            train_dataset=Dataset.from_dict({"prompt": [""]}),
            processing_class=processing_class,
            peft_config=choose_targets(
                peft_config, model, revision=revision, trust_remote_code=args.trust_remote_code
            ),
            callbacks=callbacks,
            optimizers=optimizers,
            quantization_config=quantization_config,
        )
        widen_adapter(self.model)
        keep_input_dtype(self.model)
        wrap_layers(self)
        self._passed = not self.is_fsdp_enabled  # a first pass has been made, where it matters
        self.division = Division(
            step_size=args.step_batch_size,
            num_iterations=args.num_iterations,
            accumulation_steps=args.gradient_accumulation_steps,
            num_processes=self.accelerator.num_processes,
            process_index=self.accelerator.process_index,
        )
        # After TRL's constructor, which loads the processor where none was given.
        self.vision = Vision.of(self.processing_class, self.accelerator.unwrap_model(self.model).config)
        self.custom_loss_function = custom_loss_function
        self._pull = BasePull(self) if args.exact_pull else None
        self.beta = 0.0 if self._pull else args.beta  # else TRL would add its estimate
        publisher = publisher or self._make_offline_publisher()
        self.line = None if publisher is None else PolicyLine(self, publisher)
        self.input_builder = InputBuilder(self, self._pull, GateBase.of(self) if self.line else None)
        self._unweighed: Inputs | None = None  # of the loss whose pass is being made
        is_followed = self.line is not None and self.accelerator.is_main_process
        self.heartbeat = Heartbeat(RunFolder(args.output_dir).heartbeat) if is_followed else None
        self.passes = PassRunner(self, args.max_pass_tokens, self._choose_layout())
        self.step_rate = StepRate()
        self.add_callback(self.step_rate)
        self.add_callback(StepEnds(self._end_step))

    def create_accelerator_and_postprocess(self) -> None:
        """Make the accelerator, and prepare its backend before TRL divides a reference model."""
        super().create_accelerator_and_postprocess()
        prepare_backend(self)

    def _choose_layout(self) -> Layout:
        if self.packs:
            return SHARED
        # Where weights are divided each pass collects them; an auxiliary loss compares the rows of a pass.
        few = self.is_fsdp_enabled or self.is_deepspeed_enabled or self.aux_loss_enabled
        return PADDED if few or self.args.packing == "none" else ALIKE

    def _make_offline_publisher(self) -> Publisher | None:
        if self.source.ledger is None:
            return None
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
        values, constant = binary(
            [sample.score for sample in samples],
            [sample.group for sample in samples],
            [sample.measure for sample in samples],
        )
        self.note("constant_groups", float(constant.mean()))
        return [np.full(len(sample.completion_ids), value) for sample, value in zip(samples, values, strict=True)]

    # ---- Data ----

    def get_train_dataloader(self) -> DataLoader[MicroBatch]:
        """The loader of micro-batches; it leases from the source and looks nowhere ahead."""
        return make_train_dataloader(self)

    @torch.no_grad()
    def _prepare_inputs(self, generation_batch: MicroBatch) -> Inputs:
        if not self._passed:
            make_first_pass(self)
            self._passed = True
        if generation_batch.inputs is None:
            generation_batch.inputs = self.input_builder.build(generation_batch)
        return generation_batch.inputs

    # ---- Steps ----

    def training_step(
        self, model: torch.nn.Module, inputs: MicroBatch, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Train a micro-batch in passes that fit the token budget and the memory."""
        self._micro = inputs
        started = time.perf_counter()
        if self.args.scale_partial_batches and self.accelerator.sync_gradients:
            self.step_rate.scale(self.optimizer, inputs.step_share)
            self.note("step_share", inputs.step_share)
        # Not TRL's, which would take each pass for a step of accumulation.
        train = super(GRPOTrainer, self).training_step
        try:
            loss = self.passes.run(model, inputs, lambda wrapped, part: train(wrapped, part, num_items_in_batch))
        except BaseException as error:
            self.step_rate.restore()
            if isinstance(error, KeyboardInterrupt | UserError) and self.accelerator.is_main_process:
                self.source.excuse(inputs.batch.batch)
            raise
        if inputs.is_last and self.accelerator.is_main_process:
            # Whatever ends the process from here on, it is none of the samples.
            self.source.excuse(inputs.batch.batch)
        self.note("step_time", time.perf_counter() - started)
        return loss

    # ---- Loss ----

    def default_loss(self, model: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        """The method's loss of a micro-batch, a scalar: TRL's, to which a method may add."""
        trl_loss = partial(super()._compute_loss, model, inputs)
        self._unweighed = inputs if self.input_builder.needs_current(inputs) else None
        try:
            # A user's loss may have chosen other rows or tokens than those of the micro-batch.
            with self.at_temperatures(inputs):
                return trl_loss() if self._pull is None else self._pull.add_to(trl_loss, inputs)
        finally:
            self._unweighed = None

    def _get_per_token_logps_and_entropies(
        self, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._unweighed is not None:
            # TRL's loss reads advantages and denominator after its pass, which thus serves the weights too.
            self.input_builder.weigh(self._unweighed, scored[0].detach())
            self._unweighed = None
        return scored

    def _compute_loss(self, model: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        if self.heartbeat is not None:
            self.heartbeat.begin_pass()
        # Where nobody else waits for its forward passes, a user's function is not asked about an empty micro-batch.
        idle = not inputs["row_share"] and self.accelerator.num_processes == 1
        with self.at_temperatures(inputs), share_bonuses(self, inputs):
            if self.custom_loss_function is not None and not idle:
                return apply_custom_loss(self.custom_loss_function, self, model, inputs)
            return self.default_loss(model, inputs) * weigh_loss(self.loss_type, inputs)

    # ---- Policy versions ----

    def _end_step(self) -> None:
        """Make a policy version of the optimizer step that ended, when it was the last of a batch."""
        micro = self._micro
        if micro is None or not micro.is_last or self.line is None:
            return
        rows = self.passes.select_fullest(self.division.select_gate_rows(micro.batch))
        prepared = [part.inputs for part in micro.passes if part.inputs is not None and part.rows == rows]
        kl = compute_kl_to_base(self, prepared[0] if prepared else self.input_builder.collate(rows))
        if kl is not None:
            self.note("kl_to_base", kl)
        # `advance` may throw the weights away and load others, so the divergence is taken before it.
        self.line.advance(micro.batch, kl)
        self.note("policy_version", self.policy_version)
