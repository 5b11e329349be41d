"""Top-K distillation in the trainers: loss and gradients against a dense computation in float64."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up import VOCABULARY, make_samples, with_candidates
from peft import LoraConfig
from test_loss_reference import (
    METHODS,
    W_OPD,
    W_RL,
    W_RL_ALONE,
    build,
    compute_acceptance,
    plain_advantages,
    reference_loss,
)

from clawrl_trl.credit import TrainingSample
from clawrl_trl.trainers import CombineConfig, CombineTrainer, OPDConfig, OPDTrainer

pytestmark = pytest.mark.slow

K, LONGEST = 6, 20
LOSSES = ("grpo", "dapo", "bnpo", "dr_grpo", "luspo", "cispo", "sapo", "vespo")


def hard_samples() -> list[TrainingSample]:
    """Ragged, masked, weighted, of mixed temperatures, with empty slots, other K and absent teachers."""
    ragged = [with_candidates(s, K, i) for i, s in enumerate(make_samples(3, 1, temperatures=(1.0, 0.6)))]
    holes = [with_candidates(s, K, 10 + i, empty=0.5) for i, s in enumerate(make_samples(2, 2, weight=0.5))]
    fewer = [with_candidates(s, 2, 20 + i) for i, s in enumerate(make_samples(1, 3, score=None))]
    more = [with_candidates(s, K + 3, 30 + i) for i, s in enumerate(make_samples(1, 4, score=None))]
    sampled_only = make_samples(1, 5)
    long = with_candidates(make_samples(1, 6, temperatures=(1.3,))[0], K, 40)
    mask = np.ones(len(long.completion_ids), dtype=bool)
    mask[1] = False
    return [*ragged, *holes, *fewer, *more, *sampled_only, replace(long, completion_mask=mask, weight=2.0)]


def slots(sample: TrainingSample, t: int) -> list[tuple[int, float]]:
    """The candidates of a token that the trainer may use, with the teacher's log-probs."""
    if sample.topk_ids is None or (sample.completion_mask is not None and not sample.completion_mask[t]):
        return []
    pairs = list(zip(sample.topk_ids[t].tolist(), sample.topk_logprobs[t].tolist(), strict=True))[:K]
    return [(token, logprob) for token, logprob in pairs if token >= 0]


def list_advantages(samples: list[TrainingSample], method: str) -> list[list[float | None]]:
    """The advantages that are left to TRL's loss: the score's part, and 0 where the teacher alone speaks."""
    rows = []
    for sample, scored in zip(samples, plain_advantages(samples, "binary"), strict=True):
        row = []
        w_rl = W_RL if any(slots(sample, t) for t in range(len(scored))) else W_RL_ALONE
        for t, value in enumerate(scored):
            mine = None if value is None or method == "opd" else w_rl * value
            row.append(0.0 if mine is None and slots(sample, t) else mine)
        rows.append(row)
    return rows


def divergences(model: Any, sample: TrainingSample, width: int, clip: float) -> list[torch.Tensor]:
    """Each token's clipped divergence at temperature 1, out of the full distribution of one unpadded sample."""
    ids = torch.tensor([*sample.prompt_ids, *sample.completion_ids])[None]
    positions = torch.arange(ids.size(1))[None] + width - len(sample.prompt_ids)
    rows = model(input_ids=ids, position_ids=positions).logits[0, len(sample.prompt_ids) - 1 : -1].softmax(-1)
    values = []
    for t, p in enumerate(rows):
        candidates = slots(sample, t)
        masses = [p[token] for token, _ in candidates]
        teachers = [torch.tensor(np.exp(logprob)) for _, logprob in candidates]
        if candidates and len(candidates) < VOCABULARY:
            masses.append(1 - torch.stack(masses).sum())
            teachers.append(1 - torch.stack(teachers).sum())
        gaps = [(m.log() - q.log()).detach().clamp(-clip, clip) for m, q in zip(masses, teachers, strict=True)]
        terms = [m * gap for m, gap in zip(masses, gaps, strict=True)]
        values.append(torch.stack(terms).sum() if terms else torch.zeros((), dtype=torch.float64))
    return values


