"""The reader of corrections that ask for less care than a reply took.

"One line would do" is harmless after a poem, and not after a reply whose second line named the allergy. Words alone
don't tell it, so the small encoder reads the correction with the reply behind it, with an adapter and a head of its
own (`examples/recipes/judge/care.py` trains them). Of such a correction no hint is made; its score counts.
"""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM
from clawrl_trl.judge.classifier.reader import Reader, compute_probabilities

ENCODER = replace(ENCODERS[MINILM], classifier=Path(__file__).with_name("care.safetensors"), reply_tokens=64)
"""The small encoder with an adapter and a head of its own; it reads more of a reply, whose care may be anywhere."""

LESS_CARE = 0.3
"""Least probability of asking for less care with which a correction makes no hint."""


def measure_less_care(request: str, reply: str, correction: str) -> float:
    """Probability that an English correction teaches the assistant less care than the reply took."""
    return compute_probabilities(_load_shared()(request, reply, correction))[0]


@lru_cache(maxsize=1)
def _load_shared() -> Reader:
    return Reader(ENCODER)
