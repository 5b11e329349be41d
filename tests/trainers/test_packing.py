"""Passes that share tokens: the trie against the sequences, gradients against padded rows, and how many there are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_up import VOCABULARY, fill, make_samples, with_candidates
from peft import LoraConfig

from clawrl_trl.credit import CreditedSample, LedgerSource, TrainingSample
from clawrl_trl.ledger import Ledger
from clawrl_trl.trainers import (
    AsyncGRPOConfig,
    AsyncGRPOTrainer,
    CombineConfig,
    CombineTrainer,
    OPDConfig,
    OPDTrainer,
)
from clawrl_trl.trainers.packing.attention import BLOCK, attend_to_ancestors, plan_attention
from clawrl_trl.trainers.packing.trie import build_trie, count_nodes
from clawrl_trl.trainers.passes.grouping import SHARED, group_rows

METHODS: dict[str, Any] = {
    "binary": (AsyncGRPOTrainer, AsyncGRPOConfig),
    "opd": (OPDTrainer, OPDConfig),
    "combine": (CombineTrainer, CombineConfig),
}
LOSSES = ("grpo", "dapo", "bnpo", "dr_grpo", "luspo", "cispo", "sapo", "vespo")
SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=8)


@given(SEQUENCES)
def test_a_trie_has_each_prefix_once(lists: list[list[int]]) -> None:
    trie = build_trie([np.array(ids) for ids in lists])
    prefixes = {tuple(ids[: end + 1]) for ids in lists for end in range(len(ids))}
    assert len(trie.tokens) == len(prefixes)
    for ids, path in zip(lists, trie.paths, strict=True):
        assert trie.tokens[path].tolist() == ids
        assert trie.positions[path].tolist() == list(range(len(ids)))
    for run in trie.runs:
        (path,) = {tuple(p[: len(run.prefix)]) for p in trie.paths if run.start in p}
        assert list(path) == run.prefix.tolist()
    samples = [TrainingSample(prompt_ids=ids, completion_ids=[7], logprobs=[-1.0]) for ids in lists]
    assert count_nodes(samples) == len(prefixes | {(*ids, 7) for ids in lists})


@given(SEQUENCES, st.integers(1, 30))
def test_passes_hold_each_row_once_within_the_budget(lists: list[list[int]], budget: int) -> None:
    samples = [TrainingSample(prompt_ids=ids, completion_ids=[7], logprobs=[-1.0]) for ids in lists]
    rows = [CreditedSample(sample, np.ones(1)) for sample in samples]
    groups = group_rows(rows, budget, SHARED)
    assert sorted(id(row) for group in groups for row in group) == sorted(map(id, rows))
    assert all(len(group) == 1 or count_nodes([row.sample for row in group]) <= budget for group in groups)
    assert group_rows(rows, 0, SHARED) == [rows]


def test_attention_equals_that_with_a_mask_of_all_ancestors() -> None:
    rng = np.random.default_rng(0)
    stem = rng.integers(0, 9, BLOCK + 40)
    ends = [rng.integers(0, 9, length) for length in (3, 2 * BLOCK + 5, 1)]
    trie = build_trie([stem, *(np.concatenate([stem[: 100 * i], end]) for i, end in enumerate(ends))])
    size = len(trie.tokens)
    seen = torch.zeros(size, size, dtype=torch.bool)
    for path in trie.paths:
        for depth, node in enumerate(path):
            seen[node, path[: depth + 1]] = True
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, size, 8, dtype=torch.float64) for heads in (4, 2, 2))
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=seen, scale=0.3, enable_gqa=True
    )
    output = attend_to_ancestors(query, key, value, plan_attention(trie, query.device), 0.3)
    torch.testing.assert_close(output.transpose(1, 2), expected, rtol=0, atol=1e-12)


def make_session(turns: int = 3, prompt: int = 4, **fixed: Any) -> list[TrainingSample]:
    """Turns that extend one another, two forks of an early one, two strangers, and one of them again."""
    rng = np.random.default_rng(prompt)
    samples = make_samples(1, 1, prompt_ids=rng.integers(2, VOCABULARY, prompt), **fixed)
    for seed in range(2, turns + 1):
        before = samples[-1]
        samples += make_samples(1, seed, prompt_ids=[*before.prompt_ids, *before.completion_ids, 9, 8], **fixed)
    forked = [*samples[1].prompt_ids, *samples[1].completion_ids[:1]]
    samples += make_samples(1, 40, prompt_ids=[*forked, 5], **fixed)
    samples += make_samples(1, 41, prompt_ids=[*forked, *rng.integers(2, VOCABULARY, prompt)], **fixed)
    samples += make_samples(2, 42, temperatures=(1.0, 0.6), **fixed)
    again = replace(samples[-1], sample_id="again", logprobs=samples[-1].logprobs - 0.5)
    return [*samples, again]


def gradients(
    tiny: Path, folder: Path, packing: str, samples: list[TrainingSample], method: str, **options: Any
) -> dict[str, torch.Tensor]:
    """Gradients of a batch's loss with respect to an adapter that is not at its start."""
    trainer_class, config_class = METHODS[method]
    arguments = config_class(
        output_dir=str(folder), packing=packing, per_device_train_batch_size=len(samples), max_pass_tokens=0,
        use_cpu=True, bf16=False, **{"beta": 0.05} | options,
    )  # fmt: skip
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    torch.manual_seed(0)
    trainer = trainer_class(model=str(tiny), args=arguments, source=samples, peft_config=lora)
    assert trainer.packs == (packing == "trie")
    (micro,) = trainer.get_train_dataloader()
    trainer.current_gradient_accumulation_steps = 1
    trainer.create_optimizer()
    trainer.training_step(trainer.model, micro)
    return {name: value.grad for name, value in trainer.model.named_parameters() if value.grad is not None}


