"""The bundled weights, sampled at temperature 1 on held-out problems and wordings.

The samples are small and seeded; the bounds are those of the product's promise, and the full figures, with
their intervals, are in the model card (`PYTHONPATH=examples python -m recipes.tiny.evaluate`).
"""

import itertools
import json
import random
from collections.abc import Callable, Iterator

import pytest
import torch
from safetensors import safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.chat_template_utils import parse_response

from clawrl_trl.tiny import MODEL_PATH
from recipes.tiny import cases, evaluate
from recipes.tiny.actions import SCENES
from recipes.tiny.cases import Case
from recipes.tiny.wishes import Wish

PLAIN, WARM = Wish(form="plain"), Wish(tone="warm")
Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]
pytestmark = [pytest.mark.xdist_group("tiny-model"), pytest.mark.slow]


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return evaluate.load(MODEL_PATH)


def test_the_folder_is_complete_and_small() -> None:
    names = {path.name for path in MODEL_PATH.iterdir()}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "chat_template.jinja",
        "README.md",
        "LICENSE",
    } <= names
    assert sum(path.stat().st_size for path in MODEL_PATH.iterdir()) <= 12_000_000


def test_the_architecture() -> None:
    config = json.loads((MODEL_PATH / "config.json").read_text())
    assert (config["model_type"], config["head_dim"]) == ("qwen3", 64)
    with safe_open(MODEL_PATH / "model.safetensors", "pt") as tensors:
        shapes = [tensors.get_slice(name) for name in tensors.keys()]  # noqa: SIM118
        assert {tensor.get_dtype() for tensor in shapes} == {"BF16"}
        assert 2_000_000 <= sum(torch.Size(tensor.get_shape()).numel() for tensor in shapes) <= 5_000_000


def test_the_card_is_plain_about_limits() -> None:
    card = (MODEL_PATH / "README.md").read_text()
    assert "license: apache-2.0" in card
    assert "What it can't do" in card
    assert "solve: correct" in card


def _measure_shares(loaded: Loaded, source: Callable[[random.Random], Iterator[Case]], count: int) -> dict[str, float]:
    drawn_cases = list(itertools.islice(source(random.Random(11)), count))
    replies = evaluate.sample(*loaded, [case.prompt for case in drawn_cases], seed=11, quiet=True)
    return {measure.name: measure.share for measure in evaluate.measure(drawn_cases, replies)}


def test_it_solves_heldout_problems_in_its_two_styles(loaded: Loaded) -> None:
    shares = _measure_shares(loaded, cases.generate_solving, 128)
    assert shares["solve: correct"] >= 0.9
    assert 0.02 <= shares["solve: plain by itself"] <= 0.25
    assert shares["solve: one style throughout"] >= 0.95


def test_it_grades_curtly_and_rightly(loaded: Loaded) -> None:
    shares = _measure_shares(loaded, cases.generate_grading, 128)
    assert shares["grade: verdict right"] >= 0.9
    assert 0.02 <= shares["grade: warm by itself"] <= 0.25


@pytest.mark.parametrize("wish", [PLAIN, WARM], ids=["plain", "warm"])
@pytest.mark.parametrize("where", ["system", "hint"])
def test_it_follows_heldout_instructions(loaded: Loaded, wish: Wish, where: str) -> None:
    shares = _measure_shares(loaded, lambda rng: cases.generate_instructed(rng, wish, where), 48)
    followed, correct = shares.values()
    assert followed >= 0.8
    assert correct >= 0.8


@pytest.mark.parametrize("wish", [PLAIN, WARM], ids=["plain", "warm"])
def test_it_follows_wordings_from_outside_its_grammar(loaded: Loaded, wish: Wish) -> None:
    (followed,) = _measure_shares(loaded, lambda rng: cases.generate_fresh_wordings(rng, wish, "hint"), 48).values()
    assert followed >= 0.8


def test_it_rewrites_when_the_user_objects(loaded: Loaded) -> None:
    shares = _measure_shares(loaded, lambda rng: cases.generate_objections(rng, PLAIN), 48)
    assert all(share >= 0.8 for share in shares.values()), shares


def test_its_tool_calls_parse(loaded: Loaded) -> None:
    model, tokenizer = loaded
    drawn_cases = list(itertools.islice(cases.generate_tool_calls(random.Random(5)), 48))
    prompts = [case.prompt for case in drawn_cases]
    replies = evaluate.sample(model, tokenizer, prompts, seed=5, quiet=True)
    right = 0
    for prompt, reply, case in zip(prompts, replies, drawn_cases, strict=True):
        if case.checks["tool: call well formed"](reply):
            ids = tokenizer.encode(f"{reply}<|im_end|>", add_special_tokens=False)
            prefix = tokenizer.encode(evaluate.render_prompt(tokenizer, prompt), add_special_tokens=False)
            (call,) = parse_response(tokenizer, ids, prefix=prefix)["tool_calls"]
            assert call["function"]["name"] == "calculator"
            right += bool(case.checks["tool: right expression"](reply))
    assert right >= 0.8 * len(drawn_cases)


@pytest.mark.parametrize("env", sorted(SCENES))
def test_it_acts_in_each_environment_and_is_right_at_times(loaded: Loaded, env: str) -> None:
    formed, right = _measure_shares(loaded, lambda rng: cases.generate_actions(rng, env), 96).values()
    assert formed >= 0.9
    assert 0.1 <= right <= 0.5


@pytest.mark.parametrize("wish", [PLAIN, WARM], ids=["plain", "warm"])
def test_a_hint_makes_a_teacher(loaded: Loaded, wish: Wish) -> None:
    gap = evaluate.measure_style_gap(*loaded, wish, count=64)
    assert 0.04 <= gap.unhinted <= 0.22
    assert gap.hinted >= 0.85
    assert gap.gain >= 1.5
    assert gap.loss <= -2.0
