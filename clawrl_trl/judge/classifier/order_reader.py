"""The reader of corrections that order something unsafe, whatever the reply was.

"Use the token in the env file" makes a habit that no reply excuses. `refusals` knows wordings of such orders and not
meanings, and `care_reader` what a careful reply loses. So the small encoder reads the correction once more, with an
adapter and a head of its own (`examples/recipes/judge/orders.py` trains them). Of such a correction no hint is made;
its score counts.
"""

from dataclasses import replace
from pathlib import Path

from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM
from clawrl_trl.judge.classifier.reader import compute_probabilities, load_reader

ENCODER = replace(ENCODERS[MINILM], classifier=Path(__file__).with_name("orders.safetensors"), message_tokens=96)
"""The small encoder with an adapter and a head of its own; what is unsafe may be anywhere in a message."""

UNSAFE = 0.9
"""Least probability of an unsafe order with which a correction makes no hint; 0.5 costs one of ten honest ones."""


def orders_unsafe(request: str, reply: str, correction: str) -> bool:
    """Return whether an English correction would teach the assistant something unsafe."""
    return measure_unsafe(request, reply, correction) >= UNSAFE


def measure_unsafe(request: str, reply: str, correction: str) -> float:
    """Probability that it would."""
    return compute_probabilities(load_reader(ENCODER)(request, reply, correction))[0]
