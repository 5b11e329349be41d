"""The recipe end to end, three steps long: it writes a loadable model, and the same one each time."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from clawrl_trl.tiny import MODEL_PATH
from recipes.tiny import build as recipe
from recipes.tiny import evaluate, train
from recipes.tiny import tokenizer as tokenizers

pytestmark = pytest.mark.slow


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller chunks and a smaller tokenizer corpus; the same code."""
    monkeypatch.setattr(train, "_CHUNK", 256)
    monkeypatch.setattr(tokenizers, "SAMPLES", 1500)


def test_three_steps_twice_are_the_same_model(tmp_path: Path, quick: None) -> None:
    first_build = recipe.build(tmp_path / "one", recipe.Recipe(seed=3, cycles=(recipe.Cycle(3),), count=0))
    two = recipe.build(tmp_path / "two", recipe.Recipe(seed=3, cycles=(recipe.Cycle(3),), count=0))
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"):
        assert (first_build / name).read_bytes() == (two / name).read_bytes(), name
    model = AutoModelForCausalLM.from_pretrained(first_build, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(first_build)
    assert model.config.vocab_size == len(tokenizer) == tokenizers.VOCABULARY
    assert tokenizer.response_template == tokenizers.RESPONSE_TEMPLATE
    assert model.generation_config.temperature == 1.0
    assert (first_build / "LICENSE").is_file()


def test_a_run_can_continue_another(tmp_path: Path, quick: None) -> None:
    cycles = recipe.Cycle(2), recipe.Cycle(2, 1e-3)
    first = recipe.build(tmp_path / "first", recipe.Recipe(cycles=cycles[:1], sharpened=1.0, count=0))
    second = recipe.build(tmp_path / "second", recipe.Recipe(seed=1, cycles=cycles[1:], count=0, start=first))
    both = recipe.build(tmp_path / "both", recipe.Recipe(cycles=cycles, count=0))
    assert (first / "tokenizer.json").read_bytes() == (second / "tokenizer.json").read_bytes()
    assert (first / "model.safetensors").read_bytes() != (second / "model.safetensors").read_bytes()
    assert (second / "model.safetensors").read_bytes() == (both / "model.safetensors").read_bytes()


def test_the_loss_falls_and_every_weight_moves(quick: None) -> None:
    tokenizer = tokenizers.build(0)
    model = train.make_model(tokenizer, 0)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    losses = train.train(model, tokenizer, seed=0, steps=12, tokens=1024)
    assert losses[-1] < losses[0]
    assert all(not torch.equal(before[name], weight) for name, weight in model.named_parameters())


def test_the_card_carries_the_figures() -> None:
    measures = [evaluate.Measure("solve: correct", 97, 100, *evaluate.compute_wilson_interval(97, 100))]
    gaps = [evaluate.StyleGap("plain", 0.12, 0.02, 0.99, 2.1, -4.0)]
    how = recipe.describe_build(recipe.Recipe(seed=0, cycles=(recipe.Cycle(10),)))
    card = recipe.make_card(measures, gaps, parameters=3_700_000, how=how)
    assert "| solve: correct | 97.0% |" in card
    assert "--seed 0" in card and "10 steps" in card


@pytest.mark.parametrize(("hits", "count", "low", "high"), [(50, 100, 0.404, 0.596), (0, 10, 0.0, 0.278)])
def test_wilson(hits: int, count: int, low: float, high: float) -> None:
    assert evaluate.compute_wilson_interval(hits, count) == pytest.approx((low, high), abs=1e-3)


def test_steps_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="steps"):
        recipe.build(tmp_path, recipe.Recipe(cycles=(recipe.Cycle(0),)))


def test_sharpened_logits_are_multiplied() -> None:
    model, tokenizer = recipe.load(MODEL_PATH)
    ids = torch.tensor([tokenizer.encode("Sara had 7 tickets.")])
    with torch.no_grad():
        before = model(ids).logits
        recipe.sharpen(model, 2.0)
        assert torch.equal(model(ids).logits, 2 * before)


def test_openings_have_a_weight_of_their_own() -> None:
    model, tokenizer = recipe.load(MODEL_PATH)
    ids = torch.tensor([tokenizer.encode("Sara had 7 tickets.")])[:, :5]
    marks = torch.tensor([[train.GIVEN, train.GIVEN, train.OPENING, train.LEARNT, train.GIVEN]])
    weights = torch.full((len(tokenizer),), 3.0)
    with torch.no_grad():
        losses = -model(ids).logits[0].log_softmax(-1)
        opening, learnt = losses[1, ids[0, 2]], losses[2, ids[0, 3]]
        loss = train.compute_reply_loss(model, ids, marks, weights, opening=5.0)
    torch.testing.assert_close(loss, (5 * opening + 3 * learnt) / 8)


def test_the_command_builds_one_cycle_and_leaves_it_as_it_was_learnt(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = f"--out {tmp_path / 'told'} --seed 3 --steps 2 --learning_rate 0.001 --count 0"
    monkeypatch.setattr("sys.argv", ["build", *options.split()])
    recipe.main()
    choices = recipe.Recipe(seed=3, cycles=(recipe.Cycle(2, 1e-3),), sharpened=1.0, count=0)
    chosen = recipe.build(tmp_path / "meant", choices)
    assert (tmp_path / "told" / "model.safetensors").read_bytes() == (chosen / "model.safetensors").read_bytes()


def test_the_card_tells_of_the_usual_recipe() -> None:
    assert recipe.describe_build(recipe.Recipe(compiled=True)) in (MODEL_PATH / "README.md").read_text()
