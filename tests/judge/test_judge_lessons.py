"""A hint is made of words that teach something, as the language model reads them."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from chat_models import make_chat_model
from judge_helpers import judged_turn
from safetensors.torch import load_file
from transformers import AutoTokenizer

from clawrl_trl.judge import rules
from clawrl_trl.judge.classifier import lesson_reader
from clawrl_trl.judge.classifier.adapters import LORA_PREFIX
from clawrl_trl.judge.classifier.encoders import ENCODERS, LAST, MINILM, QWEN, Encoder
from clawrl_trl.judge.classifier.model import Opinion
from clawrl_trl.judge.classifier.reader import Reader
from clawrl_trl.judge.hints import fitness
from clawrl_trl.judge.turn import FeedbackItem, Judgement
from clawrl_trl.tiny import MODEL_PATH
from recipes.judge import heads, lessons, train
from recipes.judge.example import Example

FAILED = "Bind for 0.0.0.0:5432 failed: port is already allocated. Please stop the other container and try again."
START = ("start the database", "docker run -p 5432:5432 postgres")


@pytest.mark.parametrize(
    ("encoder", "teaches", "hints"), [(QWEN, True, ("a hint",)), (QWEN, False, ()), (MINILM, False, ("a hint",))]
)
def test_words_without_a_lesson_make_no_hint(
    monkeypatch: pytest.MonkeyPatch, encoder: str, teaches: bool, hints: tuple[str, ...]
) -> None:
    monkeypatch.setattr(fitness, "holds_lesson", lambda *_: teaches)
    monkeypatch.setattr(fitness, "asks_for_less_care", lambda *_: False)
    turn = judged_turn("it should say why", request=START[0], reply=START[1])
    judgement = fitness.drop_unfit_hints(turn, Judgement("rules", -1, ("a hint",), "owner message"), encoder)
    assert (judgement.score, judgement.hints) == (-1, hints)
    assert (judgement.detail.get("no hint") == "teaches nothing") == (not hints)
    # What is written into a field for corrections is one.
    explicit = replace(turn, feedback=(FeedbackItem("correction", None, "it should say why"),))
    assert fitness.drop_unfit_hints(explicit, Judgement("rules", -1, ("a hint",)), encoder).hints == ("a hint",)


@pytest.mark.parametrize(
    ("encoder", "lesson", "less_care", "hints"),
    [
        (QWEN, 0.97, 0.01, ("Server is on 5.7.",)),
        (QWEN, rules.SURE_LESSON - 0.01, 0.01, ()),
        (QWEN, 0.97, rules.SAFE_LESSON + 0.01, ()),
        (MINILM, 0.97, 0.01, ()),
    ],
)
def test_a_lesson_that_asks_for_nothing_makes_a_hint_if_it_is_sure(
    monkeypatch: pytest.MonkeyPatch, encoder: str, lesson: float, less_care: float, hints: tuple[str, ...]
) -> None:
    monkeypatch.setattr(rules, "measure_lesson", lambda *_: lesson)
    monkeypatch.setattr(rules, "measure_less_care", lambda *_: less_care)
    monkeypatch.setattr(fitness, "holds_lesson", lambda *_: True)
    monkeypatch.setattr(fitness, "asks_for_less_care", lambda *_: False)
    judge = rules.RulesJudge(lambda *_: Opinion(-1, (0.96, 0.02, 0.02)), encoder=encoder)
    text = "ERROR 1064 (42000): You have an error in your SQL syntax\n\nserver is on 5.7"
    turn = judged_turn(text, request="total sales by branch", reply="WITH r AS (SELECT 1) SELECT * FROM r")
    assert judge.decide(turn).hints[:1] == hints


@pytest.mark.parametrize(
    "text",
    [
        "are you sure it is Bern?",
        "oh splendid, the capital of Austria is Bern",
        "forget it, I'll ask Ann",
        "No. Use the token in the env file.",
        "> the capital is Bern\n\nit is Vienna",
    ],
)
def test_mockery_doubt_and_what_is_left_of_a_message_make_no_hint_however_sure_the_lesson(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(rules, "measure_lesson", lambda *_: 1.0)
    monkeypatch.setattr(rules, "measure_less_care", lambda *_: 0.0)
    judge = rules.RulesJudge(lambda *_: Opinion(-1, (0.96, 0.02, 0.02)), encoder=QWEN)
    assert judge.decide(judged_turn(text, request="capital of Austria", reply="Bern")).hints == ()


@pytest.mark.language_model
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("own", "teaches"), [("", False), (" 5432 is taken by the old one, use 5433.", True)])
def test_a_machine_s_demand_is_no_lesson_and_the_owner_s_is(own: str, teaches: bool) -> None:
    assert lesson_reader.holds_lesson(*START, FAILED + own) == teaches


def test_the_head_learns_what_sets_lessons_apart() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(200, 16)
    taught = (inputs @ torch.randn(16) > 0).float()
    head = heads.fit(inputs[:150], taught[:150])
    found = head(inputs[150:])[:, 0] > 0
    assert (found == taught[150:].bool()).float().mean() > 0.9


@pytest.mark.parametrize("writer", lessons.WRITERS)
def test_half_of_what_a_writer_has_owners_say_is_a_lesson(writer: str) -> None:
    texts, taught = lessons.load_lessons(writer)
    assert len(texts) == len(set(texts)) == 240 and taught.sum() == 120


@pytest.fixture
def chat_encoder(tmp_path: Path) -> Encoder:
    """A language model that reads chats, small and with random weights."""
    make_chat_model(layers=10).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(MODEL_PATH).save_pretrained(tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    return replace(
        ENCODERS[QWEN],
        sha256=hashlib.sha256(weights).hexdigest(),
        classifier=tmp_path / "classifier.safetensors",
        look=lambda: tmp_path,
        weights_file="model.safetensors",
        layers=(LAST, 5),
    )


def test_the_judge_reads_what_the_recipe_taught_a_language_model(
    chat_encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    objections = [Example("a poem", "Rain falls.", f"no, {n} lines", -1, "a", 1.0) for n in range(40)]
    praise = [Example("a poem", "Rain falls.", f"thanks a lot, {n} times", 1, "b", 1.0) for n in range(40)]
    network = train.fit((objections + praise) * 10, encoder=chat_encoder, adapter_lr=2e-3)
    network.save(chat_encoder.classifier, temperature=1.5)

    reader, asked = Reader(chat_encoder), [objections[0], praise[0]]
    expected = train.compute_logits(network, asked)
    read = np.stack([reader(*example.texts) * 1.5 for example in asked])
    np.testing.assert_allclose(read, expected, atol=0.05)
    assert (expected[0].argmax(), expected[1].argmax()) == (0, 2)
    # Another question about the same message costs no second reading.
    assert reader.embed(*praise[0].texts) is reader.embed(*praise[0].texts)
    assert reader.embed(*praise[0].texts) is not reader.embed(*praise[0].texts, 5)
    assert reader.embed(*praise[0].texts) is not reader.embed(*objections[0].texts)
    # The recipe of a head reads the same layer, of many at once.
    monkeypatch.setitem(ENCODERS, QWEN, chat_encoder)
    embedded = heads.embed([example.texts for example in asked], 5).numpy()
    np.testing.assert_allclose(embedded, [reader.embed(*example.texts, 5) for example in asked], atol=1e-3)


def test_only_the_trainable_layers_change(chat_encoder: Encoder, tmp_path: Path) -> None:
    rows = [Example("a poem", "Rain falls.", f"no, {n} lines", -1, "a", 1.0) for n in range(40)]
    train.fit(rows, encoder=chat_encoder).save(chat_encoder.classifier, temperature=1.0)
    further = tmp_path / "further.safetensors"
    network = train.fit(rows, encoder=chat_encoder, start=chat_encoder.classifier, trainable=r"layers\.9\.")
    network.save(further, temperature=1.0)
    before, after = load_file(chat_encoder.classifier), load_file(further)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    adapted = {name for name in before if name.startswith(LORA_PREFIX)}
    assert {name for name in changed & adapted if "layers.9." in name} == changed & adapted != set()
    assert any("layers.8." in name for name in adapted)
