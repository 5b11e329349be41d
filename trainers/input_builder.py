"""From credited samples to the tensors that TRL's GRPO loss and our own terms read.

Two masks keep two meanings apart: `completion_mask` says which positions hold tokens (attention), `tool_mask` which
of them are trained (loss). A token without an advantage is attended to and not trained. An empty list becomes one
row that trains nothing, so that a process without samples takes part in every collective operation.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch
from accelerate.utils import send_to_device
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from clawrl_trl.credit import CreditedSample, TrainingSample
from clawrl_trl.trainers.compat import pad
from clawrl_trl.trainers.inputs import Inputs
from clawrl_trl.trainers.micro_batch import MicroBatch
from clawrl_trl.trainers.terms.divergence import GateBase
from clawrl_trl.trainers.terms.importance import reweigh
from clawrl_trl.trainers.terms.kl import BasePull

if TYPE_CHECKING:
    from clawrl_trl.trainers.async_grpo_trainer import AsyncGRPOTrainer


class InputBuilder:
    """Builder of a trainer's inputs.

    Args:
        trainer: The trainer, whose model is asked for the log-probabilities that the arguments call for.
        pull: The exact pull to the base model, if it is part of the loss.
        gate_base: What the gate needs of the base's passes, if they can serve it.
    """

    def __init__(
        self, trainer: "AsyncGRPOTrainer", pull: BasePull | None = None, gate_base: GateBase | None = None
    ) -> None:
        self._trainer = trainer
        self._pull = pull
        self._gate_base = gate_base

    def build(self, micro: MicroBatch) -> Inputs:
        """Build all inputs of a micro-batch's loss."""
        trainer = self._trainer
        inputs = self.collate(micro.rows)
        inputs["num_items_in_batch"] = torch.tensor(micro.num_items, device=trainer.accelerator.device)
        inputs["row_share"] = micro.row_share
        inputs["token_share"] = micro.token_share
        inputs["sampling_per_token_logps"] = inputs["behaviour_logps"]
        with nullcontext() if self._gate_base is None else self._gate_base.keep(inputs):
            if self._pull is not None:
                inputs["base_hidden_states"] = self._pull.read_base(inputs)
            elif trainer.beta != 0.0:
                inputs["ref_per_token_logps"] = trainer.reference_logps(inputs)
        if trainer.args.importance_sampling == "clip":
            inputs["old_per_token_logps"] = inputs["behaviour_logps"]
        elif trainer.custom_loss_function is not None and self.needs_current(inputs):
            # A user's loss may read the weighted advantages before, or without, TRL's pass.
            self.weigh(inputs, trainer.logps(trainer.model, inputs))
        return inputs

    def needs_current(self, inputs: Inputs) -> bool:
        """Return whether log-probabilities under the current policy are to be folded into these inputs."""
        # In a single iteration the current policy is the old one, and TRL takes that for a missing denominator.
        unused = self._trainer.args.importance_sampling == "none" and self._trainer.num_iterations == 1
        return not unused and "old_per_token_logps" not in inputs

    def weigh(self, inputs: Inputs, current: torch.Tensor) -> None:
        """Set the ratio's denominator, and fold importance weights into the advantages.

        Args:
            inputs: The micro-batch; changed in place, once for all its iterations.
            current: [B, T] log-probabilities under the current policy, without gradient.
        """
        trainer = self._trainer
        mode, cap = trainer.args.importance_sampling, trainer.args.importance_sampling_cap
        inputs["old_per_token_logps"] = current
        if mode != "none":
            for name, value in reweigh(inputs, current, mode=mode, cap=cap).items():
                trainer.note(name, value)

    def collate(self, rows: Sequence[CreditedSample]) -> Inputs:
        """Pad rows into tensors on the trainer's device, pictures included."""
        trainer = self._trainer
        tokenizer: PreTrainedTokenizerBase = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        inputs = collate(
            rows,
            pad_token_id=tokenizer.pad_token_id,
            dtype=torch.float64 if trainer.model.dtype == torch.float64 else torch.float32,
            pad_to_multiple_of=trainer.pad_to_multiple_of,
        )
        if trainer.vision is not None:
            trainer.vision.add_pictures(inputs, [row.sample for row in rows])
        moved: Inputs = send_to_device(inputs, trainer.accelerator.device)
        return moved