def reference_term(
    model: Any,
    samples: list[TrainingSample],
    rows: list[list[float | None]],
    loss_type: str,
    w: float,
    *,
    prefix: bool = False,
    **how: Any,
) -> torch.Tensor:
    """The weighted divergences, averaged over trained tokens as the loss type does."""
    trained_rows = []
    for sample, advantages in zip(samples, rows, strict=True):
        values = divergences(model, sample, **how)
        shares = [compute_acceptance(sample, t) if prefix else 1.0 for t in range(len(values))]
        trained = zip(values, shares, advantages, strict=True)
        row = [w * sample.weight * share * v for v, share, a in trained if a is not None]
        if row:
            trained_rows.append(torch.stack(row))
    if loss_type in ("grpo", "sapo"):
        return torch.stack([row.mean() for row in trained_rows]).mean()
    if loss_type == "luspo":
        return torch.stack([row.sum() for row in trained_rows]).mean()
    if loss_type == "dr_grpo":
        return torch.cat(trained_rows).sum() / (len(trained_rows) * LONGEST)
    return torch.cat(trained_rows).mean()


def computed(trainer: OPDTrainer) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
    """The trainer's loss of its only micro-batch, the gradients, and how far the prompts are padded."""
    trainer.model.train().zero_grad()
    trainer.current_gradient_accumulation_steps = 1
    (micro,) = trainer.get_train_dataloader()
    inputs = trainer._prepare_inputs(micro)
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    trainer.model.zero_grad()
    return loss.detach(), gradients, inputs["prompt_ids"].size(1)


def compare(
    trainer: OPDTrainer, expected: torch.Tensor, loss: torch.Tensor, gradients: dict[str, torch.Tensor]
) -> None:
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=0, atol=1e-6)
    for name, parameter in trainer.model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=0, atol=1e-6)
    assert max(grad.abs().max() for grad in gradients.values()) > 1e-3


@pytest.mark.parametrize(("clip", "prefix"), [(1.5, False), (float("inf"), False), (1.5, True)])
@pytest.mark.parametrize("mode", ["truncate", "clip"])
@pytest.mark.parametrize("method", ["opd", "combine"])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_loss_and_gradients(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    loss_type: str,
    mode: str,
    clip: float,
    prefix: bool,
) -> None:
    samples = hard_samples()
    monkeypatch.setitem(METHODS[method][2], "opd_clip", clip)
    options = {"importance_sampling": mode, "loss_type": loss_type, "opd_top_k": K, "opd_accepted_prefix": prefix}
    trainer = build(tiny, tmp_path, method, samples, **options)
    loss, gradients, width = computed(trainer)
    rows = list_advantages(samples, method)
    expected = reference_loss(trainer.model, samples, rows, mode, loss_type, width)
    w = W_OPD if method == "combine" else 1.0
    how = {"width": width, "clip": clip, "prefix": prefix}
    expected = expected + reference_term(trainer.model, samples, rows, loss_type, w, **how)
    compare(trainer, expected, loss, gradients)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_the_term_is_averaged_as_the_loss_type_averages(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss_type: str
) -> None:
    """Without scores and without the divergence to the base, the loss is the teacher's term alone."""
    samples = hard_samples()
    monkeypatch.setattr("test_loss_reference.BETA", 0.0)
    trainer = build(
        tiny, tmp_path, "opd", samples, loss_type=loss_type, opd_top_k=K, max_completion_length=LONGEST
    )  # fmt: skip
    loss, gradients, width = computed(trainer)
    rows = list_advantages(samples, "opd")
    how = {"width": width, "clip": METHODS["opd"][2]["opd_clip"]}
    compare(trainer, reference_term(trainer.model, samples, rows, loss_type, 1.0, **how), loss, gradients)


def test_all_of_the_vocabulary_is_the_full_divergence(tiny: Path, tmp_path: Path) -> None:
    samples = [with_candidates(sample, VOCABULARY, 3) for sample in make_samples(2, 3)]
    trainer = build(tiny, tmp_path, "opd", samples, opd_top_k=VOCABULARY)
    trainer.args.opd_clip, trainer.beta = float("inf"), 0.0
    loss, gradients, width = computed(trainer)
    rows = []
    for sample in samples:
        ids = torch.tensor([*sample.prompt_ids, *sample.completion_ids])[None]
        positions = torch.arange(ids.size(1))[None] + width - len(sample.prompt_ids)
        logits = trainer.model(input_ids=ids, position_ids=positions).logits[0, len(sample.prompt_ids) - 1 : -1]
        student = logits.log_softmax(-1)
        teacher = torch.zeros_like(student).scatter(
            1, torch.tensor(sample.topk_ids), torch.tensor(sample.topk_logprobs)
        )
        rows.append((student.exp() * (student - teacher)).sum(-1).mean())
    compare(trainer, torch.stack(rows).mean(), loss, gradients)


