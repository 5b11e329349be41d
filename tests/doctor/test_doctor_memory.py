"""The arithmetic of memory, held against the models themselves."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_step import measure_pass
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

from clawrl_trl.doctor.memory import GIB, PLANS, QWEN3, Plan, estimate, estimate_activations, make_tables
from clawrl_trl.doctor.shape import BYTES, Shape
from clawrl_trl.tiny import MODEL_PATH

NUMBERS: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": {"layers": 28, "hidden": 1024, "inner": 3072, "heads": 16, "tied": True},
    "Qwen3-1.7B": {"layers": 28, "hidden": 2048, "inner": 6144, "heads": 16, "tied": True},
    "Qwen3-4B": {"layers": 36, "hidden": 2560, "inner": 9728, "heads": 32, "tied": True},
    "Qwen3-8B": {"layers": 36, "hidden": 4096, "inner": 12288, "heads": 32, "tied": False},
    "Qwen3-14B": {"layers": 40, "hidden": 5120, "inner": 17408, "heads": 40, "tied": False},
    "Qwen3-32B": {"layers": 64, "hidden": 5120, "inner": 25600, "heads": 64, "tied": False},
}


def _config(layers: int, hidden: int, inner: int, heads: int, tied: bool, **more: Any) -> Qwen3Config:
    numbers = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936} | more
    return Qwen3Config(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_attention_heads=heads,
        tie_word_embeddings=tied,
        **numbers,
    )


@pytest.mark.parametrize("name", NUMBERS)
def test_parameters_are_those_of_the_architecture(name: str) -> None:
    with torch.device("meta"):
        model = Qwen3ForCausalLM(_config(**NUMBERS[name]))
    assert QWEN3[name].parameters == sum(parameter.numel() for parameter in model.parameters())


def test_any_model_is_counted_from_its_config() -> None:
    model = Qwen3ForCausalLM.from_pretrained(MODEL_PATH)
    shape = Shape.of(MODEL_PATH)
    assert shape.parameters == model.num_parameters()
    numbers = {"layers": 4, "hidden": 256, "intermediate": 768, "heads": 4, "kv_heads": 2, "head_dim": 64}
    assert shape == Shape.decoder(**numbers, vocab=model.config.vocab_size, tied=True)
    adapted = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
    assert shape.adapter(16) == sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)


def test_the_cache_is_what_transformers_keeps() -> None:
    model = Qwen3ForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.bfloat16)
    with torch.no_grad():
        cache = model(input_ids=torch.zeros(1, 10, dtype=torch.long), use_cache=True).past_key_values
    cached_bytes = sum(part.nbytes for layer in cache.layers for part in (layer.keys, layer.values))
    assert estimate(Shape.of(MODEL_PATH), Plan()).cached_token == cached_bytes / 10


SOME = [("Qwen3-4B", 4096, torch.float32), ("Qwen3-0.6B", 16384, torch.bfloat16), ("Qwen3-8B", 16384, torch.bfloat16)]
"""All are in `benchmarks/memory.py`."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tokens", "dtype"), SOME)
def test_a_pass_at_full_shapes_takes_what_the_arithmetic_says(name: str, tokens: int, dtype: torch.dtype) -> None:
    shape, kind = QWEN3[name], str(dtype).removeprefix("torch.")
    need = estimate(shape, Plan(trainer=kind, micro_tokens=tokens)).trainer
    counted = measure_pass(name, tokens, dtype=dtype)
    assert counted == pytest.approx(need["activations"] + need["gradients"], rel=0.06)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_without_recomputation_every_layer_keeps_its_inside(dtype: torch.dtype) -> None:
    shape = replace(QWEN3["Qwen3-4B"], layers=4)
    plan = Plan(trainer=str(dtype).removeprefix("torch."), micro_tokens=16384, checkpointing=False)
    counted = measure_pass("Qwen3-4B", 16384, layers=4, dtype=dtype, checkpointing=False)
    assert counted == pytest.approx(estimate_activations(shape, plan), rel=0.05)


def test_four_bits_are_four_and_a_half() -> None:
    assert BYTES["4bit"] * 8 == 4.5


def test_parts_add_up() -> None:
    need = estimate(QWEN3["Qwen3-4B"], PLANS["LoRA, bf16"])
    assert need.total == sum(need.engine.values()) + sum(need.trainer.values())
    assert need.cache_in(need.total + 1000 * need.cached_token) == 1000
    assert need.cache_in(0) < 0
    full = estimate(QWEN3["Qwen3-4B"], PLANS["full"])
    assert full.trainer["optimizer"] == 8 * QWEN3["Qwen3-4B"].parameters
    assert full.total / GIB > 60


def test_the_documentation_shows_these_tables() -> None:
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    for title, table in make_tables().items():
        assert table in page, f"print the table anew: {title}"
