"""An adapter on quantized weights stays float32, and what 4 bits need is told in one line."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from made_up import make_samples
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

from clawrl_trl.engines import precision
from clawrl_trl.errors import UserError
from clawrl_trl.script import parse
from clawrl_trl.script.precision import require_bitsandbytes
from clawrl_trl.trainers import AsyncGRPOConfig, AsyncGRPOTrainer
from clawrl_trl.trainers.compat import widen_adapter

LORA = LoraConfig(r=4, target_modules="all-linear")
NAMED = ["--model_name_or_path", "some/model", "--output_dir", "runs/x"]


def train(model: Any, run: Path, **options: Any) -> AsyncGRPOTrainer:
    """Train two steps at a rate whose updates bfloat16 would round away."""
    args = AsyncGRPOConfig(
        output_dir=str(run), per_device_train_batch_size=4, learning_rate=1e-5, use_cpu=True, disable_tqdm=True
    )
    trainer = AsyncGRPOTrainer(model=model, args=args, source=make_samples(8), peft_config=LORA, **options)
    trainer.train()
    return trainer


def list_adapter(model: torch.nn.Module, part: str) -> list[torch.Tensor]:
    return [parameter for name, parameter in model.named_parameters() if part in name]


def test_an_adapter_on_quantized_weights_is_float32_and_takes_small_steps(tiny: Path, tmp_path: Path) -> None:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.bfloat16)
    model.is_loaded_in_4bit = True  # what TRL asks before it casts
    trained = train(model, tmp_path).model
    assert {weight.dtype for weight in list_adapter(trained, "lora_")} == {torch.float32}
    steps = torch.cat([weight.detach().abs().flatten() for weight in list_adapter(trained, "lora_B")])
    # Two steps of Adam from 0 move a weight by the learning rate each.
    assert (steps > 0).float().mean() > 0.9 and 1e-5 < float(steps.max()) < 2.1e-5
    assert {weight.dtype for weight in list_adapter(trained, "base_layer")} == {torch.bfloat16}


def test_a_model_that_is_not_quantized_is_left_alone() -> None:
    model = torch.nn.Linear(2, 2).to(torch.bfloat16)
    widen_adapter(model)
    assert model.weight.dtype == torch.bfloat16


@pytest.mark.qlora
def test_real_four_bit_weights_train(tiny: Path, tmp_path: Path) -> None:
    four_bit = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    trained = train(str(tiny), tmp_path, quantization_config=four_bit).model
    assert {type(module).__name__ for name, module in trained.named_modules() if name.endswith("q_proj")} == {
        "Linear4bit"
    }
    assert {weight.dtype for weight in list_adapter(trained, "lora_")} == {torch.float32}
    assert any(bool(weight.any()) for weight in list_adapter(trained, "lora_B"))


def test_the_missing_library_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'clawrl-trl\[qlora\]'"):
        require_bitsandbytes()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    require_bitsandbytes()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--dtype", "float32"], "computes in bfloat16, not float32"),
        (["--dtype", "float16"], "computes in bfloat16, not float16"),
        (["--preset", "none"], "computes in bfloat16, not float32"),
        (["--use_peft", "false"], "can't be trained"),
    ],
)
def test_four_bits_compute_in_bfloat16_alone(flags: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse([*NAMED, "--load_in_4bit", "true", *flags])
    assert parse([*NAMED, "--load_in_4bit", "true"])[2].dtype == "bfloat16"


@pytest.mark.parametrize(
    ("flags", "on_gpu", "dtype"),
    [
        ([], True, "bfloat16"),
        ([], False, "float32"),
        (["--use_peft", "false"], True, "float32"),
        (["--dtype", "float16"], True, "float16"),
        (["--dtype", "bfloat16"], False, "bfloat16"),
        (["--preset", "none"], True, "float32"),
        (["--preset", "none", "--dtype", "auto"], True, "bfloat16"),
    ],
)
def test_auto_is_the_type_of_the_machine(
    flags: list[str], on_gpu: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_bfloat16_gpu", lambda: on_gpu)
    _, _, model, settings = parse([*NAMED, *flags])
    assert model.dtype == settings.dtype == dtype