def make(
    tiny: Path, tmp_path: Path, samples: Any, kind: Any = (OPDTrainer, OPDConfig), full: bool = False, **options: Any
) -> OPDTrainer:
    options = {"opd_top_k": K, "learning_rate": 1e-2, "use_cpu": True, "disable_tqdm": True, **options}
    args = kind[1](output_dir=str(tmp_path / "run"), **options)
    peft = None if full else LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
    return kind[0](model=str(tiny), args=args, source=samples, peft_config=peft)


@pytest.mark.parametrize("kind", [(OPDTrainer, OPDConfig), (CombineTrainer, CombineConfig)], ids=["opd", "combine"])
@pytest.mark.parametrize("full", [False, True], ids=["lora", "full"])
def test_every_trainable_parameter_changes(tiny: Path, tmp_path: Path, kind: Any, full: bool) -> None:
    samples = [with_candidates(sample, K, i) for i, sample in enumerate(make_samples(12, temperatures=(1.0, 0.7)))]
    trainer = make(tiny, tmp_path, samples, kind, full)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    trainer.train()
    assert trainer.state.global_step == 3
    for name, parameter in trainer.model.named_parameters():
        if parameter.requires_grad:
            assert not torch.equal(parameter, before[name]), name
    logged = [row for row in trainer.state.log_history if "opd/kl" in row]
    assert len(logged) == 3 and all(0 < row["opd/mass"] < 1 and row["opd/kl"] > 0 for row in logged)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_policy_is_run_once_for_both_terms(tiny: Path, tmp_path: Path, checkpointing: bool) -> None:
    samples = [with_candidates(sample, K, i) for i, sample in enumerate(make_samples(4, temperatures=(1.0, 0.7)))]
    trainer = make(tiny, tmp_path, samples, gradient_checkpointing=checkpointing)
    (micro,) = trainer.get_train_dataloader()
    inputs = trainer._prepare_inputs(micro)
    passes = []
    trainer.model.get_base_model().base_model.register_forward_hook(lambda *_: passes.append(1))
    trainer.current_gradient_accumulation_steps = 1
    trainer.compute_loss(trainer.model.train(), inputs).backward()
    assert len(passes) == 1


def test_candidates_are_scored_at_temperature_one_whatever_the_samples(tiny: Path, tmp_path: Path) -> None:
    """With TRL's fused head, whose hidden states are scaled for the sample's temperature in the same pass."""
    samples = [with_candidates(sample, K, i) for i, sample in enumerate(make_samples(4, temperatures=(1.0, 0.5, 2.0)))]
    trainer = make(tiny, tmp_path, samples)
    (micro,) = trainer.get_train_dataloader()
    inputs = trainer._prepare_inputs(micro)
    with torch.no_grad(), trainer._candidates.read(inputs["topk_ids"]) as scored:
        trainer.logps(trainer.model, inputs)
        logps = scored.logps
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    with torch.no_grad():
        logits = trainer.model(input_ids=ids, attention_mask=mask).logits
    dense = logits[:, -logps.size(1) - 1 : -1].log_softmax(-1)
    known = inputs["topk_ids"] >= 0
    expected = dense.gather(-1, inputs["topk_ids"].clamp(min=0)).masked_fill(~known, 0.0)
    torch.testing.assert_close(logps, expected, rtol=1e-5, atol=1e-5)


def test_chunks_of_the_head_change_nothing(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [with_candidates(sample, K, i) for i, sample in enumerate(make_samples(4))]
    outcomes = []
    for chunk in (3, 1000):
        monkeypatch.setattr("clawrl_trl.trainers.terms.lm_head.CHUNK", chunk)
        loss, gradients, _ = computed(build(tiny, tmp_path, "opd", samples, opd_top_k=K))
        outcomes.append((loss, gradients))
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=0, atol=1e-10)


