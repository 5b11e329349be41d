"""Modules that an adapter on all linear layers changes, and adapters on experts in the embedded engine."""

from pathlib import Path
from typing import Any

import pytest
import torch
from family_models import ATTENTION, FAMILY_MODELS, FamilyModel, find_family
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from clawrl_trl.engines.embedded import adapters
from clawrl_trl.engines.embedded.adapters import BASE, LoadedPolicies, LoadedPolicy, load_base
from clawrl_trl.engines.kinds import adapter_obstacle
from clawrl_trl.policies.targets import choose_targets
from clawrl_trl.trainers.checkpoint import list_adapted_modules

EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


@pytest.mark.parametrize("family", FAMILY_MODELS, ids=str)
def test_all_linear_layers_are_those_that_vllm_serves_by_name(family: FamilyModel, tmp_path: Path) -> None:
    network = family.make_model()
    network.save_pretrained(tmp_path)
    for model in (str(tmp_path), network):
        config = choose_targets(LoraConfig(target_modules="all-linear"), model)
        assert config is not None
        adapted = get_peft_model(family.make_model(), config)
        modules = list_adapted_modules(adapted)
        assert {name.rpartition(".")[2] for name in modules} == set(family.targets)
        plan = config.to_dict() | {"peft_type": "LORA"}
        assert adapter_obstacle(plan, [name.removeprefix("base_model.model.") for name in modules]) is None


def test_experts_that_are_asked_for_stay() -> None:
    network = find_family("qwen3-moe").make_model()
    config = choose_targets(LoraConfig(target_modules="all-linear", target_parameters=EXPERTS), network)
    assert config is not None
    adapted = get_peft_model(network, config)
    assert {name.rpartition(".")[2] for name in list_adapted_modules(adapted)} >= {*ATTENTION, "experts"}
    own = LoraConfig(target_modules=["q_proj"])
    assert choose_targets(own, network) is own


@pytest.mark.parametrize("limit", [adapters.MERGE_LIMIT, 0], ids=["merged", "beside the base"])
@pytest.mark.parametrize("targets", [{"target_modules": "all-linear"}, {"target_parameters": EXPERTS}], ids=str)
@pytest.mark.parametrize("name", ["qwen3-moe", "gpt-oss"])
def test_an_adapter_on_experts_is_served_with_its_own_numbers(
    name: str, targets: dict[str, Any], limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "MERGE_LIMIT", limit)
    find_family(name).save(tmp_path / "base")
    torch.manual_seed(1)
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    # Made by PEFT itself, which for Qwen takes the experts and the router for linear layers.
    adapted = get_peft_model(network, LoraConfig(r=2, init_lora_weights=False, **targets))
    adapted.save_pretrained(tmp_path / "adapter")
    ids = torch.arange(1, 30)[None]
    with torch.inference_mode():
        expected = adapted(ids).logits
        with adapted.disable_adapter():
            plain = adapted(ids).logits

    base = load_base(str(tmp_path / "base"), torch.float32)
    policies = LoadedPolicies(LoadedPolicy(BASE, base, str(tmp_path / "base")))
    policies.load("experts", str(tmp_path / "adapter"))
    policy = policies.get("experts")
    assert policy is not None and not torch.allclose(expected, plain, atol=1e-2)
    with torch.inference_mode():
        torch.testing.assert_close(policy.model(ids).logits, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(base(ids).logits, plain, atol=1e-4, rtol=1e-4)
