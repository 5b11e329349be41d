"""Training on pictures: a reply is scored after the very pixels that the engine showed when it was sampled."""

import base64
import io
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gateway_rig import Rig, running
from peft import LoraConfig
from PIL import Image
from tiny_vl import PAD, TinyVL
from transformers import ProcessorMixin

from clawrl_trl import pictures
from clawrl_trl.credit import CreditedSample, LedgerSource, SampleBatch, TrainingSample
from clawrl_trl.credit.ledger_source import training_sample
from clawrl_trl.ledger import turns
from clawrl_trl.ledger.schema import Sample, Turn, Verdict
from clawrl_trl.policies.targets import choose_targets
from clawrl_trl.trainers import AsyncGRPOConfig, AsyncGRPOTrainer
from clawrl_trl.trainers.micro_batch import CreditedBatch, MicroBatch
from clawrl_trl.trainers.terms.divergence import compute_kl_to_base
from clawrl_trl.trainers.vision import _open_picture

SIZES = {"red": (84, 56), "blue": (56, 112), "green": (140, 84)}
ASKED: tuple[tuple[str, ...], ...] = (("red",), (), ("blue", "green"), ("green",))
"""The pictures of each request."""


class Processor(ProcessorMixin):  # type: ignore[misc]
    """A tokenizer and an image processor; the real one also wants videos, and torchvision for them."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None) -> None:
        super().__init__(image_processor, tokenizer)


def png(colour: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", SIZES[colour], colour).save(buffer, "PNG")
    return buffer.getvalue()


def message(colours: tuple[str, ...]) -> dict[str, Any]:
    urls = ["data:image/png;base64," + base64.b64encode(png(colour)).decode() for colour in colours]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": "user", "content": [*parts, {"type": "text", "text": f"Click in {len(colours)} pictures."}]}


@pytest.fixture(scope="module")
def engine() -> TinyVL:
    return TinyVL()


@pytest.fixture(scope="module")
def rig(engine: TinyVL, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A gateway that has captured a turn of each request, all of them praised."""
    with running(tmp_path_factory.mktemp("run"), engine=engine, max_model_len=8192) as rig, rig.client() as http:
        for colours in ASKED:
            reply = http.post("/v1/chat/completions", json={"messages": [message(colours)], "temperature": 1.0})
            assert reply.status_code == 200, reply.text
        with rig.ledger.transaction() as tx:
            for turn in rig.turns():
                turns.set_next_state(tx, turn.id, [{"role": "user", "content": "ok"}], ["owner"], None, 0.0)
                row = Sample(turn_id=turn.id, score=1.0, policy_version=0)
                turns.record_verdict(tx, Verdict(turn_id=turn.id, judge="test", score=1.0), row)
        yield rig


def samples(rig: Rig) -> list[TrainingSample]:
    return [
        training_sample(Sample(id=turn.id, turn_id=turn.id, score=1.0, policy_version=0, weight=1.0), turn)
        for turn in rig.turns()
    ]


def trainer_of(engine: TinyVL, folder: Path, source: Any, *, dtype: Any = torch.float32, **options: Any) -> Any:
    return AsyncGRPOTrainer(
        model=engine.fresh_model().to(dtype),
        args=AsyncGRPOConfig(
            output_dir=str(folder), use_cpu=True, disable_tqdm=True, report_to=[], max_kl=100.0,
            **{"learning_rate": 1e-2, "per_device_train_batch_size": 4, "gradient_checkpointing": False, **options},
        ),
        source=source,
        processing_class=Processor(engine.prepare, engine.tokenizer),
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
    )  # fmt: skip


@torch.no_grad()
def build_inputs(trainer: Any, rows: list[TrainingSample]) -> Any:
    credited = [CreditedSample(sample, np.ones(len(sample.completion_ids))) for sample in rows]
    batch = CreditedBatch(SampleBatch(rows), credited, [])
    return trainer.input_builder.build(MicroBatch(batch, credited, num_items=1.0, row_share=1.0))