def test_accumulating_a_ragged_batch_changes_nothing(tiny: Path, tmp_path: Path) -> None:
    """Some micro-batches of the four have no candidates, one has no sample at all."""
    samples = [with_candidates(sample, K, i) for i, sample in enumerate(make_samples(3))] + make_samples(2, 9)
    for loss_type in ("grpo", "dapo"):
        weights = []
        for size, steps in ((8, 1), (2, 4)):
            trainer = make(
                tiny, tmp_path, samples, (CombineTrainer, CombineConfig), per_device_train_batch_size=size,
                gradient_accumulation_steps=steps, loss_type=loss_type, optim="sgd", max_grad_norm=0.0,
            )  # fmt: skip
            trainer.train()
            assert trainer.state.global_step == 1
            weights.append({n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad})
        for name, value in weights[0].items():
            torch.testing.assert_close(value, weights[1][name], rtol=1e-4, atol=1e-6)


def test_turns_that_share_tokens_give_the_same_gradient_per_token(tiny: Path, tmp_path: Path) -> None:
    first = with_candidates(make_samples(1, 1, score=1.0, weight=0.5)[0], K, 1)
    prompt = [*first.prompt_ids, *first.completion_ids, 9, 8]
    follow = with_candidates(make_samples(1, 2, score=-1.0, prompt_ids=prompt)[0], K - 2, 2, empty=0.3)
    weights = []
    for packing in ("none", "trie"):
        trainer = make(
            tiny, tmp_path, [first, follow], (CombineTrainer, CombineConfig), packing=packing,
            loss_type="dapo", optim="sgd", max_grad_norm=0.0, learning_rate=0.1,
        )  # fmt: skip
        (micro,) = trainer.get_train_dataloader()
        assert len(micro.rows) == 2
        trainer.train()
        weights.append({n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad})
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-4, atol=1e-6)


def test_a_sample_without_candidates_has_no_teacher(
    tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its sampled-token gap is not used in place of the divergence."""
    with_teacher = with_candidates(make_samples(1, 1)[0], K)
    trainer = make(tiny, tmp_path, [with_teacher, *make_samples(2, 2)])
    (micro,) = trainer.get_train_dataloader()
    assert [row.sample.sample_id for row in micro.rows] == ["s1-0"]
    assert "2 of 3 samples" in caplog.text and f"--teacher_top_k {K}" in caplog.text
    trainer = make(tiny, tmp_path, make_samples(4))
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    assert all(torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())


def test_without_top_k_candidates_are_not_looked_at(tiny: Path, tmp_path: Path) -> None:
    samples = make_samples(4)
    losses = [
        computed(build(tiny, tmp_path, "combine", rows))[0]
        for rows in (samples, [with_candidates(sample, K, i) for i, sample in enumerate(samples)])
    ]
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)


def test_a_negative_k_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="opd_top_k"):
        OPDConfig(output_dir=str(tmp_path), opd_top_k=-1)


@pytest.mark.parametrize(
    ("ids", "logprobs"),
    [
        ([[1, 2]], [[-1.0, -2.0]]),
        ([[1], [2]], [[-1.0, -2.0]] * 2),
        ([[1, 1], [2, 3]], [[-1.0, -2.0]] * 2),
        ([[1]] * 2, None),
    ],
    ids=["too few rows", "other widths", "twice the same", "ids alone"],
)
def test_candidates_must_fit(ids: Any, logprobs: Any) -> None:
    with pytest.raises(ValueError, match=r"candidate|topk"):
        TrainingSample(
            prompt_ids=[1], completion_ids=[3, 4], logprobs=[-1.0, -1.0], topk_ids=ids, topk_logprobs=logprobs
        )


def test_a_slot_without_id_or_without_number_is_empty() -> None:
    sample = TrainingSample.from_row(
        {
            "prompt_ids": [1],
            "completion_ids": [3, 4],
            "logprobs": [-1.0, -1.0],
            "topk_ids": [[5, -1], [6, 7]],
            "topk_logprobs": [[None, -1.0], [-0.5, float("-inf")]],
        }
    )
    assert sample.topk_ids.tolist() == [[-1, -1], [6, -1]]
    assert sample.covered.tolist() == [False, True]
    assert sample.with_candidates(1).topk_ids.tolist() == [[-1], [6]]
    assert sample.with_candidates(0).topk_ids is None
