"""TRL's GRPO trainer with every sample scored at the temperature it was sampled at."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from trl import GRPOTrainer

from clawrl_trl.trainers.compat import use_adapter
from clawrl_trl.trainers.inputs import Inputs
from clawrl_trl.trainers.terms.lm_head import unwrap_adapter
from clawrl_trl.trainers.terms.logprobs import RowTemperatures, compute_logps
from clawrl_trl.trainers.vision import select_model_picture_inputs, select_picture_inputs


class TemperedGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """
    [`~trl.GRPOTrainer`] whose inputs carry a `temperature` for each row.

    Args and usage are those of [`~trl.GRPOTrainer`]. Inside `at_temperatures` all log-probabilities, of the policy and
    of the reference, are at those of the micro-batch; outside, at the config's.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._temperatures = [
            RowTemperatures(unwrap_adapter(model), self.temperature)
            for model in (self.accelerator.unwrap_model(self.model), self.ref_model)
            if model is not None
        ]

    @contextmanager
    def at_temperatures(self, inputs: Inputs) -> Iterator[None]:
        """Score at the temperatures of a micro-batch inside the block."""
        with ExitStack() as stack:
            for temperatures in self._temperatures:
                stack.enter_context(temperatures.use(inputs["temperature"]))
            yield

    def logps(self, model: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
        """[B, T] log-probabilities of a micro-batch's replies, each at its own temperature."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with self.at_temperatures(inputs):
            logps, _, _ = self._get_per_token_logps_and_entropies(
                model, ids, mask, inputs["completion_ids"].size(1), **select_picture_inputs(inputs)
            )
        return logps

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
