"""Loss and gradients of every trainer against a plain computation of the formulas, in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up import make_samples
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from clawrl_trl.credit import TrainingSample
from clawrl_trl.trainers import (
    AsyncGRPOConfig,
    AsyncGRPOTrainer,
    CombineConfig,
    CombineTrainer,
    OPDConfig,
    OPDTrainer,
)

pytestmark = pytest.mark.slow

CAP, BETA, LOW, HIGH = 2.0, 0.05, 0.2, 0.28
W_RL, W_RL_ALONE, W_OPD, CLIP = 0.7, 0.9, 1.3, 1.5

METHODS = {
    "binary": (AsyncGRPOTrainer, AsyncGRPOConfig, {}),
    "opd": (OPDTrainer, OPDConfig, {"opd_clip": CLIP}),
    "opd, accepted prefix": (OPDTrainer, OPDConfig, {"opd_clip": CLIP, "opd_accepted_prefix": True}),
    "combine": (
        CombineTrainer,
        CombineConfig,
        {"opd_clip": CLIP, "w_rl": W_RL, "w_rl_alone": W_RL_ALONE, "w_opd": W_OPD},
    ),
}


def hard_samples() -> list[TrainingSample]:
    """Ragged, masked, stale, of mixed temperatures, with absent teachers, in groups of one and of three."""
    ragged = make_samples(3, 1, temperatures=(1.0, 0.6), policy_version=0)
    grouped = [
        sample
        for index, score in enumerate((1.0, -1.0, 0.25))
        for sample in make_samples(1, 20 + index, score=score, group="task", temperatures=(1.3,))
    ]
    no_teacher = make_samples(1, 3, teacher_logprobs=None, plain_logprobs=None)
    no_score = make_samples(1, 4, score=None, weight=0.5)
    long = make_samples(1, 5)[0]
    length = len(long.completion_ids)
    holes = long.teacher_logprobs.copy()
    holes[0] = np.nan
    mask = np.ones(length, dtype=bool)
    mask[1] = False
    masked = TrainingSample(
        **{**long.__dict__, "teacher_logprobs": holes, "completion_mask": mask, "weight": 2.0, "temperature": 0.8}
    )
    return [*ragged, *grouped, *no_teacher, *no_score, masked]


def compute_acceptance(sample: TrainingSample, t: int) -> float:
    """The probability that speculative sampling with the teacher as its target accepts the tokens before one."""
    product = 1.0
    for i in range(t):
        if sample.teacher_logprobs is not None and not np.isnan(sample.teacher_logprobs[i]):
            product *= min(1.0, float(np.exp(sample.teacher_logprobs[i]) / np.exp(sample.plain_logprobs[i])))
    return product


def plain_advantages(samples: list[TrainingSample], method: str) -> list[list[float | None]]:
    """The design's formulas, token by token, with `None` where there is no term."""
    rows = []
    for sample in samples:
        members = [s.score for s in samples if s.group is not None and s.group == sample.group and s.score is not None]
        rl = sample.score
        if rl is not None and len(members) > 1:
            mean = sum(members) / len(members)
            std = (sum((x - mean) ** 2 for x in members) / (len(members) - 1)) ** 0.5
            rl = (rl - mean) / (std + 1e-6)
        row: list[float | None] = []
        for t in range(len(sample.completion_ids)):
            gap = None
            if sample.teacher_logprobs is not None and not np.isnan(sample.teacher_logprobs[t]):
                gap = max(-CLIP, min(CLIP, sample.teacher_logprobs[t] - sample.plain_logprobs[t]))
            if method == "binary":
                value = rl
            elif method.startswith("opd"):
                value = gap if gap is None or method == "opd" else gap * compute_acceptance(sample, t)
            else:
                w_rl = W_RL_ALONE if sample.teacher_logprobs is None else W_RL
                terms = [w * x for w, x in ((w_rl, rl), (W_OPD, gap)) if x is not None]
                value = sum(terms) if terms else None
            if sample.completion_mask is not None and not sample.completion_mask[t]:
                value = None
            row.append(None if value is None else value * sample.weight)
        rows.append(row)
    return rows


def logps_of(model: Any, sample: TrainingSample, width: int) -> torch.Tensor:
    """Log-probs of one unpadded sample.

    It stands at the positions it has in the padded batch: Qwen3 computes rotary angles in float32 whatever its type,
    so that other positions, equal in exact arithmetic, differ by more than this test's tolerance.
    """
    ids = torch.tensor([*sample.prompt_ids, *sample.completion_ids])[None]
    positions = torch.arange(ids.size(1))[None] + width - len(sample.prompt_ids)
    logits = model(input_ids=ids, position_ids=positions).logits[0] / sample.temperature
    start = len(sample.prompt_ids)
    rows = logits[start - 1 : -1].log_softmax(-1)
    return rows.gather(1, ids[0, start:, None])[:, 0]