def check_gradients(tiny: Path, folder: Path, samples: list[TrainingSample], method: str, **options: Any) -> None:
    plain, packed = (gradients(tiny, folder, packing, samples, method, **options) for packing in ("none", "trie"))
    assert plain.keys() == packed.keys()
    scale = torch.cat([value.ravel() for value in plain.values()]).norm()
    assert scale > 0
    difference = torch.cat([(packed[name] - value).ravel() for name, value in plain.items()]).norm()
    assert difference <= 5e-5 * scale


def test_gradients_equal_those_of_padded_rows(tiny: Path, tmp_path: Path) -> None:
    check_gradients(tiny, tmp_path, make_session(), "binary")


def test_one_long_reply_pads_no_others(tiny: Path, tmp_path: Path) -> None:
    """Behind the base model there are states before the trained tokens alone, at each sample's own temperature."""
    long = make_samples(1, 7, completion_ids=np.arange(200) % 40 + 2, logprobs=np.full(200, -2.0),
                        teacher_logprobs=None, plain_logprobs=None)  # fmt: skip
    samples = [*make_samples(20, temperatures=(1.0, 0.6)), *long]
    check_gradients(tiny, tmp_path, samples, "binary")
    arguments = AsyncGRPOConfig(output_dir=str(tmp_path), per_device_train_batch_size=len(samples), use_cpu=True)
    trainer = AsyncGRPOTrainer(model=str(tiny), args=arguments, source=samples)
    sizes: list[int] = []
    trainer.model.base_model.register_forward_hook(
        lambda module, args, output: sizes.append(output.last_hidden_state[..., 0].numel())
    )
    (micro,) = trainer.get_train_dataloader()
    with torch.no_grad():
        trainer.logps(trainer.model, trainer.input_builder.collate(micro.rows))
    assert sizes == [sum(len(sample.completion_ids) for sample in samples)]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss_type", LOSSES)
def test_gradients_of_all_losses(tiny: Path, tmp_path: Path, loss_type: str, method: str) -> None:
    check_gradients(tiny, tmp_path, make_session(10), method, loss_type=loss_type)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "options",
    [
        {"gradient_checkpointing": True},
        {"kl_estimator": "exact"},
        {"kl_estimator": "exact", "support_coef": 0.5, "loss_type": "dapo"},
        {"importance_sampling": "mask"},
        {"importance_sampling": "clip"},
        {"importance_sampling": "none", "beta": 0.0},
        {"temperature": 0.7},
    ],
    ids=lambda options: ", ".join(map(str, options)),
)
def test_gradients_of_runs_longer_than_a_block(
    tiny: Path, tmp_path: Path, options: dict[str, Any], method: str
) -> None:
    check_gradients(tiny, tmp_path, make_session(4, BLOCK + 50), method, **options)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["opd", "combine"])
def test_gradients_with_candidates_of_the_teacher(tiny: Path, tmp_path: Path, method: str) -> None:
    samples = [with_candidates(sample, 5, seed, empty=0.3) for seed, sample in enumerate(make_session(5))]
    check_gradients(tiny, tmp_path, samples, method, opd_top_k=4, kl_estimator="exact")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", [{"packing": "none"}, {"kl_estimator": "exact"}, {"beta": 0.0}], ids=str)
@pytest.mark.parametrize("importance_sampling", ["truncate", "mask", "clip", "none"])
def test_no_pass_is_made_twice(
    tiny: Path, tmp_path: Path, ledger: Ledger, method: str, options: dict[str, Any], importance_sampling: str
) -> None:
    """A step makes three: of the base, of the policy with its gradient, and of the new policy for the gate."""
    trainer_class, config_class = METHODS[method]
    fill(ledger, make_samples(3))
    arguments = config_class(
        output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=3, use_cpu=True, disable_tqdm=True,
        importance_sampling=importance_sampling, max_kl=100.0, **options,
    )  # fmt: skip
    source = LedgerSource(ledger, poll_s=0.01, timeout_s=0.0)
    lora = LoraConfig(r=4, target_modules="all-linear")
    trainer = trainer_class(model=str(tiny), args=arguments, source=source, peft_config=lora)
    passes = []
    base = trainer.model.get_base_model().base_model
    base.register_forward_pre_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    trainer.train()
    assert trainer.policy_version == 1
    assert sorted(passes) == [False, False, True]
