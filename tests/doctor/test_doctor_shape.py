"""The shape of models beside the plain ones: those that see, that bring their own code, that nobody knows."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_vl import TinyVL
from transformers import AutoConfig, Gemma3nForCausalLM, Gemma3nTextConfig, Qwen3Config
from transformers import dynamic_module_utils as modules

from clawrl_trl.cli.main import main
from clawrl_trl.doctor.shape import Shape
from clawrl_trl.errors import UserError
from clawrl_trl.policies.targets import choose_targets
from clawrl_trl.script import parse

OWN_CODE = """
from transformers import Qwen3Config, Qwen3ForCausalLM

class OwnConfig(Qwen3Config):
    model_type = "own_words"

class OwnModel(Qwen3ForCausalLM):
    config_class = OwnConfig
"""
SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


@pytest.fixture
def train() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_script", Path(__file__).parents[2] / "examples" / "train.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that brings its own code."""
    monkeypatch.setattr(modules, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    folder = tmp_path / "own"
    Qwen3Config(**SIZES).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "own_words"}
    config["auto_map"] = {"AutoConfig": "code.OwnConfig", "AutoModelForCausalLM": "code.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(OWN_CODE)
    return folder


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    """A model of an architecture that nobody knows."""
    (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}')
    return tmp_path


def report(train: ModuleType, model: Path, *flags: str) -> None:
    _, config, arguments, settings = parse(["--model_name_or_path", str(model), "--output_dir", "runs/x", *flags])
    train.report_room(config, arguments, settings)


def test_of_a_model_that_sees_the_adapter_is_that_of_its_language_model(tmp_path: Path) -> None:
    model = TinyVL().fresh_model()
    model.config.save_pretrained(tmp_path)
    shape = Shape.of(tmp_path)
    assert shape.parameters == model.num_parameters() and shape.layers == 2
    targets = choose_targets(LoraConfig(r=16, target_modules="all-linear"), model)
    trained = [each for each in get_peft_model(model, targets).parameters() if each.requires_grad]
    assert shape.adapter(16) == sum(each.numel() for each in trained)


def test_layers_of_several_widths_are_counted_by_the_widest(tmp_path: Path) -> None:
    config = Gemma3nTextConfig(
        **SIZES | {"intermediate_size": [32, 48]},
        vocab_size_per_layer_input=100,
        hidden_size_per_layer_input=4,
        num_kv_shared_layers=0,
        laurel_rank=2,
        altup_num_inputs=2,
        layer_types=["sliding_attention", "full_attention"],
        activation_sparsity_pattern=[0.0, 0.0],
    )
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = Gemma3nForCausalLM(config)
    shape = Shape.of(tmp_path)
    assert shape.parameters == model.num_parameters()
    wide = Shape.decoder(layers=2, hidden=16, intermediate=48, heads=2, kv_heads=1, head_dim=8)
    assert shape.kept == wide.kept


def test_a_model_s_own_code_runs_where_it_may(own: Path, train: ModuleType) -> None:
    shape = Shape.of(own, trust_remote_code=True)
    assert shape == Shape.of(own, trust_remote_code=True), "also a second time"
    assert shape.layers == 2 and shape.hidden == 16
    with pytest.raises(ValueError, match="trust_remote_code"):
        Shape.of(own)
    report(train, own, "--trust_remote_code", "true")


def test_revision_and_trust_are_those_of_the_flags(
    own: Path, train: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked = AutoConfig.from_pretrained, []

    def spy(name: str, **options: Any) -> Any:
        asked.append(options)
        return read(name, **options)

    monkeypatch.setattr(AutoConfig, "from_pretrained", spy)
    report(train, own, "--trust_remote_code", "true", "--model_revision", "v2")
    assert {"revision": "v2", "trust_remote_code": True} in asked


def test_a_start_goes_on_where_room_can_t_be_reckoned(
    unknown: Path, train: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report(train, unknown)
    said = capsys.readouterr().err.splitlines()
    assert len([line for line in said if "can't be reckoned" in line and "without a look at its room" in line]) == 1
    monkeypatch.setattr(
        "sys.argv", ["clawrl", "doctor", "--gpu_memory_gb", "24", "--model_name_or_path", str(unknown)]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "can't be reckoned" in capsys.readouterr().err


def test_a_start_without_a_model_is_refused(tmp_path: Path, train: ModuleType) -> None:
    with pytest.raises(UserError, match=r"can't be read \("):
        report(train, tmp_path)
