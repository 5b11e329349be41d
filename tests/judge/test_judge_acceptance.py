"""Kind and sour words get the sign that the acceptance of the reply allows, where the language model reads."""

import re
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from clawrl_trl.judge.classifier import acceptance_reader, reader
from clawrl_trl.judge.classifier.acceptance_reader import measure_acceptance, settle
from clawrl_trl.judge.classifier.encoders import MIDDLE, MINILM, MPNET, QWEN
from clawrl_trl.judge.classifier.model import Classifier
from recipes.judge import acceptance, distil, heads, reactions, train
from recipes.judge.example import Example

PLAIN, PRAISE = "it has to say Sunday", "lovely, it has to say Sunday"
SURE_OF = {-1: (0.9, 0.02, 0.08), 1: (0.08, 0.02, 0.9), 0: (0.1, 0.8, 0.1), None: (0.5, 0.05, 0.45)}


@pytest.mark.parametrize(
    ("score", "words", "taken", "settled"),
    [
        (1, PRAISE, 0.3, 1),
        (1, PRAISE, 0.29, None),
        (-1, PLAIN, 0.69, -1),
        (-1, PLAIN, 0.71, None),
        (-1, PRAISE, 0.49, -1),
        (-1, PRAISE, 0.51, None),
        (0, PRAISE, 0.0, 0),
        (0, PLAIN, 1.0, 0),
        (None, PRAISE, 0.04, -1),
        (None, PRAISE, 0.06, None),
        (None, PLAIN, 0.96, 1),
        (None, f"{PRAISE}, right?", 0.02, None),
        (None, PLAIN, 0.94, None),
    ],
)
def test_acceptance_confirms_doubts_or_decides(
    score: int | None, words: str, taken: float, settled: int | None
) -> None:
    assert settle(score, SURE_OF[score], taken, words) == settled


@pytest.mark.parametrize(
    ("probabilities", "taken", "settled"),
    [
        ((0.57, 0.02, 0.41), 0.19, -1),
        ((0.53, 0.02, 0.45), 0.19, None),
        ((0.57, 0.02, 0.41), 0.21, None),
        ((0.41, 0.02, 0.57), 0.81, 1),
        ((0.68, 0.01, 0.31), 0.96, 1),
        ((0.71, 0.0, 0.29), 1.0, None),
        ((0.29, 0.0, 0.71), 0.0, None),
        ((0.45, 0.11, 0.44), 0.0, None),
    ],
)
def test_the_less_sure_acceptance_is_the_more_the_classifier_has_to_lean_that_way(
    probabilities: tuple[float, float, float], taken: float, settled: int | None
) -> None:
    assert settle(None, probabilities, taken, PLAIN) == settled


@pytest.mark.parametrize(
    ("encoder", "taken", "score"), [(QWEN, 0.9, 1), (QWEN, 0.05, None), (MPNET, 0.05, 1), (MINILM, 0.05, 1)]
)
def test_only_the_language_model_is_asked(
    monkeypatch: pytest.MonkeyPatch, encoder: str, taken: float, score: int | None
) -> None:
    logits = np.array([0.0, 0.0, 4.0], np.float32)
    monkeypatch.setattr(reader, "load_shared", lambda *_, **__: lambda *_: logits)
    monkeypatch.setattr(acceptance_reader, "measure_acceptance", lambda *_: taken)
    opinion = Classifier(encoder)("When is it?", "On Sunday.", "Well, that is perfect for us, I will be there then.")
    assert opinion.score == score and bool(opinion.reason) == (score is None)


