"""The reader of lessons: whether an owner's own words say how a reply should have been.

"The server is on 5.7" corrects a query, "line 3 fails" merely reports, and "please contact your administrator" is a
machine's demand. Patterns tell the words of a wish (`hints.patterns`), and not whose they are or how they are meant.
The language model can: by a head over the embedding that the classifier reads by, which
`examples/recipes/judge/lessons.py` trains. A small encoder can't (it was right on three of four by an unknown writer).
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clawrl_trl.judge.classifier import reader
from clawrl_trl.judge.classifier.encoders import QWEN

WEIGHTS = Path(__file__).with_name("lessons_qwen.safetensors")
LEAST_LESSON = 0.3
"""Least probability of a lesson with which a hint is made."""


def holds_lesson(request: str, reply: str, words: str) -> bool:
    """Return whether an owner's English words say how the reply should have been."""
    return measure_lesson(request, reply, words) >= LEAST_LESSON


def measure_lesson(request: str, reply: str, words: str) -> float:
    """Probability that they do."""
    head = _load_head()
    logit = head["weight"] @ reader.load_shared(QWEN).embed(request, reply, words) + head["bias"]
    return float(1 / (1 + np.exp(-logit[0])))


@lru_cache(maxsize=1)
def _load_head() -> dict[str, NDArray[np.float32]]:
    from safetensors.numpy import load_file

    return dict(load_file(WEIGHTS))
