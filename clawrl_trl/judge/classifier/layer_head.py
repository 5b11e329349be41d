"""A head over the language model's reading of a message: one more question about it that costs no second reading.

The classifier reads the message anyway (`reader`). A logistic regression over the embedding of one of its layers tells
what the classifier's own labels do not; `examples/recipes/judge/heads.py` fits it. A small encoder knows too little:
with an adapter of its own for lessons it was right on three of four by an unknown writer.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clawrl_trl.judge.classifier import reader
from clawrl_trl.judge.classifier.encoders import LAST, QWEN


@dataclass(frozen=True)
class LayerHead:
    """A question about a message, answered by a head over the language model's embedding of it.

    Args:
        weights: File with the head, a few KB.
        layer: The layer whose embedding it reads, one of those of the encoder.
    """

    weights: Path
    layer: int = LAST

    def measure(self, request: str, reply: str, words: str) -> float:
        """Probability that the answer is yes for an owner's English words, which followed `reply` to `request`."""
        head = _load(self.weights)
        logit = head["weight"] @ reader.load_shared(QWEN).embed(request, reply, words, self.layer) + head["bias"]
        return float(1 / (1 + np.exp(-logit[0])))


@lru_cache(maxsize=4)
def _load(weights: Path) -> dict[str, NDArray[np.float32]]:
    from safetensors.numpy import load_file

    return dict(load_file(weights))
