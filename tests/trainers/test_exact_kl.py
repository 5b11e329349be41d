"""The pull to the base over the whole vocabulary, against its definition in float64."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from made_up import make_samples
from test_loss_reference import BETA, METHODS, build, hard_samples, plain_advantages, reference_loss
from transformers import Qwen3ForCausalLM

from clawrl_trl.credit import TrainingSample
from clawrl_trl.trainers import AsyncGRPOConfig, AsyncGRPOTrainer

pytestmark = pytest.mark.slow


def distributions(model: Any, sample: TrainingSample, width: int) -> torch.Tensor:
    """[T, V] log-probabilities at temperature 1 of what may stand at each token of a reply."""
    ids = torch.tensor([*sample.prompt_ids, *sample.completion_ids])[None]
    positions = torch.arange(ids.size(1))[None] + width - len(sample.prompt_ids)
    logits = model(input_ids=ids, position_ids=positions).logits[0]
    return logits[len(sample.prompt_ids) - 1 : -1].log_softmax(-1)


def divergences(
    model: Any, base: Any, samples: list[TrainingSample], method: str, width: int, slack: float | None = None
) -> list[torch.Tensor]:
    """Of each reply with trained tokens, the divergence at each of them; with a slack, of the tokens beyond it."""
    values = []
    for sample, advantages in zip(samples, plain_advantages(samples, method), strict=True):
        policy = distributions(model, sample, width)
        with torch.no_grad():
            if base is None:
                with model.disable_adapter():
                    target = distributions(model, sample, width)
            else:
                target = distributions(base, sample, width)
        gaps = policy - target
        if slack is not None:
            gaps = torch.where(gaps > slack, gaps - slack, 0.0)
        per_token = (policy.exp() * gaps).sum(-1)
        if any(advantage is not None for advantage in advantages):
            values.append(per_token[[t for t, advantage in enumerate(advantages) if advantage is not None]])
    return values


def average(rows: list[torch.Tensor], loss_type: str) -> torch.Tensor:
    return torch.stack([row.mean() for row in rows]).mean() if loss_type == "grpo" else torch.cat(rows).mean()


def check(trainer: AsyncGRPOTrainer, method: str, loss_type: str, base: Any = None) -> None:
    samples = trainer.source.items  # type: ignore[attr-defined]
    model = trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    (micro,) = trainer.get_train_dataloader()
    inputs = trainer._prepare_inputs(micro)
    loss = trainer.compute_loss(model, inputs)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    model.zero_grad()

    width = inputs["prompt_ids"].size(1)
    kl = divergences(model, base, samples, method, width)
    far = divergences(model, base, samples, method, width, trainer.args.support_slack)
    credit = plain_advantages(samples, method)
    expected = reference_loss(model, samples, credit, "truncate", loss_type, width)
    expected = expected + trainer.args.beta * average(kl, loss_type)
    expected = expected + trainer.args.support_coef * average(far, loss_type)
    expected.backward()
    torch.testing.assert_close(loss.detach(), expected.detach(), rtol=0, atol=1e-6)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=0, atol=1e-6)
    assert trainer._metrics["train"]["kl"] == pytest.approx([float(torch.cat(kl).detach().mean())], abs=1e-6)
    assert torch.cat(kl).min() > 1e-3, "the policy has moved"
    if trainer.args.support_coef:
        assert trainer._metrics["train"]["support"] == pytest.approx([float(torch.cat(far).detach().mean())], abs=1e-6)
        assert 0 < torch.cat(far).min() < torch.cat(kl).min(), "some tokens are beyond the slack, not all"


@pytest.mark.parametrize("options", [{}, {"support_coef": 5.0, "support_slack": 0.1}], ids=["kl", "support"])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
@pytest.mark.parametrize("method", ["binary", "combine"])
def test_loss_and_gradients(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    loss_type: str,
    options: dict[str, float],
) -> None:
    trainer = build(tiny, tmp_path, method, hard_samples(), loss_type=loss_type, kl_estimator="exact", **options)
    monkeypatch.setattr("test_loss_reference.BETA", 0.0)
    check(trainer, method, loss_type)


def test_without_an_adapter_the_reference_model_is_the_base(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Qwen3ForCausalLM.from_pretrained(tiny, dtype=torch.float64, attn_implementation="sdpa")
    args = AsyncGRPOConfig(
        output_dir=str(tmp_path), beta=BETA, kl_estimator="exact", use_cpu=True, disable_tqdm=True,
        importance_sampling_cap=2.0, per_device_train_batch_size=10,
        model_init_kwargs={"dtype": torch.float64, "attn_implementation": "sdpa"},
    )  # fmt: skip
    trainer = AsyncGRPOTrainer(model=model, args=args, source=hard_samples())
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    monkeypatch.setattr("test_loss_reference.BETA", 0.0)

    monkeypatch.setattr(trainer.model, "disable_adapter", nullcontext, raising=False)
    check(trainer, "binary", "grpo", trainer.ref_model)


def test_an_unknown_estimator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kl_estimator='k9' is unknown"):
        AsyncGRPOConfig(output_dir=str(tmp_path), kl_estimator="k9", use_cpu=True)


@pytest.mark.parametrize("method", list(METHODS))
def test_without_beta_there_is_no_pull(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr("test_loss_reference.BETA", 0.0)
    trainer = build(tiny, tmp_path, method, make_samples(2, 1), kl_estimator="exact")
    (micro,) = trainer.get_train_dataloader()
    assert "base_hidden_states" not in trainer._prepare_inputs(micro)


def test_the_support_is_held_without_beta(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"beta": 0.0, "support_coef": 5.0, "support_slack": 0.1}
    trainer = build(tiny, tmp_path, "binary", hard_samples(), kl_estimator="exact", **options)
    monkeypatch.setattr("test_loss_reference.BETA", 0.0)
    check(trainer, "binary", "grpo")


def test_there_must_be_a_base_to_hold_to(tiny: Path, tmp_path: Path) -> None:
    args = AsyncGRPOConfig(
        output_dir=str(tmp_path), beta=0.0, support_coef=1.0, kl_estimator="exact", use_cpu=True, disable_tqdm=True
    )
    with pytest.raises(ValueError, match="there is no base"):
        AsyncGRPOTrainer(model=str(tiny), args=args, source=hard_samples())


@pytest.mark.parametrize(
    "options",
    [{"support_coef": -1.0}, {"support_slack": 0.0}, {"support_coef": 1.0, "kl_estimator": "sampled"}],
)
def test_coefficients_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="support_"):
        AsyncGRPOConfig(output_dir=str(tmp_path), use_cpu=True, **{"kl_estimator": "exact", **options})
