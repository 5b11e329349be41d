"""Weights collected and given back in one process, and errors of processes that wait for others."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy
from transformers import Qwen3ForCausalLM

from clawrl_trl.errors import UserError
from clawrl_trl.trainers.checkpoint import FACTS, find_other_backend
from clawrl_trl.trainers.parallel import process_group
from clawrl_trl.trainers.parallel.backend import prepare_backend, wrap_layers
from clawrl_trl.trainers.parallel.process_group import broadcast_tensor, explain_ended_process, run_on_main, share
from clawrl_trl.trainers.parallel.weights import gather_weights, name_saved_weights, scatter_weights


def load_model(tiny: Path) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM.from_pretrained(tiny)


@pytest.fixture(params=[{}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}], ids=["lora", "dora", "saved head"])
def adapted(request: pytest.FixtureRequest, tiny: Path) -> PeftModel:
    torch.manual_seed(0)
    targets = ["q_proj", "down_proj"]
    return get_peft_model(load_model(tiny), LoraConfig(r=4, target_modules=targets, **request.param))


def test_an_adapter_comes_back_and_the_base_is_left_alone(adapted: PeftModel) -> None:
    before = {name: parameter.detach().clone() for name, parameter in adapted.named_parameters()}
    first = gather_weights(adapted, keep=True)
    assert set(first) >= {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert not any("base_layer" in name for name in first)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(1.0)
    assert all(torch.equal(first[name], before[name]) for name in first), "a copy, not a view"
    scatter_weights(adapted, first.__getitem__)
    for name, parameter in adapted.named_parameters():
        assert torch.equal(parameter, before[name])


def test_names_in_an_adapters_file_are_those_that_peft_writes(adapted: PeftModel, tmp_path: Path) -> None:
    adapted.save_pretrained(tmp_path, save_embedding_layers=False)
    saved, weights = load_file(tmp_path / "adapter_model.safetensors"), gather_weights(adapted, keep=True)
    names = name_saved_weights(adapted)
    trained = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert names.keys() == trained
    assert set(names.values()) == set(saved)
    for name, key in names.items():
        assert torch.equal(weights[name], saved[key])


def test_what_was_collected_is_saved_like_the_model_itself(adapted: PeftModel, tmp_path: Path) -> None:
    adapted.save_pretrained(tmp_path / "own", save_embedding_layers=False)
    weights = gather_weights(adapted, keep=True)
    adapted.save_pretrained(tmp_path / "collected", state_dict=weights, save_embedding_layers=False)
    own, collected = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("own", "collected"))
    assert own.keys() == collected.keys()
    assert all(torch.equal(value, collected[name]) for name, value in own.items())


def test_tied_weights_of_a_whole_model_are_one_tensor(tiny: Path, tmp_path: Path) -> None:
    model = load_model(tiny)
    weights = gather_weights(model, keep=True)
    assert weights["lm_head.weight"] is weights["model.embed_tokens.weight"]
    model.save_pretrained(tmp_path, state_dict=weights)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")


def test_a_process_that_keeps_nothing_has_nothing(adapted: PeftModel) -> None:
    assert gather_weights(adapted, keep=False) == {}


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:1"),
        torch.distributed.DistBackendError("NCCL communicator was aborted"),
    ],
)
def test_an_error_of_communication_is_one_line(error: Exception) -> None:
    with pytest.raises(UserError, match="Another process of this training has ended"), explain_ended_process():
        raise error


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes"), explain_ended_process():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_one_process_waits_for_nobody() -> None:
    assert share({"a": 1}) == {"a": 1}
    assert run_on_main(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        run_on_main(lambda: 1 // 0)


@pytest.mark.parametrize("facts", ['{"backend": "ddp"}', "{}", None])
def test_states_of_this_backend_and_of_earlier_releases_are_read(tmp_path: Path, facts: str | None) -> None:
    if facts is not None:
        (tmp_path / FACTS).write_text(facts)
    assert find_other_backend(tmp_path, "ddp") is None


def test_a_state_of_another_backend_is_named(tmp_path: Path) -> None:
    (tmp_path / FACTS).write_text('{"backend": "zero2, 2 processes"}')
    assert find_other_backend(tmp_path, "ddp") == "it was written under zero2, 2 processes, this is ddp"


def test_weights_on_the_cpu_are_sent_by_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before training they are there whatever the devices, and NCCL takes those of GPUs alone."""
    sent: list[object] = []
    monkeypatch.setattr(process_group, "PartialState", lambda: SimpleNamespace(num_processes=2))
    monkeypatch.setattr(process_group, "_get_group", lambda: "gloo")
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, src, group: sent.append(group))
    broadcast_tensor(torch.zeros(1))
    broadcast_tensor(torch.zeros(1, device="meta"))
    assert sent == ["gloo", None]


class Plugin(SimpleNamespace):
    """Accelerate's, as it is under `accelerate launch --use_fsdp --fsdp_version 2`."""

    def set_state_dict_type(self, kind: str) -> None:
        self.kind = kind


def make_fsdp_trainer(model: Any = None, **fields: Any) -> Any:
    plugin = Plugin(fsdp_version=2, auto_wrap_policy=None, transformer_cls_names_to_wrap=None, **fields)
    accelerator = SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin))
    return SimpleNamespace(is_fsdp_enabled=True, accelerator=accelerator, model=model)


def test_fsdp_rounds_neither_gradients_nor_log_probabilities() -> None:
    rounding = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16, torch.bfloat16)
    trainer = make_fsdp_trainer(mixed_precision_policy=rounding)
    prepare_backend(trainer)
    policy = trainer.accelerator.state.fsdp_plugin.mixed_precision_policy
    assert policy == MixedPrecisionPolicy(torch.bfloat16, torch.float32, None)
    without = make_fsdp_trainer(mixed_precision_policy=None)
    prepare_backend(without)
    assert without.accelerator.state.fsdp_plugin.mixed_precision_policy is None


def test_fsdp_gathers_the_layers_that_a_model_has(adapted: PeftModel) -> None:
    """A language model without its family's eyes has the names of their layers still."""
    adapted.get_base_model()._no_split_modules = {"Qwen3DecoderLayer", "Qwen3VisionBlock"}
    trainer = make_fsdp_trainer(adapted)
    wrap_layers(trainer)
    plugin = trainer.accelerator.state.fsdp_plugin
    assert plugin.auto_wrap_policy is transformer_auto_wrap_policy
    assert plugin.transformer_cls_names_to_wrap == ["Qwen3DecoderLayer"]


def test_a_wrap_policy_of_the_user_stays(adapted: PeftModel) -> None:
    trainer = make_fsdp_trainer(adapted)
    plugin = trainer.accelerator.state.fsdp_plugin
    plugin.auto_wrap_policy = size_based_auto_wrap_policy
    wrap_layers(trainer)
    assert plugin.auto_wrap_policy is size_based_auto_wrap_policy