@pytest.mark.parametrize("writer", acceptance.WRITERS)
def test_a_writer_has_as_many_messages_to_each_request_after_two_replies(writer: str) -> None:
    rows = heads.read_rows("acceptance", writer)
    forms = Counter(row["form"] for row in rows)
    if writer in acceptance.WISH_WRITERS:
        assert forms == {"wish": 30, "gentle": 30, "mock": 30, "gruff": 30}
    elif writer in acceptance.CORRECTION_WRITERS:
        assert forms == {"fix": 30, "fix_first": 30, "gentle": 30, "mock": 15, "gruff": 15}
    else:
        more = ("wish", "gentle", "terse") if writer in acceptance.NEWEST_WRITERS else ("resign",)
        assert forms == dict.fromkeys(("dry", "fix", "irony", "aside", "loaded", *more), 22)
    of_request, of_reply = defaultdict(list), defaultdict(set)
    for row in rows:
        of_request[row["request"]].append(row["reply"])
        of_reply[row["request"], row["reply"]].add(row["label"])
    assert {len(replies) for replies in of_request.values()} == {len(rows) // len(of_request)}
    # The newest end some replies with a question, for what answers it and tells nothing of them.
    is_newest = writer in acceptance.NEWEST_WRITERS
    most, least = (4, 0) if is_newest else (2, 1)
    assert all(2 <= len(set(replies)) <= most for replies in of_request.values())
    assert all(least <= len(labels - {0}) <= 1 for labels in of_reply.values())
    assert sum(bool(labels - {0}) for labels in of_reply.values()) == 2 * len(of_request)


@pytest.mark.parametrize("writer", acceptance.WRITERS)
def test_what_says_nothing_of_the_reply_is_not_asked_whether_it_took_it(writer: str) -> None:
    texts, taken = acceptance.load_reactions(writer)
    forms = Counter(row["form"] for row in heads.read_rows("acceptance", writer))
    assert len(texts) == len(set(texts)) == forms.total() - forms["aside"] - forms["loaded"]
    refused = sum(forms[name] for name in ("gentle", "irony", "mock", "resign", "terse"))
    assert taken.sum() == len(texts) - refused


def test_the_recipe_writes_the_head_and_measures_it_on_who_was_held_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = torch.cat([acceptance.load_reactions(writer)[1] for writer in acceptance.WRITERS])
    asked: list[int] = []

    def embed(texts: list[tuple[str, str, str]], layer: int) -> torch.Tensor:
        asked.append(layer)
        return torch.stack([2 * taken - 1, torch.zeros(len(texts))], 1)

    monkeypatch.setattr(heads, "embed", embed)
    acceptance.main(["--hold_out", "chat", "--output", str(tmp_path / "head.safetensors")])
    weight = load_file(tmp_path / "head.safetensors")["weight"]
    assert asked == [MIDDLE] and weight[0, 0] > 1 and weight[0, 1] == 0
    assert capsys.readouterr().out == "held out chat: 1.000 of the yeses, 0.000 of the noes\n"


def test_a_head_goes_on_with_the_newest_writers_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ships = {"weight": torch.tensor([[0.0, 4.0]]), "bias": torch.tensor([0.5])}
    save_file(ships, tmp_path / "head.safetensors")
    monkeypatch.setattr(acceptance, "HEAD", replace(acceptance.HEAD, weights=tmp_path / "head.safetensors"))
    read: list[int] = []

    def embed(texts: list[tuple[str, str, str]], _: int) -> torch.Tensor:
        read.append(len(texts))
        return torch.stack([torch.arange(len(texts)) % 2 - 0.5, torch.zeros(len(texts))], 1)

    monkeypatch.setattr(heads, "embed", embed)
    acceptance.main(["--go_on"])
    weight = load_file(tmp_path / "head.safetensors")["weight"]
    assert read == [132 * len(acceptance.NEWEST_WRITERS)]
    # What nothing speaks against stays.
    assert weight[0, 1] == 4 and weight[0, 0] != 0
    acceptance.main(["--go_on", "--hold_out", "pens", "--output", str(tmp_path / "other.safetensors")])
    assert read[-1] == read[0] + 88 and "held out pens" in capsys.readouterr().out


@pytest.mark.slow
def test_the_classifier_goes_on_with_the_same_messages_and_with_some_that_it_knows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        distil, "teach", lambda drawn, _: [replace(row, probabilities=(0.2, 0.5, 0.3)) for row in drawn]
    )
    monkeypatch.setattr(train, "measure_known", lambda _, held, __: (len(held) / 120, 0.0))
    asked = []

    class Trained:
        def save(self, path: Path, temperature: float) -> None:
            asked.append((path, temperature))

    def fit(drawn: list[Example], *_: object, trainable: str, **__: object) -> Trained:
        asked.append((drawn, trainable))
        return Trained()

    monkeypatch.setattr(train, "fit", fit)
    reactions.main(["--hold_out", "study", "--output", str(tmp_path / "out.safetensors")])
    (drawn, trainable), (path, temperature) = asked
    assert path == tmp_path / "out.safetensors" and 0 < temperature < 2
    layers = [layer for layer in (8, 17, 18, 27) if re.search(trainable, f"layers.{layer}.mlp")]
    assert layers == [18, 27]
    written = [row for row in drawn if row.probabilities is None]
    assert Counter(row.label for row in written) == Counter({1: 1347, -1: 1137, 0: 352})
    assert "study" not in {row.group for row in written}
    known = Counter((row.request, row.response) for row in drawn if row.probabilities)
    assert len(known) == reactions.CHATS and max(known.values()) == reactions.MESSAGES
    assert {row.group for row in drawn}.isdisjoint(train.split_groups(10))
    assert capsys.readouterr().out == "held out study: 1.000 of the objections, 0.000 of the approvals\n"


@pytest.mark.language_model
@pytest.mark.timeout(900)
def test_the_same_kind_words_take_one_reply_and_turn_another_down() -> None:
    request = "Write a short notice in Dutch: the library is closed on Friday."
    words = "That reads beautifully. Could I have it in Dutch as well, for the door?"
    refused = measure_acceptance(request, "The library will be closed on Friday. We reopen on Saturday.", words)
    english = "Write a short notice in English: the library is closed on Friday."
    taken = measure_acceptance(english, "The library will be closed on Friday. We reopen on Saturday.", words)
    assert refused < 0.5 < taken
