"""Messages of nothing but emoji: a sign only where people mean one thing by it."""

import pytest

from clawrl_trl.judge.classifier.model import load_shared
from clawrl_trl.judge.symbols import CROSS, GLAD, is_symbols, score_symbols


@pytest.mark.parametrize(
    ("message", "score"),
    [("👍", 1), ("👍🏽", 1), ("❤️❤️", 1), ("🎉 🥳!!", 1), ("👎", -1), ("🤦‍♀️", -1), ("🙄…", -1), ("❌❌", -1)]
    + [(symbol, None) for symbol in ("🙃", "💀", "😂", "😭", "🤷", "👍👎", "🤔", "🍕", "👍🤣")],
)
def test_emoji_alone(message: str, score: int | None) -> None:
    assert is_symbols(message) and score_symbols(message) == score
    assert load_shared()("Write a mail.", "Here it is.", message).score == score


def test_words_and_smileys_are_read_as_before() -> None:
    assert not any(map(is_symbols, ("ok 👍", "10 👍", ":)", "!!", "")))


def test_no_symbol_means_both() -> None:
    assert not GLAD & CROSS
