"""An adapter's layers take inputs as they are under autocast: less memory, the same products."""

from pathlib import Path

import pytest
import torch
from fake_step import measure_pass
from made_up import VOCABULARY, make_samples
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from clawrl_trl.trainers import AsyncGRPOConfig, AsyncGRPOTrainer
from clawrl_trl.trainers.compat import BaseTunerLayer, keep_input_dtype


def make_adapted(tiny: Path) -> PeftModel:
    """The tiny model in bfloat16 with a float32 adapter that has an effect, as the trainer has it."""
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.bfloat16)
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    torch.manual_seed(0)
    return get_peft_model(model, lora).train()


def run_pass(model: PeftModel) -> list[torch.Tensor]:
    """Loss and gradients of a pass under autocast, with checkpointing, so that layers run in the backward pass too."""
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    ids = torch.arange(2, VOCABULARY)[None]
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    adapter = {name: weight.grad for name, weight in model.named_parameters() if "lora_" in name}
    assert adapter and all(gradient is not None for gradient in adapter.values())
    return [loss.detach(), *(gradient for _, gradient in sorted(adapter.items()) if gradient is not None)]


def test_loss_and_gradients_are_the_same_bit_for_bit(tiny: Path) -> None:
    with_cast = run_pass(make_adapted(tiny))
    model = make_adapted(tiny)
    keep_input_dtype(model)
    assert all(torch.equal(a, b) for a, b in zip(with_cast, run_pass(model), strict=True))
    assert not any(layer.cast_input_dtype_enabled for layer in model.modules() if isinstance(layer, BaseTunerLayer))


def test_outside_autocast_inputs_are_cast_as_before(tiny: Path) -> None:
    model = make_adapted(tiny)
    ids = torch.arange(2, VOCABULARY)[None]
    before = model(input_ids=ids).logits
    keep_input_dtype(model)
    assert torch.equal(model(input_ids=ids).logits, before)
    model.generate(input_ids=ids, max_new_tokens=2)


@pytest.mark.parametrize("bf16", [False, True])
def test_a_trainer_trains_either_way(tiny: Path, tmp_path: Path, bf16: bool) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.bfloat16)
    args = AsyncGRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=4, bf16=bf16, use_cpu=True, disable_tqdm=True, beta=0.1
    )
    lora = LoraConfig(r=4, target_modules="all-linear")
    trainer = AsyncGRPOTrainer(model=model, args=args, source=make_samples(8), peft_config=lora)
    trainer.train()
    layers = [layer for layer in trainer.model.modules() if isinstance(layer, BaseTunerLayer)]
    assert layers and all(layer.cast_input_dtype_enabled is not bf16 for layer in layers)


def test_copies_of_the_inputs_are_not_kept() -> None:
    # So many tokens that a layer takes more than the head.
    cast = measure_pass("Qwen3-4B", 16384, layers=2, casts=True)
    # An activation of float32 for each of the inputs of q, o, gate and down.
    assert measure_pass("Qwen3-4B", 16384, layers=2) < 0.85 * cast
