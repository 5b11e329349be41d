"""The reader of corrections that ask for less care than a reply took.

"One line would do" is harmless after a poem, and not after a reply whose second line named the allergy. Words alone
don't tell it, so the small encoder reads the correction with the reply behind it, with an adapter and a head of its
own (`examples/recipes/judge/care.py` trains them), and the large one beside it where the classifier has it; the
language model reads none of it. Of such a correction no hint is made; its score counts.
"""

from dataclasses import replace
from pathlib import Path

from clawrl_trl.judge.classifier import encoders
from clawrl_trl.judge.classifier.encoders import MINILM, MPNET, QWEN, list_up_to
from clawrl_trl.judge.classifier.reader import compute_probabilities, load_reader

_WEIGHTS = {MINILM: "care.safetensors", MPNET: "care_mpnet.safetensors"}
ENCODERS = {
    name: replace(encoders.ENCODERS[name], classifier=Path(__file__).with_name(file), reply_tokens=64)
    for name, file in _WEIGHTS.items()
}
"""The encoders with an adapter and a head of their own; they read more of a reply, whose care may be anywhere."""

LESS_CARE = {MINILM: 0.3, MPNET: 0.2, QWEN: 0.2}
"""Least probability of asking for less care with which a correction makes no hint, by the encoder that is used."""


def asks_for_less_care(request: str, reply: str, correction: str, encoder: str = MINILM) -> bool:
    """Return whether an English correction may teach the assistant less care than the reply took."""
    return measure_less_care(request, reply, correction, encoder) >= LESS_CARE[encoder]


def measure_less_care(request: str, reply: str, correction: str, encoder: str = MINILM) -> float:
    """Probability that it does; the mean of both encoders' with the large one."""
    names = [name for name in list_up_to(encoder) if name in ENCODERS]
    texts = (request, reply, correction)
    found = [compute_probabilities(load_reader(ENCODERS[name])(*texts))[0] for name in names]
    return sum(found) / len(found)