def reference_loss(
    model: Any,
    samples: list[TrainingSample],
    credited: list[list[float | None]],
    mode: str,
    loss_type: str,
    width: int,
) -> torch.Tensor:
    rows = []
    for sample, advantages in zip(samples, credited, strict=True):
        logps = logps_of(model, sample, width)
        with model.disable_adapter(), torch.no_grad():
            base = logps_of(model, sample, width)
        terms = []
        for t, advantage in enumerate(advantages):
            if advantage is None:
                continue
            current, behaviour = logps[t], torch.tensor(sample.logprobs[t], dtype=torch.float64)
            old = behaviour if mode == "clip" else current.detach()
            weight = torch.ones((), dtype=torch.float64)
            off = torch.exp(current.detach() - behaviour)
            if mode == "truncate":
                weight = torch.clamp(off, max=CAP)
            elif mode == "mask":
                weight = off if 1 / CAP <= off <= CAP else torch.zeros_like(off)
            ratio = torch.exp(current - old)
            a = advantage * weight
            kl = torch.exp(base[t] - current) - (base[t] - current) - 1
            term = -torch.min(ratio * a, torch.clamp(ratio, 1 - LOW, 1 + HIGH) * a)
            terms.append(term + BETA * kl * ratio)
        if terms:
            rows.append(torch.stack(terms))
    if loss_type == "dapo":
        return torch.cat(rows).mean()
    return torch.stack([row.mean() for row in rows]).mean()


def build(tiny: Path, tmp_path: Path, method: str, samples: list[TrainingSample], **options: Any) -> AsyncGRPOTrainer:
    trainer_class, config_class, extra = METHODS[method]
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64, attn_implementation="sdpa")
    args = config_class(
        output_dir=str(tmp_path),
        per_device_train_batch_size=len(samples),
        importance_sampling_cap=CAP,
        use_cpu=True,
        disable_tqdm=True,
        **{"beta": BETA, **extra, **options},
    )
    trainer = trainer_class(
        model=model, args=args, source=samples, peft_config=LoraConfig(r=4, target_modules="all-linear")
    )
    torch.manual_seed(7)
    for name, parameter in trainer.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    return trainer


@pytest.mark.parametrize("mode", ["truncate", "clip", "mask", "none"])
@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_loss_and_gradients(tiny: Path, tmp_path: Path, method: str, mode: str, loss_type: str) -> None:
    samples = hard_samples()
    trainer = build(tiny, tmp_path, method, samples, importance_sampling=mode, loss_type=loss_type)
    model = trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    (micro,) = trainer.get_train_dataloader()
    trainer.compute_loss(model, trainer._prepare_inputs(micro)).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    loss = trainer.compute_loss(model, trainer._prepare_inputs(micro))
    width = trainer._prepare_inputs(micro)["prompt_ids"].size(1)
    model.zero_grad()

    expected = reference_loss(model, samples, plain_advantages(samples, method), mode, loss_type, width)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-6)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=0, atol=1e-6)
    assert max(grad.abs().max() for grad in gradients.values()) > 1e-3


@pytest.mark.parametrize(("mode", "acts"), [("truncate", False), ("mask", False), ("none", False), ("clip", True)])
def test_the_clip_acts_where_its_help_says(tiny: Path, tmp_path: Path, mode: str, acts: bool) -> None:
    """One iteration: only against the behaviour policy is the ratio other than 1."""
    samples = hard_samples()

    def gradient(bound: float) -> torch.Tensor:
        options = {"importance_sampling": mode, "epsilon": bound, "epsilon_high": bound}
        trainer = build(tiny, tmp_path, "binary", samples, **options)
        trainer.current_gradient_accumulation_steps = 1
        (micro,) = trainer.get_train_dataloader()
        trainer.compute_loss(trainer.model, trainer._prepare_inputs(micro)).backward()
        return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.requires_grad])

    assert bool((gradient(1e-3) != gradient(0.9)).any()) is acts
    help_text = AsyncGRPOConfig.__dataclass_fields__["epsilon"].metadata["help"]
    assert "Has no effect with --importance_sampling truncate" in help_text and "'clip'" in help_text
