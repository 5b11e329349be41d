"""TRL's GRPO trainer with each sample scored at its own temperature, and shared tokens forwarded once."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel
from trl import GRPOTrainer

from clawrl_trl.trainers.compat import use_adapter
from clawrl_trl.trainers.inputs import Inputs, make_trained_mask
from clawrl_trl.trainers.packing.attention import NAME, register_attention
from clawrl_trl.trainers.packing.packed_rows import PackedRows
from clawrl_trl.trainers.packing.support import find_obstacle
from clawrl_trl.trainers.terms.lm_head import unwrap_adapter
from clawrl_trl.trainers.terms.logprobs import RowTemperatures, compute_logps
from clawrl_trl.trainers.vision import select_model_picture_inputs, select_picture_inputs

logger = logging.getLogger(__name__)


def make_arguments(inputs: Inputs) -> dict[str, Any]:
    """A model's arguments for a pass over a micro-batch's padded rows."""
    return {
        "input_ids": torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
        "attention_mask": torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
        "use_cache": False,
        **select_model_picture_inputs(inputs),
    }


class TemperedGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """
    [`~trl.GRPOTrainer`] whose inputs carry a `temperature` for each row.

    Args and usage are those of [`~trl.GRPOTrainer`]. Inside `at_temperatures` all log-probabilities, of the policy and
    of the reference, are at those of the micro-batch; outside, at the config's.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        models = [
            unwrap_adapter(self.accelerator.unwrap_model(model))
            for model in (self.model, self.ref_model)
            if model is not None
        ]
        self._temperatures = [RowTemperatures(model, self.temperature) for model in models]
        self.packs = self._prepare_packing(models)
        self._inputs: Inputs | None = None  # of the micro-batch whose log-probabilities are asked for

    def _prepare_packing(self, models: list[PreTrainedModel]) -> bool:
        """Let the models' passes share tokens if the arguments ask for it; false, and said, if they can't."""
        if getattr(self.args, "packing", "none") == "none":
            return False
        obstacle = find_obstacle(models[0])
        if obstacle is None and not all(temperatures.always_fuses for temperatures in self._temperatures):
            obstacle = "its head's logits must be formed whole"
        if obstacle:
            logger.warning("--packing trie has no effect on this model: %s; its samples are padded", obstacle)
            return False
        register_attention()
        for model in models:
            model.set_attn_implementation(NAME)
        return True

    @contextmanager
    def at_temperatures(self, inputs: Inputs) -> Iterator[None]:
        """Score at the temperatures of a micro-batch inside the block."""
        with ExitStack() as stack:
            for temperatures in self._temperatures:
                stack.enter_context(temperatures.use(inputs["temperature"]))
            before, self._inputs = self._inputs, inputs
            try:
                yield
            finally:
                self._inputs = before

    def logps(self, model: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        """[B, T] log-probabilities of a micro-batch's replies, each at its own temperature."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with self.at_temperatures(inputs):
            logps, _, _ = self._get_per_token_logps_and_entropies(
                model, ids, mask, inputs["completion_ids"].size(1), **select_picture_inputs(inputs)
            )
        return logps

    def show_states(self, model: torch.nn.Module, inputs: Inputs) -> None:
        """Pass a micro-batch for those who watch the hidden states before its trained tokens."""
        with self.at_temperatures(inputs):
            packs = self._can_pack(compute_aux_loss=False)
        if packs:
            self.logps(model, inputs)
        else:
            model(**make_arguments(inputs), logits_to_keep=1)

    def reference_logps(self, inputs: Inputs) -> torch.Tensor:
        """The same under the reference: the model given as such, or the base without the adapter."""
        if self.ref_model is not None:
            return self.logps(self.ref_model, inputs)
        model = self.accelerator.unwrap_model(self.model)
        # TRL keeps a second adapter, "ref", where a trained one is trained on; the bare base would be another
        # reference.
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            return self.logps(self.model, inputs)

    def _get_per_token_logps_and_entropies(
        self,
        model: torch.nn.Module,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        rows = self._temperatures[0].rows
        if rows is not None and not self._temperatures[0].can_fuse(rows):
            with self.accelerator.autocast():
                logps, entropies, aux = compute_logps(
                    model,
                    input_ids,
                    attention_mask,
                    logits_to_keep,
                    rows,
                    router_logits=compute_aux_loss,
                    pictures=select_model_picture_inputs(kwargs),
                )
            return logps, entropies if compute_entropy else None, aux
        if self._can_pack(compute_aux_loss):
            assert self._inputs is not None
            base = unwrap_adapter(self.accelerator.unwrap_model(model)).base_model
            with self.accelerator.autocast():
                logps, entropy = PackedRows(self._inputs).score(model, base)
            return logps, entropy if compute_entropy else None, None
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

    def _can_pack(self, compute_aux_loss: bool) -> bool:
        """Return whether the rows of the micro-batch in hand can share tokens in a pass."""
        inputs = self._inputs
        if not self.packs or inputs is None or compute_aux_loss or "pixel_values" in inputs:
            return False
        return bool(make_trained_mask(inputs).any())
