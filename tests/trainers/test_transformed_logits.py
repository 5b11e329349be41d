"""Families whose logits are more than hidden states times the head: the chunked head makes the model's own."""

from pathlib import Path

import pytest
import torch
from made_up import VOCABULARY, make_samples, with_candidates
from test_exact_kl import check
from test_loss_reference import build, hard_samples
from transformers import (
    AutoTokenizer,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    HyperCLOVAXConfig,
    HyperCLOVAXForCausalLM,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput

from clawrl_trl.trainers.terms.lm_head import ForwardPasses, LMHead
from clawrl_trl.trainers.terms.topk import CandidateLogProbs

SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16,
    "num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
    "initializer_range": 0.3,
}  # fmt: skip
FAMILIES = {
    # A cap that bends the logits of such a model.
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, final_logit_softcapping=1.5)),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=0.5)),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**SIZES, logit_scale=2.0)),
    "hyperclovax": lambda: HyperCLOVAXForCausalLM(HyperCLOVAXConfig(**SIZES, logits_scaling=0.5)),
}


def make_model(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    return FAMILIES[family]().double().eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_model(family: str) -> None:
    model, seen = make_model(family), list[torch.Tensor]()

    def look(output: BaseModelOutput, head: LMHead) -> None:
        hidden = output.last_hidden_state[0]
        seen.append(head.logits(hidden))
        plain = LMHead(head.weight, head.bias).logits(hidden)
        assert (plain - seen[0]).abs().max() > 0.1, "this family does transform them"

    with torch.no_grad(), ForwardPasses(model).watch(look):
        logits = model(input_ids=torch.arange(2, 30)[None]).logits[0]
    torch.testing.assert_close(seen[0], logits, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_candidates_have_the_log_probabilities_of_the_model(family: str) -> None:
    model = make_model(family)
    ids = torch.randint(0, VOCABULARY, (1, 5, 3))
    tokens = torch.arange(2, 14)[None]
    with torch.no_grad(), CandidateLogProbs(model).read(ids) as read:
        logps = model(input_ids=tokens).logits[:, -6:-1].log_softmax(-1)
        torch.testing.assert_close(read.logps, logps.gather(-1, ids), rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_exact_pull_is_that_of_the_model(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    make_model(family).save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(tiny).save_pretrained(tmp_path / "model")
    trainer = build(tmp_path / "model", tmp_path, "binary", hard_samples(), kl_estimator="exact")
    monkeypatch.setattr("test_loss_reference.BETA", 0.0)
    check(trainer, "binary", "grpo")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_preset_for_named_models_asks_for_is_trained(tiny: Path, tmp_path: Path, family: str) -> None:
    make_model(family).save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(tiny).save_pretrained(tmp_path / "model")
    samples = [with_candidates(sample, 5, seed) for seed, sample in enumerate(make_samples(4))]
    trainer = build(tmp_path / "model", tmp_path, "combine", samples, kl_estimator="exact", opd_top_k=4)
    trainer.train()
    assert trainer.state.global_step == 1