def collate(
    rows: Sequence[CreditedSample],
    *,
    pad_token_id: int,
    dtype: torch.dtype = torch.float32,
    pad_to_multiple_of: int | None = None,
) -> Inputs:
    """Pad samples into one micro-batch.

    Args:
        rows: B credited samples; may be empty.
        pad_token_id: Token on padded positions.
        dtype: Type of the floating-point tensors.
        pad_to_multiple_of: Widths become multiples of it.

    Returns:
        The inputs that follow from the samples, pictures apart; candidates only when a term over them is trained.
    """
    if not rows:
        return _empty_inputs(pad_token_id, dtype)

    def pad_integers(arrays: Sequence[NDArray[np.generic]], side: str, value: int) -> torch.Tensor:
        tensors = [torch.as_tensor(array, dtype=torch.long) for array in arrays]
        return pad(tensors, value, side, pad_to_multiple_of)  # type: ignore[no-any-return]

    def pad_floats(arrays: Sequence[NDArray[np.float64]]) -> torch.Tensor:
        tensors = [torch.as_tensor(np.nan_to_num(array, nan=0.0), dtype=dtype) for array in arrays]
        return pad(tensors, 0.0, "right", pad_to_multiple_of)  # type: ignore[no-any-return]

    samples = [row.sample for row in rows]
    advantages = [row.effective_advantages for row in rows]
    trained = [np.isfinite(values) for values in advantages]
    # An untrained token may have a log-probability of minus infinity, and 0 times that would be NaN in the loss.
    behaviour = [np.where(mask, sample.logprobs, 0.0) for mask, sample in zip(trained, samples, strict=True)]
    inputs: Inputs = {
        "prompt_ids": pad_integers([sample.prompt_ids for sample in samples], "left", pad_token_id),
        "prompt_mask": pad_integers([np.ones_like(sample.prompt_ids) for sample in samples], "left", 0),
        "completion_ids": pad_integers([sample.completion_ids for sample in samples], "right", pad_token_id),
        "completion_mask": pad_integers([np.ones_like(sample.completion_ids) for sample in samples], "right", 0),
        "tool_mask": pad_integers(trained, "right", 0),
        "advantages": pad_floats(advantages),
        "behaviour_logps": pad_floats(behaviour),
        "temperature": torch.tensor([sample.temperature for sample in samples], dtype=dtype),
    }
    weights = pad_floats([row.effective_distilled for row in rows])
    if weights.any():
        _add_candidates(inputs, samples, weights)
    return inputs


def _add_candidates(inputs: Inputs, samples: Sequence[TrainingSample], weights: torch.Tensor) -> None:
    candidates = [(sample.topk_ids, sample.topk_logprobs) for sample in samples]
    width = max(ids.shape[1] for ids, _ in candidates if ids is not None)
    all_ids = torch.full((*weights.shape, width), -1, dtype=torch.long)
    all_logps = torch.zeros((*weights.shape, width), dtype=weights.dtype)
    for row, (ids, logps) in enumerate(candidates):
        if ids is not None and logps is not None:
            all_ids[row, : len(ids), : ids.shape[1]] = torch.from_numpy(ids)
            all_logps[row, : len(ids), : ids.shape[1]] = torch.from_numpy(np.nan_to_num(logps, nan=0.0))
    inputs["topk_ids"], inputs["topk_logps"], inputs["topk_weight"] = all_ids, all_logps, weights


def _empty_inputs(pad_token_id: int, dtype: torch.dtype) -> Inputs:
    """One row of one padding token, attended to and not trained."""
    token = torch.full((1, 1), pad_token_id, dtype=torch.long)
    # Attended to, for a row without any attention would make the softmax NaN, and its gradient with it.
    attended, zero = torch.ones((1, 1), dtype=torch.long), torch.zeros((1, 1), dtype=dtype)
    return {
        "prompt_ids": token,
        "prompt_mask": attended,
        "completion_ids": token.clone(),
        "completion_mask": attended.clone(),
        "tool_mask": torch.zeros((1, 1), dtype=torch.long),
        "advantages": zero,
        "behaviour_logps": zero.clone(),
        "temperature": torch.ones(1, dtype=dtype),
    }
