"""Families that the embedded engine leaves to vLLM: refused in one line, trained on samples of another engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_models import find_family
from family_run import compute_logprobs, make_trainer
from made_up import fill, make_samples
from PIL import Image
from test_vision import SIZES, Processor, png, score_replies
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.credit import TrainingSample
from clawrl_trl.engines.embedded.engine import Engine
from clawrl_trl.errors import UserError
from clawrl_trl.ledger import Ledger, policies

COLOURS = (("red",), (), ("blue", "green"))


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3-vl"])
def test_the_embedded_engine_names_the_one_that_serves_it(name: str, tmp_path: Path) -> None:
    model = find_family(name).save(tmp_path)
    with pytest.raises(UserError, match="--engine vllm") as error:
        Engine.load(ServeSettings(run="unused"), str(model))
    assert "\n" not in str(error.value)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(tmp_path / "ledger.db")
    yield opened
    opened.close()


@pytest.mark.slow
def test_hybrid_layers_train_and_go_on(tmp_path: Path, ledger: Ledger) -> None:
    """Rows of several lengths in one pass have the numbers of a pass of their own, and so do versions."""
    model = find_family("qwen3.5").save(tmp_path / "model")
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    rows = [_score(sample, network) for sample in make_samples(4)]
    fill(ledger, rows)
    first = make_trainer(model, tmp_path / "run", ledger, None)
    for sample, logprobs in zip(rows, score_replies(first, rows), strict=True):
        np.testing.assert_allclose(logprobs, sample.logprobs, atol=1e-3)
    first.train()
    more = [_score(sample, first.model.eval()) for sample in make_samples(4, seed=1)]
    fill(ledger, more, session="more")
    second = make_trainer(model, tmp_path / "run", ledger, None)
    second.train()
    with ledger.reader() as tx:
        assert policies.serving(tx).version == 2
    assert (first.state.global_step, second.state.global_step) == (1, 2)
    changed = {name.split(".")[-4] for name, weight in second.model.named_parameters() if _is_up(name, weight)}
    assert changed == set(find_family("qwen3.5").targets)


def test_pictures_train_the_language_model(tmp_path: Path) -> None:
    model = find_family("qwen3-vl").save(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(model)
    images = Qwen2VLImageProcessorPil(patch_size=16)
    network = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32).eval()
    rows = [
        _show(sample, colours, tokenizer, images, network)
        for sample, colours in zip(make_samples(3), COLOURS, strict=True)
    ]
    trainer = make_trainer(model, tmp_path / "run", rows, None, processing_class=Processor(images, tokenizer))
    assert all(trainer.vision.find_fault(sample) is None for sample in rows)
    for sample, logprobs in zip(rows, score_replies(trainer, rows), strict=True):
        np.testing.assert_allclose(logprobs, sample.logprobs, atol=1e-3)
    trainer.train()
    adapted = {name for name, weight in trainer.model.named_parameters() if _is_up(name, weight)}
    assert adapted and all("language_model" in name for name in adapted)


def _is_up(name: str, weight: torch.Tensor) -> bool:
    return "lora_B" in name and bool(weight.any())


def _score(sample: TrainingSample, network: Any) -> TrainingSample:
    logprobs = compute_logprobs(network, sample.prompt_ids, sample.completion_ids).double().numpy()
    return TrainingSample(**{**sample.__dict__, "logprobs": logprobs})


def _show(
    sample: TrainingSample, colours: tuple[str, ...], tokenizer: Any, images: Any, network: Any
) -> TrainingSample:
    """A sample whose prompt begins with pictures, scored by a plain pass."""
    start, pad, end = tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"])
    shown: list[int] = []
    for colour in colours:
        width, height = SIZES[colour]
        shown += [start, *[pad] * (images.get_number_of_image_patches(height, width, {}) // 4), end]
    prompt = np.array([*shown, *sample.prompt_ids])
    arguments: dict[str, Any] = {}
    if colours:
        pictures = [Image.new("RGB", SIZES[colour], colour) for colour in colours]
        arguments = dict(images(images=pictures, return_tensors="pt"))
        arguments["mm_token_type_ids"] = torch.tensor(
            [[*(prompt == pad), *[False] * len(sample.completion_ids)]]
        ).int()
    logprobs = compute_logprobs(network, prompt, sample.completion_ids, **arguments).double().numpy()
    files = tuple(png(colour) for colour in colours)
    return TrainingSample(**{**sample.__dict__, "prompt_ids": prompt, "images": files, "logprobs": logprobs})