def score_replies(trainer: Any, rows: list[TrainingSample]) -> list[Any]:
    trainer.model.eval()
    with torch.no_grad():
        logps = trainer.logps(trainer.model, build_inputs(trainer, rows))
    return [row[: len(sample.completion_ids)].double().numpy() for row, sample in zip(logps, rows, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fused head", "plain logits"])
def test_a_turn_is_scored_as_it_was_seen(engine: TinyVL, rig: Rig, tmp_path: Path, dtype: Any) -> None:
    rows = samples(rig)
    assert [len(sample.images) for sample in rows] == [len(colours) for colours in ASKED]
    trainer = trainer_of(engine, tmp_path, rows, dtype=dtype)
    assert all(trainer.vision.find_fault(sample) is None for sample in rows)
    for sample, logps in zip(rows, score_replies(trainer, rows), strict=True):
        np.testing.assert_allclose(logps, sample.logprobs, atol=1e-3)
        np.testing.assert_allclose(logps, score_replies(trainer, [sample])[0], atol=1e-3)
    other = replace(rows[0], images=(_repainted(rows[0].images[0]),))
    assert np.abs(score_replies(trainer, [other])[0] - rows[0].logprobs).max() > 1e-3, "the pixels count"


def _repainted(file: bytes) -> bytes:
    with Image.open(io.BytesIO(file)) as image:
        buffer = io.BytesIO()
        Image.new("RGB", image.size, "yellow").save(buffer, "PNG")
    return buffer.getvalue()


def test_a_ledger_of_pictures_becomes_a_policy(engine: TinyVL, rig: Rig, tmp_path: Path) -> None:
    source = LedgerSource(rig.ledger, poll_s=0.01, timeout_s=0.0)
    trainer = trainer_of(engine, tmp_path, source, max_steps=1, beta=0.05)
    adapted = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    assert adapted and all("language_model" in name for name in adapted)
    rows = samples(rig)
    before = score_replies(trainer, rows)
    trainer.train()
    assert trainer.policy_version == 1
    after = score_replies(trainer, rows)
    assert all(new.sum() > old.sum() for old, new in zip(before, after, strict=True))
    with rig.ledger.reader() as tx:
        assert {sample.state for sample in tx.query(Sample)} == {"trained"}


def test_pictures_that_do_not_fit_are_not_trained(
    engine: TinyVL, rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, text, *_ = samples(rig)
    trainer = trainer_of(engine, tmp_path, [first])
    bad = [
        replace(first, sample_id="larger", images=(png("green"),)),
        replace(first, sample_id="torn", images=(png("red")[:40],)),
        replace(first, sample_id="more", images=(png("red"), png("blue"))),
    ]
    with caplog.at_level(logging.WARNING):
        batch = trainer.credit_batch(SampleBatch([first, *bad, text]))
    assert [row.sample.sample_id for row in batch.rows] == [first.sample_id, text.sample_id]
    assert list(batch.left_out) == ["larger", "torn", "more"]
    assert "the engine prepares them otherwise" in caplog.text and "can't be read" in caplog.text
    trainer.vision = None
    with caplog.at_level(logging.WARNING):
        batch = trainer.credit_batch(SampleBatch([first, text]))
    assert [row.sample.sample_id for row in batch.rows] == [text.sample_id]
    assert "sees no pictures" in caplog.text


def test_a_later_turn_shows_the_pictures_of_earlier_ones_too(engine: TinyVL, rig: Rig, tmp_path: Path) -> None:
    first = samples(rig)[0]
    more = engine.tokenizer.encode("ok")
    vision = [engine.tokenizer.convert_tokens_to_ids(PAD)] * ((140 // 28) * (84 // 28))
    prompt = [*first.prompt_ids, *first.completion_ids, *more, *vision, *more]
    later = replace(first, sample_id="later", prompt_ids=np.array(prompt), images=(*first.images, png("green")))

    trainer = trainer_of(engine, tmp_path, [first], gate_tokens=1)
    assert trainer.vision.find_fault(later) is None
    together = score_replies(trainer, [first, later])
    for sample, logps in zip((first, later), together, strict=True):
        np.testing.assert_allclose(logps, score_replies(trainer, [sample])[0], atol=1e-3)
    assert compute_kl_to_base(trainer, build_inputs(trainer, [first, later])) == pytest.approx(0.0, abs=1e-6)


def test_only_of_a_model_that_sees_something_is_left_out(engine: TinyVL, tiny: Path) -> None:
    every = LoraConfig(target_modules="all-linear")
    assert choose_targets(every, str(tiny)) is every and choose_targets(None, str(tiny)) is None
    adapted = choose_targets(every, engine.model)
    assert adapted is not None and adapted.exclude_modules and not every.exclude_modules
    own = LoraConfig(target_modules="all-linear", exclude_modules=["q_proj"])
    assert choose_targets(own, engine.model) is own


def test_a_picture_is_shown_as_vllm_shows_it(engine: TinyVL) -> None:
    def open_picture(image: Image.Image, **options: Any) -> Any:
        buffer = io.BytesIO()
        image.save(buffer, "PNG", **options)
        return _open_picture(buffer.getvalue())

    assert open_picture(Image.new("RGBA", (4, 4), (0, 0, 0, 0))).getpixel((0, 0)) == (255, 255, 255)
    assert open_picture(Image.new("LA", (4, 4), (0, 255))).getpixel((0, 0)) == (0, 0, 0)
    assert open_picture(Image.new("P", (4, 4), 0), transparency=0).getpixel((0, 0)) == (255, 255, 255)
    turned = Image.new("RGB", (6, 4))
    exif = turned.getexif()
    exif[0x0112] = 6
    assert open_picture(turned, exif=exif).size == (4, 6)


def test_pictures_of_a_row_are_files_or_data_urls() -> None:
    row = {"prompt_ids": [1], "completion_ids": [2], "logprobs": [-1.0]}
    url = "data:image/png;base64," + base64.b64encode(png("red")).decode()
    assert TrainingSample.from_row(row | {"images": [url]}).images == (png("red"),)
    assert TrainingSample.from_row(row | {"images": None}).images == ()
    for wrong in ("https://example.com/a.png", "", b""):
        with pytest.raises(ValueError, match="a picture is a file's content or a data: URL"):
            TrainingSample.from_row(row | {"images": [wrong]})


def test_what_was_captured_holds_its_pictures(rig: Rig) -> None:
    turns: list[Turn] = rig.turns()
    assert all(turn.trainable for turn in turns)
    assert [pictures.read_contents(turn.messages) for turn in turns] == [list(map(png, colours)) for colours in ASKED]
