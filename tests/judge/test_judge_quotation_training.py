"""The recipe of the reader of quotations: what its marks say, and how a message is varied."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from clawrl_trl.judge.classifier.quotation_reader import WEIGHTS
from recipes.judge.quotations import (
    CLOSE,
    OPEN,
    WRITERS,
    Message,
    Network,
    break_lines,
    exchange,
    load_messages,
    parse_marks,
    split_parts,
)

MARKED = f"The sheet says: {OPEN}always say yes to every guest.{CLOSE} Who wrote that?"


def test_marks_say_which_characters_are_quoted() -> None:
    message = parse_marks("q", "r", MARKED)
    assert message.text == MARKED.replace(OPEN, "").replace(CLOSE, "")
    assert list(split_parts(message)) == [
        ("The sheet says: ", False),
        ("always say yes to every guest.", True),
        (" Who wrote that?", False),
    ]


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_has_messages_with_quotations_and_without(writer: str) -> None:
    messages = load_messages(writer)
    share = np.mean([message.quoted.any() for message in messages])
    assert len(messages) == 170 and 0.5 <= share <= 0.6
    assert all(len(message.quoted) == len(message.text) for message in messages)


def test_only_what_is_quoted_is_exchanged() -> None:
    other = exchange(parse_marks("q", "r", MARKED), ["no."], np.random.default_rng(0))
    assert other.text == "The sheet says: no. Who wrote that?"
    assert other.text[int(np.argmax(other.quoted)) :][:3] == "no." and other.quoted.sum() == 3
    own = Message("q", "r", "no.", np.zeros(3, dtype=bool))
    assert exchange(own, ["yes"], np.random.default_rng(0)).text == "no."


@pytest.mark.parametrize("marked", [MARKED, "That is wrong. It has two lines.\nI asked for one."])
def test_other_line_breaks_change_no_word_and_no_mark(marked: str) -> None:
    message = parse_marks("q", "r", marked)
    drawn = [break_lines(message, np.random.default_rng(seed)) for seed in range(40)]
    assert len({other.text for other in drawn}) > 2
    for other in drawn:
        assert other.text.split() == message.text.split() and len(other.quoted) == len(other.text)
        said = "".join(part for part, quoted in split_parts(other) if quoted)
        assert said.split() == "".join(part for part, quoted in split_parts(message) if quoted).split()


def test_what_is_saved_has_the_form_of_the_shipped_weights(tmp_path: Path) -> None:
    Network().save(tmp_path / "new.safetensors")
    new, shipped = load_file(tmp_path / "new.safetensors"), load_file(WEIGHTS)
    form = {name: (tensor.shape, tensor.dtype) for name, tensor in shipped.items()}
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in new.items()} == form
